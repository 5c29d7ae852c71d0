"""What a run leaves behind, and that a finished one is left alone."""

import json
import math
import os
from types import SimpleNamespace

import pytest
import torch

from hyla.nn import Transformer
from hyla.training import Interrupted, Member, Population, train
from hyla.training.devices import resolve_device
from hyla.training.identity import fingerprint
from hyla.training.population.cohort import Cohort
from hyla.training.run.checkpoints.base import Checkpoints
from hyla.training.run.directory import RunDirectory
from hyla.training.run.errors import CheckpointError, RunBusyError
from hyla.training.run.held import run_name
from hyla.training.run.sinks import MetricSink
from tiny_runs import final_tensors, records, run_path, tiny_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("finished")
    return root, train(tiny_config(), root=root, device="cpu")


def population_of(config) -> Population:
    return Population(
        config.build_task(),
        config.model,
        config.members,
        total_steps=config.steps,
        batch_size=config.batch_size,
    )


def test_records_are_those_of_the_population_in_order(finished):
    """A loss every 5 steps, metrics every 8, and both at the end."""
    root, _ = finished
    config = tiny_config()
    population = population_of(config)
    got = records(root)
    assert [record["step"] for record in got] == [5, 8, 10, 15, 16, 20, 24, 24]
    metrics = {"test/loss", "test/r2", "ood/loss", "ood/r2"}
    for record in got[:-1]:
        step = record["step"]
        population.train(step - int(population.step))
        want = {"step": step, "loss": population.mean_losses().tolist()}
        if step in (8, 16):
            for split in ("test", "ood"):
                for name, values in population.evaluate(split, 8).items():
                    want[f"{split}/{name}"] = values.tolist()
            assert want.keys() == {"step", "loss"} | metrics
        assert record == want
    final = {
        f"{split}/{name}": values.tolist()
        for split in ("test", "ood")
        for name, values in population.evaluate(split, 16).items()
    }
    assert got[-1] == {"step": 24} | final
    assert final.keys() == metrics


def test_the_summary_lists_the_members_with_their_final_metrics(finished):
    root, summary = finished
    final = records(root)[-1]
    assert summary["steps"] == 24
    assert summary["seconds"] > 0
    for index, (entry, member) in enumerate(
        zip(summary["members"], tiny_config().members, strict=True)
    ):
        assert entry == {
            "seed": member.seed,
            "learning_rate": member.learning_rate,
            "weight_decay": member.weight_decay,
            "warmup_steps": member.warmup_steps,
            "diverged_at": None,
            "metrics": {name: final[name][index] for name in final if name != "step"},
        }
    assert json.loads((run_path(root) / "finished.json").read_text()) == summary


def test_the_directory_is_named_and_described_by_the_config(finished):
    root, _ = finished
    tree = tiny_config().to_tree()
    path = run_path(root)
    assert path.name == f"fuzzy-hyla-{fingerprint(tree)[:12]}"
    assert json.loads((path / "config.json").read_text()) == json.loads(json.dumps(tree))
    assert run_name(tiny_config()) == "fuzzy-hyla"


def test_the_last_checkpoint_holds_the_models(finished):
    root, _ = finished
    config = tiny_config()
    population = population_of(config)
    population.train(24)
    tensors = final_tensors(root)
    assert tensors["step"] == 24
    for index in range(2):
        model = Transformer(config.model)
        prefix = "parameters/"
        model.load_state_dict(
            {
                name.removeprefix(prefix): tensor[index]
                for name, tensor in tensors.items()
                if name.startswith(prefix)
            }
        )
        for name, parameter in population.member_model(index).named_parameters():
            assert model.get_parameter(name).equal(parameter), name


def test_a_finished_run_is_not_trained_again(finished, monkeypatch):
    root, summary = finished

    def stat() -> dict[str, tuple[int, int]]:
        files = [path for path in run_path(root).iterdir() if path.name != "lock"]
        return {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in files}

    before = stat()
    monkeypatch.setattr(Population, "__init__", lambda *a, **k: pytest.fail("it was trained"))
    assert train(tiny_config(), root=root, device="cpu") == summary
    assert stat() == before


class Collector:
    """A sink that keeps what it gets."""

    def __init__(self):
        self.written: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def write(self, step, scalars):
        self.written.append((step, dict(scalars)))

    def close(self):
        self.closed = True


def test_sinks_get_the_records_member_by_member(tmp_path):
    collector = Collector()

    def sinks(path, names) -> list[MetricSink]:
        assert path == run_path(tmp_path)
        assert list(names) == [str(member) for member in tiny_config().members]
        return [collector]

    train(tiny_config(), root=tmp_path, device="cpu", sinks=sinks)
    assert collector.closed
    names = [str(member) for member in tiny_config().members]
    want = [
        (
            record["step"],
            {
                f"{n}/{k}": v
                for k, values in record.items()
                if k != "step"
                for n, v in zip(names, values, strict=True)
            },
        )
        for record in records(tmp_path)
    ]
    assert collector.written == want


def test_sinks_are_closed_when_the_run_fails(tmp_path, monkeypatch):
    def broken(self, steps):
        raise ZeroDivisionError

    collector = Collector()
    monkeypatch.setattr(Population, "train", broken)
    with pytest.raises(ZeroDivisionError):
        train(tiny_config(), root=tmp_path, device="cpu", sinks=lambda path, names: [collector])
    assert collector.closed
    RunDirectory.open(tmp_path, "fuzzy-hyla", tiny_config().to_tree()).close()  # not locked


def test_a_diverged_member_is_marked_and_the_others_finish(tmp_path):
    good, bad = Member(seed=1), Member(seed=2, learning_rate=1e30, warmup_steps=0)
    config = tiny_config(members=(good, bad))
    both = tmp_path / "both"
    summary = train(config, root=both, device="cpu")
    entries = summary["members"]
    assert entries[0]["diverged_at"] is None
    assert 0 < entries[1]["diverged_at"] < 24
    assert all(math.isfinite(value) for value in entries[0]["metrics"].values())
    assert final_tensors(both)["alive"].tolist() == [True, False]
    assert repr(train(config, root=both, device="cpu")) == repr(summary)  # with its NaNs

    alone = train(tiny_config(members=(good,)), root=tmp_path / "alone", device="cpu")
    assert alone["members"][0]["metrics"] == pytest.approx(entries[0]["metrics"], rel=1e-5)


def test_an_unfinished_run_in_another_process_is_busy(tmp_path):
    config = tiny_config()
    with (
        RunDirectory.open(tmp_path, run_name(config), config.to_tree()),
        pytest.raises(RunBusyError, match=f"is being trained by process {os.getpid()}"),
    ):
        train(config, root=tmp_path, device="cpu")
    assert train(config, root=tmp_path, device="cpu")["steps"] == 24


def test_a_full_disk_ends_the_run_with_a_message(tmp_path, monkeypatch):
    def full(path, content):
        if path.name.startswith("checkpoint"):
            raise OSError(28, "No space left on device")
        path.write_bytes(content)

    monkeypatch.setattr("hyla.training.run.checkpoints.file.write_atomically", full)
    with pytest.raises(CheckpointError, match=r"Disk full: .*There is no earlier checkpoint"):
        train(tiny_config(), root=tmp_path, device="cpu")
    monkeypatch.undo()
    assert train(tiny_config(), root=tmp_path, device="cpu")["steps"] == 24


def test_checkpoints_that_take_long_are_made_rarely(tmp_path, monkeypatch):
    now, saved = 0.0, []
    train_cohort, save = Cohort.train, Checkpoints.save

    def take_20_seconds_a_step(self, steps):
        nonlocal now
        now += 20 * steps
        train_cohort(self, steps)

    def take_10_seconds(self, step, *arguments):
        nonlocal now
        now += 10
        saved.append(step)
        return save(self, step, *arguments)

    monkeypatch.setattr(Cohort, "train", take_20_seconds_a_step)
    monkeypatch.setattr(Checkpoints, "save", take_10_seconds)
    monkeypatch.setattr("hyla.training.run.loop.MOST_TIME_SAVING", 0.04)
    monkeypatch.setattr("hyla.training.run.loop.time", SimpleNamespace(monotonic=lambda: now))
    train(tiny_config(), root=tmp_path, device="cpu")
    # The first one early; then not after every minute, for that would take 10 of 90 seconds, but
    # after more than 250 s.
    assert saved == [1, 14, 24]


def test_a_stop_before_the_first_step_logs_nothing(tmp_path):
    with pytest.raises(Interrupted, match=r"stopped at step 0 of 24 \(time limit\)"):
        train(tiny_config(), root=tmp_path, device="cpu", max_seconds=0)
    assert records(tmp_path) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_devices_without_a_gpu():
    assert resolve_device("auto") == torch.device("cpu")
    assert resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="PyTorch sees no GPU"):
        resolve_device("cuda")
