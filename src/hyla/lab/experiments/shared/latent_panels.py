"""Figures of latent codes in the lab: of the methods that an experiment compares, over seeds."""

from collections.abc import Callable, Mapping, Sequence

from hyla.figures.drawing import METHOD_COLOURS, Figure, Lines
from hyla.lab.effects import Effect, effect
from hyla.lab.experiments.shared.code_panels import (
    chosen,
    clouds,
    decoded_by_layer,
    scores_by_layer,
)
from hyla.lab.experiments.shared.panels import label_of
from hyla.lab.grids import in_usual_order
from hyla.results.runs import Row
from hyla.results.selection import Estimate, estimate_of
from hyla.results.tables import Results

READINGS = {
    "ood_fixed_query": "one query point for all functions",
    "ood_fixed_context": "one context for all functions, as the paper's text has it",
}
"""How the codes of fuzzy logic are read: the split of unseen functions, and what it means."""


def rows_of(results: Results, **wanted: object) -> list[Row]:
    """Return the measured rows with these values."""
    return chosen(results.rows, **wanted)


def last_layer(rows: Sequence[Row]) -> int:
    """Return the number of the last layer in the rows."""
    return max(row["layer"] for row in rows)


def methods_in(rows: Sequence[Row]) -> list[str]:
    """Return the methods of the rows."""
    return in_usual_order(row["attention"] for row in rows)


def of_the_best(results: Results, rows: Sequence[Row]) -> list[Row]:
    """Return those of the model of each method that is best on validation.

    Codes are shown of one. A table has those of two where a better one joined it later.
    """
    shown = []
    for method in methods_in(rows):
        own = chosen(rows, attention=method)
        cell = results.find(model__attention=method)
        ranked = sorted(cell.picked, key=cell.validated, reverse=True) if cell else own
        seeds = {row["seed"] for row in own}
        best = next((row["seed"] for row in ranked if row["seed"] in seeds), own[0]["seed"])
        shown += chosen(own, seed=best)
    return shown


def seeds_in(rows: Sequence[Row]) -> str:
    """Say how many models the rows are of: `3 seeds of each method`, or how many of which."""
    counts = {
        label_of(method): len({row["seed"] for row in rows if row["attention"] == method})
        for method in methods_in(rows)
    }
    texts = {name: f"{n} seed{'s' * (n != 1)}" for name, n in counts.items()}
    if len(texts) > 1 and len(set(texts.values())) == 1:
        return f"{texts.popitem()[1]} of each method"
    return ", ".join(f"{text} of {name}" for name, text in texts.items())


def codes_figure(
    colours: dict[str, str], *, all_layers: bool, note: str = ""
) -> Callable[[Results], Figure | None]:
    """Draw rows of panels for each colour (label → what it is called): methods, then layers."""

    def figure(results: Results) -> Figure | None:
        embedded = of_the_best(results, rows_of(results, what="embedding"))
        if not embedded:
            return None
        shown = {}
        for method in methods_in(embedded):
            own = chosen(embedded, attention=method)
            shown[label_of(method)] = own if all_layers else chosen(own, layer=last_layer(own))
        whose = ", ".join(f"{name} seed {own[0]['seed']}" for name, own in shown.items())
        said = (
            f"{note} Codes of each method's model that is best on validation, among "
            f"{seeds_in(results.rows)}: {whose}."
        )
        return Figure(panels=clouds(shown, colours), note=said.strip())

    return figure


def f1_by_layer(results: Results, label: str, split: str) -> Lines | None:
    """Return the F1 score of decoding `label` from the codes of each layer, for each method."""
    codes = rows_of(results, predictor="code", metric="f1", label=label, split=split)
    lines = {method: _look_of(method) for method in methods_in(codes)}
    return scores_by_layer(codes, "attention", lines, f"{label}, decoded from the code", "F1")


def _look_of(method: str) -> tuple[str, str, bool]:
    """Return a method's name and colour: variants have their preset's colour, and are dashed."""
    preset, *changes = method.split(".")
    return label_of(method), METHOD_COLOURS[preset], bool(changes)


def controls_by_layer(results: Results, label: str, split: str, method: str) -> Lines | None:
    """Return what else the label can be decoded from, beside one method's code.

    The code looks like its method in `f1_by_layer`.
    """
    return decoded_by_layer(
        rows_of(results, metric="f1", label=label, split=split, attention=method),
        title=f"{label}, {label_of(method)}: code and controls",
        metric="F1",
        code=_look_of(method),
        # All methods have the same controls, in whatever order: a control has one colour.
        controls=sorted({row["predictor"] for row in results.rows} - {"code"}),
    )


def f1_by_seed(
    results: Results,
    label: str,
    split: str,
    method: str,
    predictor: str,
    layer: int | None = None,
) -> dict[int, float]:
    """Return one decoding score of each seed."""
    where = {"label": label, "split": split, "attention": method, "predictor": predictor}
    rows = rows_of(results, metric="f1", layer=layer, **where)
    return {row["seed"]: row["value"] for row in rows if row["value"] is not None}


def over(scores: Mapping[int, float]) -> Estimate:
    """Return the mean over seeds."""
    return estimate_of(list(scores.values()))


def lead(scores: Mapping[int, float], others: Mapping[int, float]) -> Effect:
    """Return by how much scores are above others of the same models, seed by seed."""
    return effect(
        (1, estimate_of([scores[seed] - others[seed] for seed in scores.keys() & others]))
    )
