"""Runs that train as one on a GPU, stopped and continued: each is what it would be alone."""

import itertools
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from hyla.training import (
    Interrupted,
    TrainConfig,
    config_from_tree,
    load_preset,
    merge,
    run_path,
    train,
    train_together,
)
from hyla.training.run.reading import read_branch_scales, read_metrics, read_provenance

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.long,
    # What the compiler advises.
    pytest.mark.filterwarnings("ignore:TensorFloat32.*:UserWarning"),
    pytest.mark.filterwarnings(r"ignore:\s*Online softmax is disabled:UserWarning"),
]

STEPS = 4  # few: HYLA as printed soon makes percents of a rounding
SEEDS = {"hyla.expected2": [0, 1], "softmax": [2], "linear": [3, 4], "hyla": [5]}


def configs(task: str, scale: str, precision: str) -> list[TrainConfig]:
    """Runs whose models differ in their attention, as the lab has them."""
    short = {
        "steps": STEPS,
        "log_every": 1,
        "precision": precision,
        "evaluation": {"every": 2, "instances": 512, "final_instances": 512, "splits": ["ood"]},
    }
    return [
        config_from_tree(
            merge(
                load_preset(task, scale),
                short | {"model": {"attention": name}, "members": {"seed": seeds}},
            )
        )
        for name, seeds in SEEDS.items()
    ]


def gradients(path: Path) -> Tensor:
    """What the last checkpoint's models averaged of their gradients."""
    state = load_file(path / f"checkpoint-{STEPS:06d}.safetensors")
    moments = [state[name] for name in sorted(state) if name.startswith("first_moment/")]
    return torch.cat([moment.flatten(1) for moment in moments], dim=1)


def assert_as_alone(together: Path, alone: Path, tolerance: float) -> None:
    """Losses, scores, gradients and the scales of the branches of a run."""
    for one, other in zip(read_metrics(together), read_metrics(alone), strict=True):
        assert one.keys() == other.keys()
        for name in ("step", "loss", "ood/loss"):
            if name in other:
                assert one[name] == pytest.approx(other[name], rel=tolerance), name
    scales, wanted = read_branch_scales(together), read_branch_scales(alone)
    assert scales is not None
    assert wanted is not None
    assert scales["member"] == wanted["member"]
    for block, other in zip(scales["blocks"], wanted["blocks"], strict=True):
        assert block == pytest.approx(other, rel=10 * tolerance)
    got, expected = gradients(together), gradients(alone)
    size = expected.norm(dim=-1)
    assert ((got - expected).norm(dim=-1) <= 20 * tolerance * size).all()


def check_runs_as_one(
    task: str, scale: str, *, precision: str, tolerance: float, device: str, root: Path
) -> None:
    """Train runs as one, stop and continue them, and hold each against itself alone."""
    asked = configs(task, scale, precision)
    with pytest.raises(Interrupted, match="stopped at step 2 of 4"):
        train_together(asked, root=root / "together", device=device, until=2)
    summaries = train_together(asked, root=root / "together", device=device)
    found = []
    for config, summary in zip(asked, summaries, strict=True):
        seeds = SEEDS[str(config.model.attention)]
        models = [(member["seed"], member["diverged_at"]) for member in summary["members"]]
        assert models == [(seed, None) for seed in seeds]
        together, alone = (run_path(config, root / name) for name in ("together", "alone"))
        assert [len(start["beside"]) for start in read_provenance(together)] == [3, 3]
        # As it is written: with the compiler of the one, they would have its mistakes in common.
        train(config, root=root / "alone", device=device, compile=False)
        assert_as_alone(together, alone, tolerance)
        found.append(gradients(together))
    # Another run's models are further off than that.
    for one, other in itertools.pairwise(found):
        assert (one[0] - other[0]).norm() > 20 * tolerance * other[0].norm()


@pytest.mark.parametrize("task", ["sraven", "fuzzy"])
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("tf32", 5e-3)])
def test_runs_trained_as_one_are_what_they_would_be_alone(tmp_path, task, precision, tolerance):
    check_runs_as_one(
        task, "paper", precision=precision, tolerance=tolerance, device="cuda", root=tmp_path
    )
