"""What the latent figures measure: on the three methods at each task's own preset.

Codes are those of unseen compositions, at the query-key pairs of the authors' analysis (the first
of `Study.pairs`). Everything here is a thin layer over `hyla.latents`.
"""

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hyla.lab.grids import METHODS, sweep
from hyla.lab.measuring import Measurement, Measuring
from hyla.latents.capture import record_codes
from hyla.latents.geometry import (
    cosine_similarities,
    distance_table,
    embedding_table,
    mean_codes,
    sample_codes,
)
from hyla.latents.probe import decoding_table
from hyla.latents.studies import Study, study_of
from hyla.latents.swap_tables import swap_matrix, swap_table
from hyla.latents.swaps import Swaps
from hyla.latents.table import CodeTable
from hyla.nn import Transformer
from hyla.results.runs import Row, untrained_like
from hyla.results.tables import Cell

if TYPE_CHECKING:
    import pandas

_MOST_TARGETS = 16
_TARGET_BINS = 4
SWAPPED_CODES = ("donor, same operands", "donor")
"""Whose codes the swap matrices put in: of an instance that applies the other rule to the same
values, and of any instance with the other rule."""


def method_sweeps(task: str) -> Callable[[str], list[dict[str, Any]]]:
    """Return the sweeps of the three methods at the task's own preset."""
    return lambda scale: [sweep(task, scale, grid={"model.attention": METHODS})]


class Subject:
    """A trained model under study."""

    def __init__(
        self, measuring: Measuring, cell: Cell, row: Row, model: Transformer, *, best: bool
    ):
        self.measuring = measuring
        self.model = model
        self.best = best
        """Whether it is its method's best on validation, whose codes are shown."""
        self.attention: str = str(cell.config.model.attention)
        self.seed: int = row["seed"]
        self.study: Study = study_of(cell.config.build_task())

    @functools.cached_property
    def codes(self) -> CodeTable:
        """The codes of unseen compositions with their labels."""
        return self.codes_of(self.study.unseen)

    def codes_of(self, split: str) -> CodeTable:
        """Record the codes of a split."""
        specimens = self.study.sample(
            split,
            seed=self.seed,
            instances=self.measuring.size(smoke=48, laptop=800, paper=2000),
            device=self.measuring.device,
        )
        pairs = next(iter(self.study.pairs.values()))
        return record_codes(self.model, specimens.inputs, pairs=pairs, labels=specimens.labels)


def _measured(measure: Callable[[Subject], list[Row]], measuring: Measuring) -> list[Row]:
    rows = []
    for cell in measuring.cells:
        for i, (row, model) in enumerate(measuring.models(cell)):
            subject = Subject(measuring, cell, row, model, best=i == 0)
            origin = {"attention": subject.attention, "seed": subject.seed}
            measuring.say(f"{measure.__name__}: {subject.attention}, seed {subject.seed}")
            rows += [{**origin, **measured} for measured in measure(subject)]
    return rows


def _rows(table: "pandas.DataFrame", **columns: Any) -> list[Row]:
    """Return a table as rows, with the digits that a figure needs, and None for what is missing."""

    def plain(name: str, value: Any) -> Any:
        if isinstance(value, float):
            if math.isnan(value):
                return None
            # pandas makes a column of layers real if one is missing. Rounded as a Python number: in
            # float32, as codes are, it would still take 17 digits to write.
            return int(value) if name.endswith("layer") else round(value, 4)
        return value

    return [
        {**columns, **{str(name): plain(str(name), value) for name, value in record.items()}}
        for record in table.to_dict("records")
    ]


def geometry(subject: Subject) -> list[Row]:
    """Measure how codes lie to each other; of the best model, also keep some to be shown."""
    rows = _clusters(subject) + _similarities(subject)
    return rows + _shown_codes(subject) if subject.best else rows


def _shown_codes(subject: Subject) -> list[Row]:
    """Embed the codes of every layer in the plane; keep those that Figure A8 shows as they are."""
    points = subject.measuring.size(smoke=48, laptop=400, paper=800)
    embedded = _rows(embedding_table(subject.codes, points=points), what="embedding")
    if subject.study.continuous or subject.attention != "softmax":
        return embedded
    final = subject.codes.where(layer=subject.codes.layers[-1])
    names = {subject.study.operation: "first"}
    samples = sample_codes(final, subject.study.operation, per_value=8)
    means = mean_codes(final, subject.study.operation)
    return [
        *embedded,
        *_rows(samples.rename(columns=names), what="sample"),
        *_rows(means.rename(columns=names), what="mean"),
    ]


def _clusters(subject: Subject) -> list[Row]:
    """Compare distances between and within operations, and between and within target values."""
    study = subject.study
    points = subject.measuring.size(smoke=40, laptop=300, paper=500)
    resamples = subject.measuring.size(smoke=20, laptop=200, paper=1000)
    rows = []
    for _, split in study.decoded:
        table = subject.codes if split == study.unseen else subject.codes_of(split)
        columns = {**table.columns, "target": _classes_of_targets(table["target"])}
        table = CodeTable(codes=table.codes, columns=columns)
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


def _similarities(subject: Subject) -> list[Row]:
    """Compare the mean codes of the operations, in every layer."""
    if subject.study.continuous:
        return []  # fuzzy logic has dozens of functions, and the paper no such figure of them
    return _rows(cosine_similarities(subject.codes, subject.study.operation), what="similarity")


def decoding(subject: Subject) -> list[Row]:
    """Decode the operation, or its terms, from the codes, and from what else it may be read off."""
    table = decoding_table(
        subject.model,
        subject.study,
        seed=subject.seed,
        untrained=untrained_like(subject.model, subject.seed),
        pairs=list(subject.study.pairs)[:1],
        instances=subject.measuring.size(smoke=48, laptop=1000, paper=2000),
    )
    return _rows(table.query("`class` == 'all'"))


def swapping(subject: Subject) -> list[Row]:
    """Give every operation's code to every other, and compare with controls."""
    swaps = Swaps(
        subject.model,
        subject.study,
        seed=subject.seed,
        instances=subject.measuring.size(smoke=48, laptop=500, paper=500),
        # Barely trained models answer nothing right that could be counted.
        solved_only=subject.measuring.setting.scale != "smoke",
    )
    matrices = [swap_matrix(swaps, code=code) for code in SWAPPED_CODES]
    return [
        *_rows(swap_table(swaps), what="table"),
        *(row for matrix in matrices for row in _rows(matrix, what="matrix")),
    ]


def on(task: str, measure: Callable[[Subject], list[Row]]) -> Measurement:
    """Return the measurement of a task's models; its table is named after both."""
    return Measurement(
        name=f"{measure.__name__}-{task}", measure=functools.partial(_measured, measure)
    )
