"""Optional metric sinks."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hyla.training.run.sinks import MetricSink, TensorBoardSink, WandbSink, member_scalars

MEMBERS = ["seed0", "seed1"]


def read_tensorboard(directory: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(directory)).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_gets_one_run_per_member(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    sink: MetricSink = TensorBoardSink(tmp_path, MEMBERS)
    scalars = member_scalars(MEMBERS, {"loss": [0.5, 0.25], "ood/r2": [0.0, 1.0]})
    sink.write(10, scalars)
    sink.close()
    assert not list(tmp_path.glob("events*"))  # an empty run of its own in the list of runs
    assert read_tensorboard(tmp_path / "seed0") == {"loss": [(10, 0.5)], "ood/r2": [(10, 0.0)]}
    assert read_tensorboard(tmp_path / "seed1") == {"loss": [(10, 0.25)], "ood/r2": [(10, 1.0)]}


def test_tensorboard_forgets_what_a_resumed_run_repeats(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for first_step, steps in [(0, [1, 2, 3]), (3, [3, 4])]:
        sink = TensorBoardSink(tmp_path, ["seed0"], first_step=first_step)
        for step in steps:
            sink.write(step, {"seed0/loss": float(first_step)})
        sink.close()
    assert read_tensorboard(tmp_path / "seed0")["loss"] == [(1, 0.0), (2, 0.0), (3, 3.0), (4, 3.0)]


def test_wandb_gets_the_scalars_and_can_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    run = SimpleNamespace(
        log=lambda scalars, step: calls.append((step, scalars)),
        finish=lambda: calls.append("finished"),
    )

    def init(**settings: Any) -> SimpleNamespace:
        calls.append(settings)
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    sink: MetricSink = WandbSink(tmp_path, project="p", name="n", run_id="n-1", config={"lr": 1})
    sink.write(3, {"seed0/loss": 0.5})
    sink.close()
    assert calls[0]["resume"] == "allow"
    assert calls[0]["id"] == "n-1"
    assert calls[1:] == [(3, {"seed0/loss": 0.5}), "finished"]


@pytest.mark.parametrize(
    ("module", "make"),
    [
        ("torch.utils.tensorboard", lambda path: TensorBoardSink(path, MEMBERS)),
        ("wandb", lambda path: WandbSink(path, project="p", name="n", run_id="i", config={})),
    ],
)
def test_a_missing_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, make: Any
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r'pip install -e "path/to/hyla\[tracking\]"'):
        make(tmp_path)
