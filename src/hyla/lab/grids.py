"""Grids that figures share: the methods, the rows of Table A1, the search of Table A3."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hyla.results.selection import HYPERPARAMETERS
from hyla.tasks import task_class
from hyla.training import load_preset, merge

METHODS = ("hyla", "softmax", "linear")
"""The three that every figure of the paper compares."""

LABELS = {
    "softmax": "Softmax attention",
    "linear": "Linear attention",
    "hyla": "HYLA",
    "linear_rmshead": "Linear attention + RMSHead",
    "linear_rmshead_nonlinear_value": "Linear attention + RMSHead + nonlinear value",
    "hyla_minus_rmshead": "HYLA − RMSHead",
    "hyla_minus_nonlinearity": "HYLA − nonlinearity",
    "hyla_minus_nonlinearity_minus_rmshead": "HYLA − nonlinearity − RMSHead",
    "hyla_minus_rmshead_plus_softmax": "HYLA − RMSHead + softmax",
    "hyla_deep": "HYLA + deep value network",
    "hyla_plus_softmax": "HYLA + softmax",
    "hyla_plus_softmax_last": "HYLA + softmax (softmax last)",
}
"""How the paper calls the attention presets, in the order of Table A1."""

OUR_LABELS = {
    "hyla_residual": "HYLA + linear value",
    "hyla_residual_minus_rmshead": "HYLA − RMSHead + linear value",
    "hyla_residual_minus_rmshead_plus_softmax": "HYLA − RMSHead + softmax + linear value",
}
"""The same for presets that the paper does not have."""

# Only so much that choosing is exercised.
_SMOKE_SEARCH: Mapping[str, Sequence[float]] = {"learning_rate": [1e-3, 3e-3]}
SEEDS = {"smoke": 2, "laptop": 3, "paper": 3}  # fewer than three are not judged


def in_usual_order(methods: Iterable[str]) -> list[str]:
    """Return the paper's three of these methods, as ever, and then others."""
    found = set(methods)
    return [*(method for method in METHODS if method in found), *sorted(found - {*METHODS})]


def members(task: str, scale: str, *, seeds: int | None, search: bool) -> dict[str, list[Any]]:
    """Return the grid of a method's models, as a sweep's `members.*`.

    Without `search`, the preset's own setting stands for all; `seeds` None is the scale's number.
    """
    lists: dict[str, Any] = {"seed": range(SEEDS[scale] if seeds is None else seeds)}
    if search:
        searched = {"smoke": _SMOKE_SEARCH, "paper": task_class(task).searched}
        lists |= searched.get(scale, {})
    else:
        preset = load_preset(task, scale)["members"]
        lists |= {name: preset[name][:1] for name in HYPERPARAMETERS if name in preset}
    return {f"members.{name}": list(values) for name, values in lists.items()}


def sweep(
    task: str, scale: str, *, grid: Mapping[str, Sequence[Any]], **settings: Any
) -> dict[str, Any]:
    """Return a sweep's tree; `settings` go over the preset for all of its runs.

    At every scale models are scored on what those of paper scale are, so that figures share runs.
    """
    if splits := load_preset(task, "paper")["evaluation"].get("splits"):
        settings = merge({"evaluation": {"splits": splits}}, settings)
    lists = {key: list(values) for key, values in grid.items()}
    return {"task": task, "scale": scale, "set": settings, "grid": lists}


def methods_over(
    task: str, setting: str, values: Mapping[str, Sequence[Any]]
) -> Callable[[str], list[dict[str, Any]]]:
    """Return the sweeps of the three methods over one setting, whose values are given by scale."""

    def sweeps(scale: str) -> list[dict[str, Any]]:
        return [sweep(task, scale, grid={setting: values[scale], "model.attention": METHODS})]

    return sweeps


def fuzzy_lengths_and_fractions(scale: str) -> list[dict[str, Any]]:
    """Return Figure 2C's and A3's grid: in-context examples × share of held-out combinations.

    The values at which Table A1 compares come first: a search that is cut short has them.
    """
    lengths, fractions = {
        "smoke": ([8, 4], [0.3, 0.5]),
        "laptop": ([16, 8], [0.5, 0.3]),
        "paper": ([32, 16, 64, 96], [0.7, 0.5, 0.3]),
    }[scale]
    grid = {
        "task.sequence_length": lengths,
        "task.held_out_fraction": fractions,
        "model.attention": METHODS,
    }
    return [sweep("fuzzy", scale, grid=grid)]


def scaling(scale: str, size: str) -> list[dict[str, Any]]:
    """Return Figure 4's and A4's grid: instances × `size`, which is a setting of the model."""
    steps, sizes = {
        "smoke": ([15, 30], [1, 2]),
        "laptop": ([1500, 3000], {"model.width_factor": [1, 2], "model.num_layers": [2, 4]}[size]),
        # 10, 20 and 40 M instances
        "paper": (
            [78125, 156250, 312500],
            {"model.width_factor": [1, 2, 4], "model.num_layers": [4, 8, 16]}[size],
        ),
    }[scale]
    return [sweep("sraven", scale, grid={size: sizes, "steps": steps, "model.attention": METHODS})]


def table_a1(task: str, scale: str, output: str = "") -> list[dict[str, Any]]:
    """Return the fourteen rows of Table A1 for one task, all with the same kind of `output`."""
    rows = [name for name in LABELS if name != "hyla_plus_softmax_last"]
    first = [*METHODS, *(name for name in rows if name not in METHODS)]
    dense, experts = ([name + output for name in names] for names in (first, METHODS))
    return [
        sweep(task, scale, grid={"model.attention": dense}),
        sweep(task, scale, grid={"model.attention": experts}, model={"feed_forward": "moe"}),
    ]
