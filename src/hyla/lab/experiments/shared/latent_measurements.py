"""What the latent figures measure: on the three methods at each task's own preset.

Codes are those of unseen compositions, at the query-key pairs of the authors' analysis (the first
of `Study.pairs`). Everything here is a thin layer over `hyla.latents`.
"""

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from hyla._errors import install_command
from hyla.lab.grids import METHODS, sweep
from hyla.lab.measuring import MODEL, Measurement, Measuring, NotAvailableError
from hyla.latents.analysis import Analysis
from hyla.latents.measures.geometry import (
    cosine_similarities,
    distance_table,
    embedding_table,
    mean_codes,
    sample_codes,
)
from hyla.latents.measures.probe import decoding_table
from hyla.latents.measures.swap_tables import swap_matrix, swap_table
from hyla.latents.measures.swaps import Swaps
from hyla.results.csv_table import rows_of_frame
from hyla.results.runs import Row
from hyla.results.subjects import Subject

_MOST_TARGETS = 16
_TARGET_BINS = 4
SWAPPED_CODES = ("donor, same operands", "donor")
"""Whose codes the swap matrices put in: of an instance that applies the other rule to the same
values, and of any instance with the other rule."""


def method_sweeps(task: str, *others: str) -> Callable[[str], list[dict[str, Any]]]:
    """Return the sweeps of the three methods, and of others, at the task's own preset."""
    return lambda scale: [sweep(task, scale, grid={"model.attention": (*METHODS, *others)})]


class Look(NamedTuple):
    """One look at one trained model."""

    measuring: Measuring
    subject: Subject
    best: bool
    """Whether it is its method's best on validation, whose codes are shown."""

    def size(self, *, smoke: int, laptop: int, paper: int) -> int:
        """Return the number for the scale."""
        return self.measuring.size(smoke=smoke, laptop=laptop, paper=paper)


def _measured(measure: Callable[[Look], list[Row]], measuring: Measuring) -> list[Row]:
    if find_spec("pandas") is None:  # now, not after minutes
        raise NotAvailableError(
            f"it needs pandas: {install_command('latents')}, or measure where that is, with the "
            f"runs of {measuring.root}"
        )
    rows = []
    for cell in measuring.cells:
        best = measuring.best(cell)
        for subject in measuring.subjects(cell):
            model = {name: subject.columns[name] for name in (*MODEL, "run")}
            measuring.say(f"{measure.__name__}: {model['attention']}, seed {model['seed']}")
            shown = best is not None and best["seed"] == subject.seed
            rows += [{**model, **row} for row in measure(Look(measuring, subject, best=shown))]
    if not rows:
        raise NotAvailableError(
            f"none of its models is under {measuring.root}: copy their run directories there, or "
            "train them"
        )
    return rows


_rows = functools.partial(rows_of_frame, digits=".4f")


def geometry(look: Look) -> list[Row]:
    """Measure how codes lie to each other; of the best model, also keep some to be shown."""
    subject = look.subject
    instances = look.size(smoke=48, laptop=800, paper=2000)
    analysis = Analysis(subject.model, subject.study, seed=subject.seed, instances=instances)
    rows = _clusters(look, analysis) + _similarities(analysis)
    return rows + _shown_codes(look, analysis) if look.best else rows


def _shown_codes(look: Look, analysis: Analysis) -> list[Row]:
    """Embed the codes of every layer in the plane; keep those that Figure A8 shows as they are."""
    codes, study = analysis.codes, analysis.study
    points = look.size(smoke=48, laptop=400, paper=400)
    # A tenth is less than the width of a point: t-SNE spreads them over dozens.
    plane = embedding_table(codes, points=points).round({"x": 1, "y": 1})
    embedded = _rows(plane, what="embedding")
    if study.continuous or look.subject.columns["attention"] != "softmax":
        return embedded
    final = codes.where(layer=codes.layers[-1])
    names = {study.operation: "first"}
    samples = sample_codes(final, study.operation, per_value=8)
    means = mean_codes(final, study.operation)
    return [
        *embedded,
        *_rows(samples.rename(columns=names), what="sample"),
        *_rows(means.rename(columns=names), what="mean"),
    ]


def _clusters(look: Look, analysis: Analysis) -> list[Row]:
    """Compare distances between and within operations, and between and within target values."""
    study = analysis.study
    points = look.size(smoke=40, laptop=300, paper=500)
    resamples = look.size(smoke=20, laptop=200, paper=1000)
    rows = []
    for _, split in study.decoded:
        table = analysis.codes if split == study.unseen else analysis.codes_of(split)
        table = table.with_columns(target=_classes_of_targets(table["target"]))
        for label in (study.operation, "target"):
            distances = distance_table(table, label, points=points, resamples=resamples)
            rows += _rows(distances, what="clusters", split=split, label=label)
    return rows


def _classes_of_targets(targets: np.ndarray) -> np.ndarray:
    """Return the targets as they are where many share each, else in bins of equal size."""
    if len(np.unique(targets)) <= _MOST_TARGETS:
        return targets
    edges = np.quantile(targets, np.linspace(0, 1, _TARGET_BINS + 1)[1:-1])
    return np.digitize(targets, edges)


def _similarities(analysis: Analysis) -> list[Row]:
    """Compare the mean codes of the operations, in every layer."""
    if analysis.study.continuous:
        return []  # fuzzy logic has dozens of functions, and the paper no such figure of them
    similarities = cosine_similarities(analysis.codes, analysis.study.operation)
    return _rows(similarities, what="similarity")


def decoding(look: Look) -> list[Row]:
    """Decode the operation, or its terms, from the codes, and from what else it may be read off."""
    subject = look.subject
    table = decoding_table(
        subject.model,
        subject.study,
        seed=subject.seed,
        untrained=subject.untrained,
        pairs=list(subject.study.pairs)[:1],
        instances=look.size(smoke=48, laptop=1000, paper=2000),
    )
    return _rows(table.query("`class` == 'all'"))


def swapping(look: Look) -> list[Row]:
    """Give every operation's code to every other, and compare with controls."""
    subject = look.subject
    swaps = Swaps(
        subject.model,
        subject.study,
        seed=subject.seed,
        instances=look.size(smoke=48, laptop=500, paper=500),
        # Barely trained models answer nothing right that could be counted.
        solved_only=look.measuring.conditions.scale != "smoke",
    )
    matrices = [swap_matrix(swaps, code=code) for code in SWAPPED_CODES]
    return [
        *_rows(swap_table(swaps), what="table"),
        *(row for matrix in matrices for row in _rows(matrix, what="matrix")),
    ]


def on(task: str, measure: Callable[[Look], list[Row]]) -> Measurement:
    """Return the measurement of a task's models; its table is named after both."""
    return Measurement(
        name=f"{measure.__name__}-{task}",
        measure=functools.partial(_measured, measure),
        key=MODEL,
    )
