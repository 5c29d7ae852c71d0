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
from hyla.training import config_from_tree, load_preset, merge, run_path, train
from hyla.training.run.reading import read_metrics

SCALE = "laptop"
METHODS = ("hyla", "softmax", "linear")
SEEDS = (0, 1)
# Okabe and Ito's palette: told apart by colour-blind readers too.
COLOURS = {"hyla": "#D55E00", "softmax": "#0072B2", "linear": "#009E73"}


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


def write_figure(results: Sequence[MethodResult], path: Path) -> None:
    """Draw the OOD curves and the final scores as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (curves, bars) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for position, result in enumerate(results):
        colour = COLOURS[result.method]
        curves.plot(result.steps, result.ood_curve, color=colour, label=result.method)
        for offset, scores, alpha in (
            (-0.2, result.in_distribution, 0.4),
            (0.2, result.out_of_distribution, 1.0),
        ):
            bars.bar(position + offset, statistics.fmean(scores), 0.38, color=colour, alpha=alpha)
            bars.plot([position + offset] * len(scores), scores, "k.", markersize=4)
    curves.set(xlabel="step", ylabel="OOD R²", ylim=(0, 1), title="Unseen combinations of terms")
    curves.legend(frameon=False)
    bars.set(ylabel="R²", ylim=(0, 1), title="Seen (pale) and unseen combinations")
    bars.set_xticks(range(len(results)), [result.method for result in results])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def write_page(results: Sequence[MethodResult], path: Path) -> None:
    """Write the same as one interactive HTML file that needs nothing else."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    titles = ("Unseen combinations during training", "Seen (pale) and unseen combinations")
    figure = make_subplots(rows=1, cols=2, subplot_titles=titles)
    for result in results:
        colour = COLOURS[result.method]
        curve = go.Scatter(
            x=result.steps, y=result.ood_curve, name=result.method, line={"color": colour}
        )
        figure.add_trace(curve, row=1, col=1)
        for name, scores, opacity in (
            ("seen", result.in_distribution, 0.4),
            ("unseen", result.out_of_distribution, 1.0),
        ):
            bar = go.Bar(
                x=[f"{result.method}, {name}"],
                y=[statistics.fmean(scores)],
                marker={"color": colour, "opacity": opacity},
                text=[", ".join(f"{score:.3f}" for score in scores)],
                showlegend=False,
            )
            figure.add_trace(bar, row=1, col=2)
    figure.update_yaxes(range=[0, 1], title_text="R²")
    figure.update_xaxes(title_text="step", row=1, col=1)
    figure.update_layout(template="plotly_white", title=verdict(results), height=480)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(path, include_plotlyjs=True, full_html=True)
