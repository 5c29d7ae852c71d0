"""From run directories to tables, figures and pages."""

import numpy as np
import pandas
import pytest
import torch

from hyla.lab.latents import analyse_subjects, load_subjects
from hyla.lab.latents.__main__ import main
from hyla.lab.latents.captions import caption
from hyla.lab.latents.findings import findings
from hyla.latents import TABLES, record_codes
from hyla.results.origins import read_with_origins
from hyla.results.runs import load_model
from hyla.training import Member, Population, config_from_tree, load_preset, merge, train
from hyla.training.language import language_run_path, load_language_model, train_language
from hyla.training.run.errors import CheckpointError, RunDirectoryError
from tiny_runs import run_path, tiny_config
from tiny_text import tiny_corpus, tiny_language_config


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
    stored = read_with_origins(tmp_path / "embedding.csv")
    own = [{name: row.get(name) for name in tables["embedding"][0]} for row in stored]
    assert own == tables["embedding"]
    assert {row["torch"] for row in stored} == {torch.__version__}


def test_runs_of_several_tasks_share_tables(runs, tmp_path):
    subjects = load_subjects(runs, [0], torch.device("cpu"))
    analyse_subjects(subjects, tmp_path, figures=["decoding", "similarity"], instances=64)
    decoding = pandas.read_csv(tmp_path / "decoding.csv")
    assert set(decoding["task"]) == {"fuzzy", "sraven"}
    assert {"code", "shuffled labels", "untrained network", "residual stream", "inputs"} <= set(
        decoding["predictor"]
    )
    assert decoding["value"].between(0, 1).all()
    splits = decoding.groupby("task")["split"].unique()
    assert set(splits["sraven"]) == {"test_unpermuted", "ood_unpermuted"}
    assert set(splits["fuzzy"]) == {
        f"{side}_fixed_{what}" for side in ("test", "ood") for what in ("query", "context")
    }
    assert (tmp_path / subjects[0].name / "decoding-ood_fixed_context.png").is_file()
    accounts = read_with_origins(tmp_path / "analyses.csv")
    assert [(row["attention"], row["table"]) for row in accounts] == [
        ("hyla", "decoding"),
        ("hyla", "similarity"),
    ] * 2
    assert accounts[0]["checkpoint_step"] == 24
    assert accounts[0]["model.num_layers"] == tiny_config().model.num_layers
    assert accounts[0]["trained/torch"] == torch.__version__
    assert subjects[0].name.endswith("-member0")


def test_what_earlier_calls_found_stays(runs, tmp_path):
    """Of other runs, and of other figures of the same run."""
    fuzzy, sraven = (load_subjects([run], [0], torch.device("cpu")) for run in runs)

    def analyse(subjects, figures, instances):
        analyse_subjects(subjects, tmp_path, figures=figures, instances=instances)

    def rows(task):
        lines = (tmp_path / "distances.csv").read_text().splitlines()
        return [line for line in lines if f",{task}," in line]

    analyse(sraven, ["distances", "similarity", "embedding"], 64)
    before = rows("sraven")
    analyse(fuzzy, ["distances", "embedding"], 64)
    assert rows("sraven") == before != []
    assert rows("fuzzy")
    embedding = pandas.read_csv(tmp_path / "embedding.csv")
    assert set(embedding["run"]) == {run.name for run in runs}

    analyse(sraven, ["distances"], 96)
    assert rows("fuzzy")
    assert len(rows("sraven")) == len(before)
    assert rows("sraven") != before
    assert len(pandas.read_csv(tmp_path / "embedding.csv")) == len(embedding)
    accounts = read_with_origins(tmp_path / "analyses.csv")
    assert [(row["task"], row["table"], row["instances"]) for row in accounts] == [
        ("sraven", "similarity", 64),
        ("sraven", "embedding", 64),
        ("fuzzy", "distances", 64),
        ("fuzzy", "embedding", 64),
        ("sraven", "distances", 96),
    ]
    page = (tmp_path / sraven[0].name / "latents.html").read_text()
    for heading in ("embedded by t-SNE", "Cosine similarity", "Distances between codes"):
        assert page.count(heading), heading


def test_tables_of_earlier_versions_are_added_to(runs, tmp_path):
    """Those that say of no row where it comes from."""
    (subject,) = load_subjects(runs[1:], [0], torch.device("cpu"))
    table = tmp_path / "distances.csv"
    earlier = "sraven-old,0,sraven,hyla,0,0,ratio,1.5,1,2.25"
    columns = "run,member,task,attention,seed,layer,statistic,value,low,high"
    table.write_text(f"{columns}\n{earlier}\n")
    analyse_subjects([subject], tmp_path, figures=["distances"], instances=64)
    old, *new = read_with_origins(table)
    assert (old["run"], old["value"], old["torch"]) == ("sraven-old", 1.5, None)
    assert {(row["run"], row["torch"]) for row in new} == {(runs[1].name, torch.__version__)}


def test_runs_of_one_name_are_not_mixed(runs, tmp_path):
    subjects = load_subjects([runs[0], runs[0]], [0], torch.device("cpu"))
    with pytest.raises(ValueError, match="2 of the runs are called fuzzy"):
        analyse_subjects(subjects, tmp_path)


def test_a_language_model_is_refused_with_the_way_to_its_codes(tmp_path):
    corpus = tiny_corpus(tmp_path)
    config = tiny_language_config(corpus)
    train_language(config, corpus, root=tmp_path / "runs", device="cpu")
    run = language_run_path(config, tmp_path / "runs")
    with pytest.raises(RunDirectoryError, match=r"record_codes of hyla\.latents"):
        load_subjects([run], [0], torch.device("cpu"))
    model, tokenizer, _ = load_language_model(run, "cpu")
    tokens = torch.tensor([tokenizer.encode("Anna saw the river, and left.")])
    table = record_codes(model, tokens, pairs="previous")
    assert table.codes.shape == (
        config.model.num_layers * (tokens.shape[1] - 1),
        config.model.num_heads,
    )
    assert np.abs(table.codes).max() > 0


def test_untrained_is_the_member_before_its_first_step(runs):
    (subject,) = load_subjects(runs[:1], [1], torch.device("cpu"))
    config = tiny_config()
    population = Population(
        config.build_task(), config.model, [Member(seed=subject.seed)], total_steps=1
    )
    for name, weight in population.member_model(0).state_dict().items():
        assert torch.equal(subject.untrained.state_dict()[name], weight)


def test_the_plain_command_line(runs, tmp_path, capsys):
    out = str(tmp_path / "out")
    figures = ["--figure", "similarity", "distances"]
    main([str(runs[1]), "--out", out, "--instances", "64", "--device", "cpu", *figures])
    assert (tmp_path / "out" / "similarity.csv").is_file()
    assert "similarity" in capsys.readouterr().out
    with pytest.raises(ValueError, match="did you mean 'row'"):
        main([str(runs[1]), "--out", out, "--device", "cpu", "--pairs", "rows"])


def decoded(study, *, instances: int = 1000, **scores: float) -> list[dict]:
    unseen = {"split": study.unseen, "class": "all", "pairs": "row", "layer": 1, "label": "rule"}
    return [
        {
            **unseen,
            "instances": instances,
            "predictor": name.replace("_", " "),
            "metric": metric,
            "value": value,
        }
        for name, value in scores.items()
        for metric in ("accuracy", "f1")
    ]


def swapped(**rates: tuple[float, float]) -> list[dict]:
    """Rates of following and staying, each with an interval of 0.05 to both sides."""
    everywhere = {"split": "ood", "pairs": "row", "first_layer": 0, "last_layer": 3}
    return [
        {**everywhere, "code": code.replace("_", " ")}
        | {"donor_rate": follows, "donor_low": follows - 0.05, "donor_high": follows + 0.05}
        | {"stay_rate": stays, "stay_low": stays - 0.05, "stay_high": stays + 0.05}
        for code, (follows, stays) in rates.items()
    ]


def test_the_top_of_the_page_says_what_the_tables_say():
    study = config_from_tree(load_preset("sraven", "smoke")).build_task().study
    assert study is not None
    tables = {
        "decoding": decoded(study, code=0.9, shuffled_labels=0.1),
        "distances": [
            {"layer": layer, "statistic": "ratio", "value": value}
            for layer, value in ((0, 1.2), (1, 2.5))
        ],
        "swaps": swapped(donor=(0.4, 0.2), permuted_heads=(0.1, 0.1), same_operation=(0.0, 0.8)),
        "heads": [
            {"code": "zero", "layer": 0, "head": head, "rule": rule, "stay_rate": rate}
            for head, rate in ((0, 0.9), (1, 0.3))
            for rule in ("constant", "progression")
        ],
    }
    for part, text in zip(
        (
            "with accuracy 0.90 at layer 2, its best, more than shuffled labels, the best of the "
            "rest (shuffled labels 0.10).",
            "2.50 times as far apart as codes of one, at layer 2",
            "0.40 of the answers follow that operation, more than with its heads permuted (0.10): "
            "the code alone carries an operation over, in part.",
            "0.80 stay right, more than with another operation's (0.20): which operation a code is "
            "of matters.",
            "most depends on head 1 of layer 1; without it alone 0.30",
        ),
        findings(tables, study, "row"),
        strict=True,
    ):
        assert part in text


def test_what_controls_do_as_well_is_said_to_show_nothing():
    study = config_from_tree(load_preset("sraven", "smoke")).build_task().study
    assert study is not None
    tables = {
        "decoding": decoded(study, code=0.52, residual_stream=0.5, inputs=0.1),
        "swaps": swapped(donor=(0.12, 0.6), permuted_heads=(0.1, 0.5), same_operation=(0.0, 0.65)),
    }
    decoding, swaps, control = findings(tables, study, "row")
    assert (
        "not clearly more than residual stream, the best of the rest (residual stream 0.50, inputs "
        "0.10) at this number of instances." in decoding
    )
    assert (
        "not clearly more than with its heads permuted (0.10) at this number of instances: the "
        "code alone is not shown to carry it over." in swaps
    )
    assert (
        "not clearly more than with another operation's (0.60) at this number of instances: which "
        "operation a code is of is not shown to matter." in control
    )


def test_where_nothing_is_solved_nothing_is_counted_and_that_is_said():
    """The columns of rates are not there at all: nothing stands in any row of them."""
    study = config_from_tree(load_preset("sraven", "smoke")).build_task().study
    assert study is not None
    everywhere = {"split": "ood", "pairs": "row", "first_layer": 0, "last_layer": 3}
    tables = {
        "swaps": [{**everywhere, "code": code} for code in ("donor", "same operation")],
        "heads": [{"code": "zero", "layer": 0, "head": 0, "rule": "constant"}],
    }
    swaps, heads = findings(tables, study, "row")
    assert "Swaps: the model solves none of the instances" in swaps
    assert "Heads: the model solves none of the instances" in heads


def test_what_is_decoded_better_elsewhere_and_what_more_instances_would_tell_apart():
    study = config_from_tree(load_preset("sraven", "smoke")).build_task().study
    assert study is not None
    behind = {"decoding": decoded(study, code=0.4, residual_stream=0.5)}
    assert "less than residual stream" in findings(behind, study, "row")[0]
    ahead = {"decoding": decoded(study, code=0.52, residual_stream=0.5, instances=100_000)}
    assert "its best, more than residual stream" in findings(ahead, study, "row")[0]


def test_a_map_says_where_all_codes_are_the_same():
    rows = [
        {"layer": layer, "x": layer * x, "y": layer * x, "rule": "constant"}
        for layer in (0, 1)
        for x in (-3.0, 3.0)
    ]
    assert caption("embedding", "rule", rows).endswith("In layer 1 all codes are the same.")
    assert "all codes are the same" not in caption("embedding", "rule", rows[2:])
    assert caption("embedding", "rule", rows[:2]).endswith("In layer 1 all codes are the same.")


def test_the_caption_of_a_map_fits_language_models_too():
    assert "composition" not in caption("embedding", "token")
