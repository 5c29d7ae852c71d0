"""From run directories to tables, figures and pages."""

import json

import pandas
import pytest
import torch

from hyla.lab.latents import analyse_subjects, load_subjects, main
from hyla.lab.store import load_model, untrained_like
from hyla.latents import TABLES
from hyla.training import Member, Population, config_from_tree, load_preset, merge, train
from hyla.training.checkpoint import CheckpointError
from hyla.training.run_directory import RunDirectoryError
from tiny_runs import run_path, tiny_config


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A fuzzy population of two and a SRAVEN run, trained for a few steps."""
    root = tmp_path_factory.mktemp("runs")
    train(tiny_config(), root=root / "fuzzy", device="cpu")
    changes = {"steps": 4, "evaluation": {"instances": 16, "final_instances": 16}}
    sraven = config_from_tree(merge(load_preset("sraven", "smoke"), changes))
    train(sraven, root=root / "sraven", device="cpu")
    return run_path(root / "fuzzy"), run_path(root / "sraven")


def test_a_loaded_model_is_the_member_that_was_trained(runs):
    config = tiny_config()
    population = Population(
        config.build_task(),
        config.model,
        config.members,
        total_steps=config.steps,
        batch_size=config.batch_size,
    )
    population.train(config.steps)
    for member in range(2):
        model, loaded = load_model(runs[0], member)
        assert loaded == config
        for name, weight in population.member_model(member).state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], weight, msg=name)


def test_what_cannot_be_loaded_is_explained(runs, tmp_path):
    with pytest.raises(RunDirectoryError, match=r"it does not exist"):
        load_model(tmp_path / "nothing")
    with pytest.raises(RunDirectoryError, match=r"it holds no config\.json"):
        load_model(tmp_path)
    with pytest.raises(CheckpointError, match="2 models, counted from 0: there is no member 2"):
        load_model(runs[0], 2)
    (tmp_path / "config.json").write_bytes((runs[0] / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match="no checkpoint to load"):
        load_model(tmp_path)
    (tmp_path / "checkpoint-000024.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="truncated"):
        load_model(tmp_path)


def test_everything_is_computed_and_written(runs, tmp_path):
    (subject,) = load_subjects(runs[1:], [0], torch.device("cpu"))
    announced = []
    tables = analyse_subjects([subject], tmp_path, instances=64, on_table=announced.append)
    assert list(tables) == list(TABLES)
    assert len(announced) == len(TABLES)
    folder = tmp_path / subject.name
    for name in TABLES:
        files = list(folder.glob(f"{name}*.png"))
        assert files, name
        assert all(file.with_suffix(".pdf").stat().st_size > 1000 for file in files)
    page = (folder / "latents.html").read_text()
    assert "Plotly.newPlot" in page
    assert 'src="http' not in page
    assert len(pandas.read_parquet(tmp_path / "embedding.parquet")) == len(tables["embedding"])


def test_runs_of_several_tasks_share_tables(runs, tmp_path):
    subjects = load_subjects(runs, [0], torch.device("cpu"))
    analyse_subjects(subjects, tmp_path, figures=["decoding", "similarity"], instances=64)
    decoding = pandas.read_csv(tmp_path / "decoding.csv")
    assert set(decoding["task"]) == {"fuzzy", "sraven"}
    assert {"code", "shuffled labels", "untrained network", "residual stream", "inputs"} <= set(
        decoding["predictor"]
    )
    assert decoding["value"].between(0, 1).all()
    account = json.loads((tmp_path / "analysis.json").read_text())
    assert [s["attention"] for s in account["subjects"]] == ["hyla", "hyla"]
    assert account["subjects"][0]["checkpoint_step"] == 24
    assert subjects[0].name.endswith("-member0")


def test_untrained_is_the_member_before_its_first_step(runs):
    (subject,) = load_subjects(runs[:1], [1], torch.device("cpu"))
    config = tiny_config()
    population = Population(
        config.build_task(), config.model, [Member(seed=subject.seed)], total_steps=1
    )
    for name, weight in population.member_model(0).state_dict().items():
        assert torch.equal(untrained_like(subject.model, subject.seed).state_dict()[name], weight)


def test_the_plain_command_line(runs, tmp_path, capsys):
    out = str(tmp_path / "out")
    figures = ["--figure", "similarity", "distances"]
    main([str(runs[1]), "--out", out, "--instances", "64", "--device", "cpu", *figures])
    assert (tmp_path / "out" / "similarity.csv").is_file()
    assert "similarity" in capsys.readouterr().out
    with pytest.raises(ValueError, match="did you mean 'row'"):
        main([str(runs[1]), "--out", out, "--device", "cpu", "--pairs", "rows"])
