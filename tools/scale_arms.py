"""Arms of a search around the recommended HYLA on SRAVEN, to compare long before their end.

    python tools/scale_arms.py gelu eps1 --until 25000 --root runs/arms

Each arm is a population of its own under ROOT/ARM, trained with the schedule of the whole run and
stopped at the first evaluation from `--until` on; the same command continues it. `rates` is the
recommended HYLA itself with other learning rates and decays; `eps0.1` and `eps1` enlarge what
RMSHead adds to the mean square; `learned` multiplies the output by one factor a layer that is
trained, and `gate` by 2 σ(W q) of the query; `deep` and those that begin so have 8 layers. At the
end a line of JSON for each arm has the scores of its members on unseen compositions, by step.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hyla.nn.transformer
from hyla import RECOMMENDED
from hyla.nn import MultiHeadAttention
from hyla.nn.initialise import initialise_linear_
from hyla.results.runs import curve_rows, read_runs
from hyla.training import SCALES, Interrupted, config_from_tree, load_preset, merge, train


class ArmAttention(MultiHeadAttention):
    """Attention whose output `multiplied` may change before `out_proj`."""

    eps = 1e-6

    def forward(self, x: Tensor, context: Tensor | None = None, **options: Any) -> Tensor:
        """Attend as training and evaluation of a population do: without cache and codes."""
        asked = [options.pop(name) for name in ("cache", "return_code")]
        assert not any(asked)
        projected = self._projected(x, x if context is None else context)
        return self.out_proj(self.attend(*projected, **options))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Return what `out_proj` takes."""
        return self.multiplied(super().attend(q, k, v, **options), q)

    def multiplied(self, out: Tensor, q: Tensor) -> Tensor:
        """Return the output as it is."""
        return out

    def _options(self, q: Tensor, k: Tensor, dropout_noise: Tensor | None) -> dict[str, Any]:
        return super()._options(q, k, dropout_noise) | {"eps": self.eps}


class SmallScoresStaySmall(ArmAttention):
    """RMSHead that leaves scores below a third of 1 smaller than the others."""

    eps = 0.1


class ScoresBelowOneStaySmall(ArmAttention):
    """RMSHead that leaves scores below 1 smaller than the others."""

    eps = 1.0


class LearnedFactor(ArmAttention):
    """One factor a layer, 1 at the start."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.factor = nn.Parameter(torch.ones(1))

    def multiplied(self, out: Tensor, q: Tensor) -> Tensor:
        """Return the output times the factor."""
        return out * self.factor


class Gated(ArmAttention):
    """A gate for each number of the output, computed of the query, 1 on average at the start."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.gate = nn.Linear(self.q_proj.out_features, self.out_proj.in_features)
        initialise_linear_(self.gate)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the gate's weights after those that all arms have."""
        super().reset_parameters(generator)
        if hasattr(self, "gate"):
            initialise_linear_(self.gate, generator)

    def multiplied(self, out: Tensor, q: Tensor) -> Tensor:
        """Return the output through the gate."""
        return out * (2 * torch.sigmoid(self.gate(q)))


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What differs from the recommended HYLA."""

    attention: str = RECOMMENDED
    layers: int | None = None
    """As many as the preset has, if not given."""
    layer: Callable[..., MultiHeadAttention] = MultiHeadAttention
    settings: Sequence[Mapping[str, float]] = ({},)


_RATES = (5e-4, 2e-3, 3e-3)
_DECAYS = (0.03, 0.3)
ARMS = {
    "rates": Arm(
        settings=(
            *({"learning_rate": rate} for rate in _RATES),
            *({"weight_decay": decay} for decay in _DECAYS),
        )
    ),
    "plain64": Arm(attention="hyla.plain64"),
    "gelu": Arm(attention="hyla.gelu.expected2"),
    "silu": Arm(attention="hyla.silu.expected2"),
    "eps0.1": Arm(layer=SmallScoresStaySmall),
    "eps1": Arm(layer=ScoresBelowOneStaySmall),
    "learned": Arm(layer=LearnedFactor),
    "gate": Arm(layer=Gated),
    "deep": Arm(layers=8),
    "deep-hyla": Arm(attention="hyla", layers=8),
    "deep-softmax": Arm(attention="softmax", layers=8),
}


def run(name: str, *, scale: str, seeds: int, until: int, root: Path, max_seconds: float) -> None:
    """Train an arm until a step, or until the time is over."""
    arm = ARMS[name]
    preset = load_preset("sraven", scale)
    usual = {key: values[0] for key, values in preset["members"].items()}
    members = [usual | dict(own) | {"seed": seed} for own in arm.settings for seed in range(seeds)]
    model = {"attention": arm.attention} | ({"num_layers": arm.layers} if arm.layers else {})
    changes: dict[str, Any] = {"model": model, "members": members}
    if scale == "paper":
        changes["precision"] = "tf32"
    hyla.nn.transformer.MultiHeadAttention = arm.layer
    config = config_from_tree(merge(preset, changes))
    try:
        train(config, root=root / name, until=until, max_seconds=max_seconds)
    except Interrupted as stop:
        print(stop, flush=True)


def scores(name: str, root: Path) -> list[dict[str, Any]]:
    """Return for each member its settings and scores of unseen compositions by step."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for stored in read_runs(root / name):
        for row in curve_rows(stored):
            score = row.get("ood/accuracy")
            if score is not None:
                own = {key: row[key] for key in ("learning_rate", "weight_decay", "seed")}
                member = found.setdefault(tuple(own.values()), own | {"ood": {}})
                member["ood"][row["step"]] = round(score, 4)
    return list(found.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return the exit code."""
    parser = argparse.ArgumentParser(description="Arms around the recommended HYLA on SRAVEN.")
    add = parser.add_argument
    add("arms", nargs="+", choices=list(ARMS))
    add("--until", type=int, default=25_000, help="step of the evaluation to stop at")
    add("--seeds", type=int, default=3)
    add("--root", type=Path, default=Path("runs/arms"))
    add("--scale", choices=SCALES, default="paper", help="a smaller one to try it out")
    add("--max-seconds", type=float, default=1e9, help="stop then, with everything saved")
    asked = parser.parse_args(arguments)
    deadline = time.monotonic() + asked.max_seconds
    for name in asked.arms:
        options = {"scale": asked.scale, "seeds": asked.seeds, "until": asked.until}
        left = deadline - time.monotonic()
        run(name, **options, root=asked.root, max_seconds=max(left, 1.0))
        print(json.dumps({"arm": name, "members": scores(name, asked.root)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
