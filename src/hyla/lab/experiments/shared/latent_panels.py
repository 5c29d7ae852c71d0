"""Figures of latent codes in the lab: of the methods that an experiment compares, over seeds."""

from collections.abc import Mapping, Sequence

from hyla.figures.drawing import METHOD_COLOURS, Figure, Lines
from hyla.lab.effects import Effect, effect
from hyla.lab.experiments.shared.code_panels import (
    chosen,
    clouds,
    decoded_by_layer,
    scores_by_layer,
)
from hyla.lab.experiments.shared.panels import label_of
from hyla.lab.grids import METHODS
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
    """Return the methods of the rows: the paper's three in the usual order, then others."""
    found = {row["attention"] for row in rows}
    return [*(method for method in METHODS if method in found), *sorted(found - {*METHODS})]


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


def figure_of_codes(
    results: Results, colours: dict[str, str], *, all_layers: bool, note: str = ""
) -> Figure | None:
    """Return rows of panels for each colour (label → what it is called): methods, then layers."""
    embedded = of_the_best(results, rows_of(results, what="embedding"))
    if not embedded:
        return None
    methods = methods_in(embedded)
    shown = {}
    for method in methods:
        own = chosen(embedded, attention=method)
        shown[label_of(method)] = own if all_layers else chosen(own, layer=last_layer(own))
    seeds = {row["attention"]: row["seed"] for row in embedded}
    whose = ", ".join(f"{label_of(method)} seed {seeds[method]}" for method in methods)
    note = (
        f"{note} Codes of each method's model that is best on validation, among "
        f"{seeds_in(results.rows)}: {whose}."
    )
    return Figure(panels=clouds(shown, colours), note=note.strip())


def f1_by_layer(results: Results, label: str, split: str) -> Lines | None:
    """Return the F1 score of decoding `label` from the codes of each layer, for each method."""
    codes = rows_of(results, predictor="code", metric="f1", label=label, split=split)
    lines = {
        method: (label_of(method), METHOD_COLOURS[method], False) for method in methods_in(codes)
    }
    return scores_by_layer(codes, "attention", lines, f"{label}, decoded from the code", "F1")


def controls_by_layer(results: Results, label: str, split: str, method: str) -> Lines | None:
    """Return what else the label can be decoded from, beside one method's code.

    The code has the colour and the name of its method, as in `f1_by_layer`.
    """
    return decoded_by_layer(
        rows_of(results, metric="f1", label=label, split=split, attention=method),
        title=f"{label}, {label_of(method)}: code and controls",
        metric="F1",
        code=(label_of(method), METHOD_COLOURS[method]),
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
