"""What Figures 4A, 4B and A4 share: scores over training instances, a panel for each model size."""

import functools

from hyla.figures.drawing import Figure, Lines
from hyla.lab.claims import Claim, Size, ahead, percent
from hyla.lab.effects import difference, effect
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.panels import ceiling_levels, lines_by_method
from hyla.lab.grids import METHODS, scaling
from hyla.lab.paper import FIGURE_4_SOLVED
from hyla.results.selection import Estimate
from hyla.results.tables import Results, where


def panels(results: Results, size: str, name: str, metric: str, y_label: str) -> list[Lines]:
    """Return a panel for each value of `size` (`model.width_factor`, `model.num_layers`)."""
    accuracy = metric != "train/loss"
    found = []
    for value in sorted({cell.get(size) for cell in results.cells}):
        cells = where(results.cells, **{size: value})
        found.append(
            lines_by_method(
                cells,
                x=lambda cell: cell.instances / 1e6,
                metric=metric,
                title=f"{name} {value}",
                x_label="training instances (millions)",
                y_label=y_label,
                levels=ceiling_levels(results, cells) if accuracy else (),
                y_range=(0, 1) if accuracy else None,
            )
        )
    return found


def _figure(results: Results, *, size: str, name: str) -> Figure | None:
    row = panels(results, size, name, "ood/accuracy", "OOD accuracy")
    return Figure(panels=[row]) if row else None


def _claims(results: Results, *, size: str, name: str) -> list[Claim]:
    [tree] = scaling(results.conditions.scale, size)
    sizes = sorted(tree["grid"][size])
    shorten = results.conditions.shorten
    steps = sorted(max(1, count // shorten) for count in tree["grid"]["steps"])
    largest = _scores(results, **{size: sizes[-1], "steps": steps[-1]})
    smallest = _scores(results, **{size: sizes[0], "steps": steps[0]})
    return [
        *_all_solve(largest),
        *_hyla_first(smallest, f"{name} {sizes[0]}"),
        *_more_is_better(results, size, name),
    ]


def _scores(results: Results, **settings: int) -> dict[str, Estimate]:
    """Return the OOD accuracy of the methods that were measured with these settings."""
    cells = {cell.get("model__attention"): cell for cell in where(results.cells, **settings)}
    scores = {method: cells[method].ood for method in METHODS if method in cells}
    return {method: score for method, score in scores.items() if score is not None}


def _all_solve(largest: dict[str, Estimate]) -> list[Claim]:
    if len(largest) < len(METHODS):
        return []
    return [
        Claim(
            text="Given sufficient data and model size, all model classes solve 80 % of the "
            "instances of held-out tasks.",
            numbers="OOD accuracy at the largest size and number of instances: "
            + ", ".join(f"{method} {percent(score)}" for method, score in largest.items()),
            effects=[effect((1, score), above=FIGURE_4_SOLVED) for score in largest.values()],
            size=Size(least=0, why=f"the lowest less {100 * FIGURE_4_SOLVED:.0f}"),
        )
    ]


def _hyla_first(smallest: dict[str, Estimate], size: str) -> list[Claim]:
    if len(smallest) < len(METHODS):
        return []
    hyla, *others = METHODS
    return ahead(
        f"With the fewest instances and {size} HYLA outperforms linear and softmax attention.",
        ("HYLA", smallest[hyla]),
        {method: smallest[method] for method in others},
    )


def _more_is_better(results: Results, size: str, name: str) -> list[Claim]:
    """Claim a gain from the least to the most data at each size, and the other way round."""
    gains = []
    for method in METHODS:
        own = where(results.cells, model__attention=method)
        for fixed, varied in ((size, "steps"), ("steps", size)):
            for value in {cell.get(fixed) for cell in own}:
                line = sorted(where(own, **{fixed: value}), key=lambda c: c.get(varied))
                scores = [cell.ood for cell in line if cell.ood is not None]
                if len(scores) > 1:
                    gains.append(difference(scores[-1], scores[0]))
    if not gains:
        return []
    return [
        Claim(
            text=f"Scaling data and {name} enables compositional generalisation.",
            numbers=f"OOD accuracy rises along {sum(gain.value > 0 for gain in gains)} of "
            f"{len(gains)} lines, from the least to the most",
            effects=gains,
        )
    ]


def scaling_figure(letter: str, size: str, name: str, what: str) -> Experiment:
    """Return Figure 4A or 4B."""
    return Experiment(
        name=f"fig4{letter.lower()}",
        title=f"Figure 4{letter}: scaling data and {name} on SRAVEN",
        shows=f"OOD accuracy over the number of training instances for different {what}: data and "
        "size enable generalisation, and HYLA needs less of both.",
        sweeps=functools.partial(scaling, size=size),
        figure=functools.partial(_figure, size=size, name=name),
        claims=functools.partial(_claims, size=size, name=name),
    )
