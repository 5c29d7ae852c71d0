"""Latent codes as a table: one row for a layer and a query-key pair of an instance."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float32

from hyla._errors import nearest
from hyla._optional import required

if TYPE_CHECKING:
    import pandas

KEYS = ("layer", "kind", "instance", "query", "key")
"""The columns that every table has: `kind` is self, encoder, decoder or cross; `instance` counts
the recorded sequences; `query` and `key` are positions in them."""

_MOST_VALUES = 12  # that an error lists


@dataclass(frozen=True, kw_only=True, eq=False)
class CodeTable:
    """Codes with what they belong to. The columns are those of `KEYS` and the labels."""

    codes: Float32[np.ndarray, "N H"]
    """NaN beyond the heads of a layer that has fewer than others."""
    columns: Mapping[str, np.ndarray]
    residual: Float32[np.ndarray, "N E"] | None = None
    """What the attention layer read at the query (the normalised residual stream), if recorded."""

    def __post_init__(self):
        for name in KEYS:
            if name not in self.columns:
                raise ValueError(f"a table of codes needs the column {name!r}")
        for name, column in self.columns.items():
            if len(column) != len(self.codes):
                raise ValueError(
                    f"column {name!r} has {len(column)} rows, the codes have {len(self.codes)}"
                )

    def __len__(self) -> int:
        return len(self.codes)

    def __repr__(self) -> str:
        size, coordinates = self.codes.shape
        return (
            f"CodeTable({size:,} codes of {coordinates} coordinates, layers {self.layers}, "
            f"labels {list(self.labels)})"
        )

    def __getitem__(self, name: str) -> np.ndarray:
        check_column(name, self.columns)
        return self.columns[name]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the columns that are not keys."""
        return tuple(name for name in self.columns if name not in KEYS)

    @property
    def layers(self) -> list[int]:
        """The layers in the table."""
        return np.unique(self["layer"]).tolist()

    def where(self, **wanted: Any) -> "CodeTable":
        """Return the rows whose columns have the wanted values; a list means any of them.

        Coordinates that none of these rows has are dropped.

        Raises:
            KeyError: there is no such column.
            ValueError: no row has a value that is wanted of one column, as where it is mistyped.
        """
        chosen = np.ones(len(self), dtype=bool)
        for name, value in wanted.items():
            chosen &= rows_with(value, name, self[name])
        part = self.rows(chosen)
        used = ~np.isnan(part.codes).all(axis=0) if len(part) else slice(None)
        return CodeTable(codes=part.codes[:, used], columns=part.columns, residual=part.residual)

    def rows(self, index: np.ndarray) -> "CodeTable":
        """Return the rows of an index or a mask."""
        return CodeTable(
            codes=self.codes[index],
            columns={name: column[index] for name, column in self.columns.items()},
            residual=None if self.residual is None else self.residual[index],
        )

    def joined_pairs(self) -> "CodeTable":
        """Join the codes of an instance's pairs into one row; of one layer and kind at a time."""
        for name in ("layer", "kind"):
            if len(np.unique(self[name])) > 1:
                raise ValueError(f"choose one {name} first: {name}s do not share coordinates")
        order = np.lexsort((self["key"], self["query"], self["instance"]))
        instances, counts = np.unique(self["instance"], return_counts=True)
        if len(np.unique(counts)) > 1:
            raise ValueError("the instances have different numbers of pairs: choose pairs first")
        ordered = self.rows(order)
        first = ordered.rows(np.arange(0, len(self), counts[0] if len(counts) else 1))
        return CodeTable(
            codes=ordered.codes.reshape(len(instances), -1),
            columns=first.columns,
            residual=first.residual,
        )

    def separate_pairs(self) -> "CodeTable":
        """Take every pair for an instance of its own, as where pairs are tokens of a text."""
        keys = np.stack([self["instance"], self["query"], self["key"]], axis=1)
        instance = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
        return self.with_columns(instance=instance)

    def with_labels(self, **labels: np.ndarray) -> "CodeTable":
        """Add columns that hold a value for each instance."""
        return self.with_columns(
            **{name: np.asarray(values)[self["instance"]] for name, values in labels.items()}
        )

    def with_columns(self, **columns: np.ndarray) -> "CodeTable":
        """Add or replace columns that hold a value for each row."""
        return CodeTable(
            codes=self.codes, columns={**self.columns, **columns}, residual=self.residual
        )

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the columns, and the coordinates of the code as `code 0`, `code 1`, ..."""
        codes = {f"code {h}": self.codes[:, h] for h in range(self.codes.shape[1])}
        return required("pandas").DataFrame({**self.columns, **codes})


def check_column(name: str, columns: Iterable[str]) -> None:
    """Raise a KeyError that names the columns there are."""
    columns = list(columns)
    if name not in columns:
        raise KeyError(f"there is no column {name!r}{nearest(name, columns)}, only {columns}")


def rows_with(wanted: Any, name: str, column: np.ndarray) -> Bool[np.ndarray, " N"]:
    """Whether each row of a column has the wanted value, or one of several; see `where`."""
    chosen = np.isin(column, as_values(wanted))
    if len(column) and not chosen.any():
        there = np.unique(column).tolist()
        shown = ", ".join(map(repr, there[:_MOST_VALUES]))
        raise ValueError(
            f"no row has {name}={wanted!r}{nearest(wanted, map(str, there))}; there are "
            f"{shown}{', ...' if len(there) > _MOST_VALUES else ''}"
        )
    return chosen


def as_values(wanted: Any) -> list[Any]:
    """Return what is wanted of a column as a list: one value or several."""
    return list(wanted) if isinstance(wanted, list | tuple | set | range) else [wanted]


def concatenate(tables: Iterable[CodeTable]) -> CodeTable:
    """Put tables with the same columns below each other."""
    tables = list(tables)
    if not tables:
        raise ValueError("there are no tables to concatenate")
    heads = max(table.codes.shape[1] for table in tables)
    recorded = [table.residual for table in tables if table.residual is not None]
    return CodeTable(
        codes=np.concatenate([_widened(table.codes, heads) for table in tables]),
        columns={
            name: np.concatenate([table[name] for table in tables]) for name in tables[0].columns
        },
        residual=np.concatenate(recorded) if len(recorded) == len(tables) else None,
    )


def _widened(codes: np.ndarray, heads: int) -> np.ndarray:
    missing = heads - codes.shape[1]
    return np.pad(codes, ((0, 0), (0, missing)), constant_values=np.nan) if missing else codes
