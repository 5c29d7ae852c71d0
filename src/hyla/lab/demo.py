"""The paper's effect in minutes: HYLA, softmax and linear attention on small fuzzy logic.

Trains one population per method at laptop scale, compares them in distribution (new instances of
training functions) and out of distribution (unseen combinations of known terms), and writes a
figure and a page that opens without a network.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hyla._errors import install_command
from hyla.figures.drawing import METHOD_COLOURS, PALETTE, Bars, Figure, Lines, Series
from hyla.training import config_from_tree, load_preset, merge, run_path, train
from hyla.training.run.reading import read_metrics

SCALE = "laptop"
METHODS = ("hyla", "softmax", "linear")
SEEDS = (0, 1)


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """How one method did; scores are R² by seed."""

    method: str
    in_distribution: list[float]
    out_of_distribution: list[float]
    steps: list[int]
    ood_curve: list[float]
    """Mean over the seeds at each of `steps`."""
    seconds: float


def check_figures() -> None:
    """Raise a ValueError before minutes of training if nothing could be drawn after them."""
    try:
        import matplotlib  # noqa: F401
        import plotly  # noqa: F401
    except ImportError as error:
        raise ValueError(f"{error.name} is not installed: {install_command('figures')}") from error


def run_demo(*, root: Path, device: torch.device | str = "auto") -> list[MethodResult]:
    """Train what is not trained yet and return the results of each method."""
    return [_run_method(method, root, device) for method in METHODS]


def _run_method(method: str, root: Path, device: torch.device | str) -> MethodResult:
    changes = {"model": {"attention": method}, "members": {"seed": list(SEEDS)}}
    config = config_from_tree(merge(load_preset("fuzzy", SCALE), changes))
    summary = train(config, root=root, device=device)
    metrics = [m for m in read_metrics(run_path(config, root)) if "ood/r2" in m]
    scores = [member["metrics"] for member in summary["members"]]
    return MethodResult(
        method=method,
        in_distribution=[score["test/r2"] for score in scores],
        out_of_distribution=[score["ood/r2"] for score in scores],
        steps=[record["step"] for record in metrics],
        ood_curve=[statistics.fmean(record["ood/r2"]) for record in metrics],
        seconds=summary["seconds"],
    )


def verdict(results: Sequence[MethodResult]) -> str:
    """Say whether these runs show the paper's effect, with the numbers that say so.

    With this few seeds, a lead counts if no seed of another method reaches HYLA's worst.
    """
    ood = {result.method: _undefined_last(result.out_of_distribution) for result in results}
    mean = {method: statistics.fmean(scores) for method, scores in ood.items()}
    others = [method for method in ood if method != "hyla"]
    best = max(others, key=lambda method: mean[method])
    numbers = f"OOD R² {mean['hyla']:.3f} against {mean[best]:.3f} of {best} attention"
    if min(ood["hyla"]) > max(max(ood[method]) for method in others):
        return f"HYLA is ahead out of distribution: {numbers}."
    if mean["hyla"] > mean[best]:
        return f"HYLA is ahead on average, but the seeds overlap: {numbers}."
    return f"The paper's effect does not show in these runs: HYLA reaches {numbers}."


def _undefined_last(scores: Sequence[float]) -> list[float]:
    return [-math.inf if math.isnan(score) else score for score in scores]


def figure_of(results: Sequence[MethodResult]) -> Figure:
    """Return the OOD curves and the final scores."""
    curves = Lines(
        title="Unseen combinations during training",
        x_label="step",
        y_label="OOD R²",
        x=results[0].steps,
        series=[
            Series(name=r.method, y=r.ood_curve, colour=METHOD_COLOURS[r.method]) for r in results
        ],
        y_range=(0, 1),
    )
    seen = [result.in_distribution for result in results]
    unseen = [result.out_of_distribution for result in results]
    grey, purple = PALETTE[7], PALETTE[8]  # no method's
    scores = Bars(
        title="After training",
        y_label="R²",
        x=[result.method for result in results],
        series=[
            _bars("seen combinations", seen, grey),
            _bars("unseen combinations", unseen, purple),
        ],
        y_range=(0, 1),
    )
    note = f"Means of {len(SEEDS)} seeds; the bars reach from the worst of them to the best."
    return Figure(panels=[[curves, scores]], note=note)


def _bars(name: str, by_method: Sequence[Sequence[float]], colour: str) -> Series:
    means = [statistics.fmean(scores) for scores in by_method]
    reach = [(m - min(s), max(s) - m) for m, s in zip(means, by_method, strict=True)]
    return Series(name=name, y=means, errors=reach, colour=colour)


def write_results(results: Sequence[MethodResult], folder: Path) -> list[Path]:
    """Write demo.png, and demo.html: the same as a page that needs nothing else."""
    from hyla.figures.draw_matplotlib import write_figure
    from hyla.figures.draw_plotly import write_page

    figure, page = figure_of(results), folder / "demo.html"
    picture, _ = write_figure(figure, folder / "demo")
    write_page(page, "HYLA, softmax and linear attention", [(verdict(results), figure)])
    return [picture, page]
