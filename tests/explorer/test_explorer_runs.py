"""Runs of the folder, models of runs, and nothing from outside."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from explorer_fixtures import client_of, config_of

from hyla.explorer.gallery import Exhibit, Gallery, open_gallery
from hyla.explorer.packed import read_description, read_weights, shipped_folder, shipped_models
from hyla.explorer.runs import RunFolder
from hyla.nn import Transformer
from hyla.results.runs import load_model
from hyla.training import Member, train
from hyla.training.run.errors import CheckpointError, RunDirectoryError
from pack_models import pack
from tiny_runs import run_path

MOST_SHIPPED_BYTES = 2_000_000


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    train(config_of("sraven"), root=root / "lab", device="cpu")
    return root


@pytest.fixture(scope="module")
def run(root: Path) -> Path:
    return run_path(root / "lab")


@pytest.fixture
def client(gallery, root):
    return client_of(gallery, root)


def test_runs_are_listed_with_their_final_metrics(client, run):
    found = client.get("/api/runs").json()
    assert found["skipped"] == []
    [one] = found["runs"]
    assert one["id"] == f"lab/{run.name}"
    assert (one["task"], one["attention"], one["members"]) == ("sraven", "hyla", 2)
    assert one["finished"]
    summary = json.loads((run / "finished.json").read_text())
    scores = [member["metrics"]["ood/accuracy"] for member in summary["members"]]
    assert one["metrics"]["ood/accuracy"] == pytest.approx(sum(scores) / 2)


def test_curves_have_the_steps_at_which_something_was_logged(client, run):
    found = client.get("/api/curves", params={"run": f"lab/{run.name}"}).json()
    assert found["series"]["loss"]["steps"] == [5, 8, 10, 15, 16, 20, 24]
    assert found["series"]["ood/accuracy"]["steps"] == [8, 16, 24]
    for low, mean, high in zip(
        *(found["series"]["loss"][name] for name in ("low", "mean", "high")), strict=True
    ):
        assert low <= mean <= high
    assert found["config"]["steps"] == 24


def test_an_unfinished_run_shows_its_newest_metrics(root, run, tmp_path):
    shutil.copytree(run, tmp_path / "young")
    (tmp_path / "young" / "finished.json").unlink()
    [one] = RunFolder(tmp_path).runs().runs
    assert not one.finished
    assert (one.step, one.steps) == (24, 24)
    records = (tmp_path / "young" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "young" / "metrics.jsonl").write_text("".join(records[:4]))
    [one] = RunFolder(tmp_path).runs().runs
    assert (one.step, one.steps) == (10, 24)
    assert "ood/accuracy" in one.metrics


def test_numbers_that_are_none_are_null(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text(
        '{"steps": 3, "model": {"attention": "hyla"}, "task_name": "language"}'
    )
    (tmp_path / "a" / "metrics.jsonl").write_text(
        '{"step": 1, "loss": [0.5, null], "nonfinite": {"/loss/1": "nan"}}\n'
        '{"step": 2, "loss": [0.5, 1.5]}\n'
    )
    folder = RunFolder(tmp_path)
    assert folder.curves("a").series["loss"].mean == [None, 1.0]
    [one] = folder.runs().runs
    assert (one.task, one.members, one.metrics) == ("language", 1, {"loss": 1.0})


@pytest.mark.parametrize("text", ["{", "{}", '{"model": 1}', "[]"])
def test_a_damaged_run_is_skipped_with_a_reason(tmp_path, text):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text(text)
    found = RunFolder(tmp_path).runs()
    assert found.runs == []
    assert [one.id for one in found.skipped] == ["broken"]


@pytest.mark.parametrize(
    "files",
    [
        {"finished.json": '{"members": []}'},
        {"metrics.jsonl": '{"step": "one", "loss": [1.0]}\n'},
        {"metrics.jsonl": '{"step": 1, "loss": [null], "nonfinite": {"/other/1": "nan"}}\n'},
    ],
    ids=["no members", "no step", "no such number"],
)
def test_a_damaged_run_is_no_obstacle_to_the_others(gallery, tmp_path, run, files):
    shutil.copytree(run, tmp_path / "sound")
    shutil.copytree(run, tmp_path / "broken")
    for name, text in files.items():
        (tmp_path / "broken" / name).write_text(text)
    client = client_of(gallery, tmp_path)
    assert "sound" in [one["id"] for one in client.get("/api/runs").json()["runs"]]
    answer = client.get("/api/curves", params={"run": "broken"})
    if "metrics.jsonl" in files:
        assert answer.status_code == 409
        assert "broken cannot be read" in answer.json()["error"]


@pytest.mark.parametrize(
    "id", ["../outside", "..", ".", "/etc", "lab/../../outside", "lab", "lab%2f..", "\0", "link"]
)
def test_only_runs_of_the_store_have_ids(gallery, tmp_path, run, id):
    root = tmp_path / "runs"
    root.mkdir()
    shutil.copytree(run, tmp_path / "outside")
    (root / "link").symlink_to(tmp_path / "outside")
    client = client_of(gallery, root)
    assert client.get("/api/runs").json() == {"runs": [], "skipped": []}
    answer = client.get("/api/curves", params={"run": id})
    assert answer.status_code == 404
    assert "no run" in answer.json()["error"]


@pytest.mark.parametrize("file", ["config.json", "metrics.jsonl", "finished.json"])
def test_files_of_a_run_that_are_links_out_are_not_read(tmp_path, run, file):
    root = tmp_path / "runs"
    shutil.copytree(run, root / "run")
    (tmp_path / "secret").write_text((root / "run" / file).read_text())
    (root / "run" / file).unlink()
    (root / "run" / file).symlink_to(tmp_path / "secret")
    assert RunFolder(root).runs().runs == []


def test_a_circle_of_links_does_no_harm(tmp_path, run):
    for name in ("run", "other"):
        shutil.copytree(run, tmp_path / name)
    (tmp_path / "run" / "circle").symlink_to("circle")
    # Since Python 3.13 it is no error to resolve one.
    assert "other" in [one.id for one in RunFolder(tmp_path).runs().runs]


def test_a_store_that_is_itself_a_link(tmp_path, root, run):
    (tmp_path / "runs").symlink_to(root)
    assert [one.name for one in RunFolder(tmp_path / "runs").runs().runs] == [run.name]


# --- models of runs ------------------------------------------------------------------------------


def test_the_models_of_a_run_come_before_those_that_are_shipped(run):
    gallery = open_gallery([run])
    assert list(gallery.subjects)[:2] == [f"{run.name}:0", f"{run.name}:1"]
    subject = gallery[f"{run.name}:1"]
    assert subject.seed == 101
    assert subject.scores.keys() == {"test", "ood"}
    with subject.lent() as model:
        want = load_model(run, 1)[0].state_dict()
        assert all(torch.equal(want[name], x) for name, x in model.state_dict().items())


def test_models_that_differ_by_their_settings_alone_are_told_apart():
    def labels(*subjects: Exhibit) -> list[str]:
        return [subject.description.label for subject in Gallery(subjects).subjects.values()]

    def tuned(id: str, rate: float, decay: float = 0.1) -> Exhibit:
        members = (Member(seed=0, learning_rate=rate, weight_decay=decay, warmup_steps=0),)
        config = replace(config_of("fuzzy", num_layers=1), members=members)
        return Exhibit(id=id, config=config, member=0, scores={}, note="", load=lambda: tiny)

    tiny = Transformer(config_of("fuzzy").model)
    alone = "HYLA, seed 0 (1 layer, 2 heads)"
    assert labels(tuned("a", 0.001)) == [alone]
    assert labels(tuned("a", 0.001), tuned("b", 0.0003)) == [
        f"{alone}, lr 0.001",
        f"{alone}, lr 0.0003",
    ]
    assert labels(tuned("a", 0.001), tuned("b", 0.001, 0.2)) == [
        f"{alone}, weight decay 0.1",
        f"{alone}, weight decay 0.2",
    ]
    assert labels(tuned("run-12ab:0", 0.1), tuned("run-34cd:0", 0.1)) == [
        f"{alone}, 12ab:0",
        f"{alone}, 34cd:0",
    ]


def test_runs_that_cannot_be_explored(run, tmp_path):
    with pytest.raises(RunDirectoryError, match="not a run directory"):
        open_gallery([tmp_path])
    shutil.copytree(run, tmp_path / "empty", ignore=shutil.ignore_patterns("checkpoint*"))
    with pytest.raises(CheckpointError, match="no checkpoint"):
        open_gallery([tmp_path / "empty"])
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "config.json").write_text('{"task_name": "language"}')
    with pytest.raises(RunDirectoryError, match="hyla generate"):
        open_gallery([tmp_path / "text"])


def test_a_checkpoint_that_is_gone_is_told(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    gallery = open_gallery([tmp_path / "run"])
    for checkpoint in (tmp_path / "run").glob("checkpoint*"):
        checkpoint.unlink()
    client = client_of(gallery, tmp_path)
    id = client.get("/api/sraven/instance", params={"model": "run:1"}).json()["id"]
    answer = client.get("/api/sraven/answers", params={"model": "run:1", "id": id})
    assert answer.status_code == 409
    assert "no checkpoint" in answer.json()["error"]


def test_an_unfinished_run_may_have_gone_on_when_a_member_is_read(run, tmp_path):
    shutil.copytree(run, tmp_path / "young")
    (tmp_path / "young" / "finished.json").unlink()
    subject = open_gallery([tmp_path / "young"])["young:1"]
    assert subject.note == "Member 1 of young, step 24 or later: not finished yet."
    assert subject.scores == {}


# --- models that are shipped ---------------------------------------------------------------------


def test_shipped_models_are_small_and_there_is_one_of_each_task():
    stems = shipped_models().values()
    files = [file for stem in stems for file in stem.parent.glob(f"{stem.name}.*")]
    assert sum(file.stat().st_size for file in files) < MOST_SHIPPED_BYTES
    tasks = {read_description(stem)[1].task_name for stem in stems}
    assert tasks == {"sraven", "fuzzy"}


@pytest.mark.parametrize("stem", shipped_models().values(), ids=lambda stem: stem.name)
def test_shipped_models_can_be_read(stem):
    about, config = read_description(stem)
    model = read_weights(stem, config)
    assert sum(x.numel() for x in model.parameters()) > 0
    assert about.scores["ood"] == pytest.approx(about.precision["ood"]["float32"], abs=0.05)
    assert "/" not in about.source


def test_shipped_models_say_how_typical_they_are():
    gallery = open_gallery([])
    for name, seeds, mean in (
        ("sraven-hyla", 6, "0.758"),
        ("sraven-softmax", 6, "0.581"),
        ("fuzzy-hyla", 3, "0.542"),
        ("fuzzy-softmax", 3, "0.282"),
    ):
        about = read_description(shipped_folder() / name)[0]
        assert list(about.scores_of_seeds) == [str(seed) for seed in range(seeds)]
        chosen = max(about.scores_of_seeds.values(), key=lambda scores: scores["validation"])
        assert about.scores == chosen
        said = (
            f"the best of {seeds} seeds on validation (their mean on held-out combinations: {mean})"
        )
        assert said in gallery[name].note


def test_packing(run, tmp_path, monkeypatch):
    monkeypatch.setattr("pack_models.INSTANCES", 512)
    measured = pack(run, 1, "tiny", folder=tmp_path)
    about, config = read_description(tmp_path / "tiny")
    assert [member.seed for member in config.members] == [101]
    assert about.precision["stored"] == measured["stored"] == "float16"
    assert about.scores_of_seeds == {"101": about.scores}  # the other differs by more than its seed
    stored = safetensors.torch.load_file(tmp_path / "tiny.safetensors")
    assert {x.dtype for x in stored.values()} == {torch.float16}
    assert measured["bytes"] == sum(file.stat().st_size for file in tmp_path.iterdir())
    packed, original = read_weights(tmp_path / "tiny", config), load_model(run, 1)[0]
    for name, x in original.state_dict().items():
        torch.testing.assert_close(packed.state_dict()[name], x, rtol=1e-3, atol=1e-4)


def test_seeds_are_those_of_all_finished_runs_with_the_same_settings(tmp_path, monkeypatch):
    monkeypatch.setattr("pack_models.INSTANCES", 512)
    members = {seed: Member(seed=seed, learning_rate=1e-3, weight_decay=0.1) for seed in range(4)}
    population = (members[0], members[2], replace(members[1], learning_rate=2e-3))
    config = config_of("sraven")
    for one in (
        replace(config, members=population),
        replace(config, members=(members[3],)),
        replace(config, members=(members[1],), steps=20),
    ):
        train(one, root=tmp_path / "lab", device="cpu")
    folders = list((tmp_path / "lab").iterdir())
    [together] = [folder for folder in folders if len(load_model(folder)[1].members) == 3]
    pack(together, 1, "tiny", folder=tmp_path)
    about, _ = read_description(tmp_path / "tiny")
    assert list(about.scores_of_seeds) == ["0", "2", "3"]
    assert about.scores == about.scores_of_seeds["2"]
    summary = json.loads((together / "finished.json").read_text())
    assert about.scores["ood"] == summary["members"][1]["metrics"]["ood/accuracy"]
    assert (about.seconds, about.models) == (summary["seconds"], 3)


def test_what_half_precision_would_spoil_is_kept(run, tmp_path, monkeypatch):
    monkeypatch.setattr("pack_models.INSTANCES", 512)
    monkeypatch.setattr("pack_models.TOLERANCE", -1.0)
    assert pack(run, 0, "exact", folder=tmp_path)["stored"] == "float32"
    stored = safetensors.torch.load_file(tmp_path / "exact.safetensors")
    assert {x.dtype for x in stored.values()} == {torch.float32}
