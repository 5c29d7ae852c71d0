"""A task's instances as a folder of Parquet files: what the exports of all tasks share.

`OUT/data/SPLIT-00000-of-00004.parquet` hold the instances, one a row, `OUT/README.md` says what
they are (and names the splits to `datasets.load_dataset`), `OUT/export.json` says the same to
programs. OUT appears all at once, when everything is written.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from hyla import __version__
from hyla._errors import check_positive
from hyla._optional import needed
from hyla.tasks.base import Manifest, Task
from hyla.tasks.randomness import MAX_INSTANCES
from hyla.tasks.study import as_numpy

with needed("tables", "Parquet needs pyarrow"):
    import pyarrow as pa
    from pyarrow import parquet

SHARD_SIZE = 2**18
"""Instances in a file, unless told otherwise."""
_SUMMARY = "export.json"
_PAGE = "README.md"
_BATCH = 2**15  # instances made at a time

Rows: TypeAlias = Callable[[int, int], Mapping[str, pa.Array]]
"""Of the number of a batch, and how many of its instances are wanted: their columns."""


@dataclass(frozen=True, kw_only=True)
class Export(ABC):
    """What is written of a task: the first `instances` of each split, as the seed makes them."""

    name: ClassVar[str]
    """Part of the format's name and of the key under which files describe themselves."""

    config: Any
    """The task's settings."""
    splits: tuple[str, ...]
    instances: int
    seed: int = 0
    shard_size: int = SHARD_SIZE
    """Instances in a file."""

    def __post_init__(self) -> None:
        check_positive(instances=self.instances, shard_size=self.shard_size)
        for split in self.splits:
            self.task.check_split(split)
        if len(set(self.splits)) != len(self.splits) or not self.splits:
            raise ValueError(f"splits must be a non-empty set of names, got {self.splits}")
        if self.instances > MAX_INSTANCES:
            raise ValueError(
                f"a split has {MAX_INSTANCES} instances for each seed, got {self.instances}"
            )
        if self.shard_size > _BATCH and self.shard_size % _BATCH:
            raise ValueError(
                f"shard_size must be a multiple of {_BATCH}, or less, got {self.shard_size}"
            )
        _ = self.manifest  # complains about settings that leave nothing to train on or to hold out

    @property
    @abstractmethod
    def task(self) -> Task:
        """The task with these settings."""

    @abstractmethod
    def column_types(self) -> dict[str, pa.DataType]:
        """The columns and their types."""

    @abstractmethod
    def page(self) -> str:
        """The datasheet as Markdown."""

    @abstractmethod
    def open_split(self, split: str, batch_size: int, device: torch.device | str) -> Rows:
        """Where the rows of a split come from, in batches of this size."""

    @property
    def format(self) -> str:
        """For export.json: an export replaces one of its own format alone."""
        return f"hyla-{self.name}-export-1"

    @cached_property
    def manifest(self) -> Manifest:
        """The combinations of each side."""
        return self.task.manifest(self.seed)

    def describe(self) -> dict[str, Any]:
        """These settings with what follows from them, for JSON."""
        return {
            "format": self.format,
            "hyla_version": __version__,
            "config": dataclasses.asdict(self.config),
            "splits": list(self.splits),
            "instances_per_split": self.instances,
            "seed": self.seed,
            "manifest_hash": self.manifest.hash,
        }

    def schema(self) -> pa.Schema:
        """The columns and their types; the description of the dataset is in the metadata."""
        types = self.column_types()
        fields = [pa.field(name, kind, nullable=False) for name, kind in types.items()]
        about = json.dumps(self.describe()).encode()
        return pa.schema(fields, metadata={f"hyla.{self.name}".encode(): about})


def export(
    out: Path,
    settings: Export,
    *,
    device: torch.device | str = "cpu",
    on_progress: Callable[[int], None] = lambda instances: None,
) -> list[Path]:
    """Write the dataset to the folder `out` and return its Parquet files.

    An earlier export of the same format in `out` is replaced; anything else there is a ValueError.
    `on_progress` is called with the number of instances written since its last call.
    """
    out = out.resolve()
    check_destination(out, settings.format)
    unfinished = out.with_name(f".{out.name}.unfinished-{os.getpid()}")
    (unfinished / "data").mkdir(parents=True)
    try:
        names = [
            name
            for split in settings.splits
            for name in _write_split(unfinished, settings, split, device, on_progress)
        ]
        about = {**settings.describe(), "combinations": settings.manifest.sides, "files": names}
        summary = json.dumps(about, indent=1)
        (unfinished / _SUMMARY).write_text(summary + "\n", encoding="utf-8")
        (unfinished / _PAGE).write_text(settings.page(), encoding="utf-8")
        check_destination(out, settings.format)  # again: much may have happened meanwhile
        _put_in_place(unfinished, out)
    except BaseException:
        shutil.rmtree(unfinished)
        raise
    return [out / name for name in names]


def check_destination(out: Path, format: str) -> None:
    """Raise a ValueError unless `out` is free, empty, or an earlier export and nothing more."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"{out} is a file; the export needs a folder of its own")
    earlier = _earlier_export(out)
    found = earlier.get("format", format)
    if found != format:
        raise ValueError(
            f"{out} holds an export of another format, {found}, not {format}; name a folder that "
            "does not exist"
        )
    present = {str(path.relative_to(out)) for path in out.rglob("*") if not path.is_dir()}
    own = {_SUMMARY, _PAGE, *earlier["files"]} if earlier else set()
    if foreign := sorted(present - own):
        raise ValueError(
            f"{out} holds {foreign[0]!r}, which no export wrote; name a folder that does not exist"
        )


def nested_lists(values: Tensor) -> pa.Array:
    """An array of rows, each a (nested) list of fixed size, of the tensor's own type."""
    array = pa.array(as_numpy(values.flatten()))
    for size in reversed(values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


def named_lists(names: Sequence[str], numbers: Tensor) -> pa.Array:
    """An array of rows, each a list of the names that have these numbers."""
    taken = pa.array(names).take(pa.array(as_numpy(numbers.flatten())))
    return pa.FixedSizeListArray.from_arrays(taken, numbers.shape[-1])


def addresses(split: str, seed: int, start: int, count: int) -> dict[str, pa.Array]:
    """Where instances are found in hyla: split, seed and index."""
    return {
        "split": pa.repeat(split, count),
        "seed": pa.repeat(seed, count),
        "index": pa.array(np.arange(start, start + count)),
    }


ADDRESS_TYPES = {"split": pa.string(), "seed": pa.int64(), "index": pa.int64()}
"""Of the columns that `addresses` makes."""


def head_of_page(name: str, splits: Sequence[str]) -> str:
    """What tells `datasets.load_dataset` where the splits are."""
    files = [f"  - split: {split}\n    path: data/{split}-*.parquet" for split in splits]
    return "\n".join(
        [
            *("---", "license: mit", f"pretty_name: {name}"),
            *("configs:", "- config_name: default", "  data_files:", *files, "---"),
        ]
    )


def columns_of_page(schema: pa.Schema, meanings: Mapping[str, str]) -> str:
    """The columns, their types and their meanings as a table."""
    lines = (f"| `{field.name}` | `{field.type}` | {meanings[field.name]} |" for field in schema)
    return "\n".join(["| name | type | meaning |", "|---|---|---|", *lines])


def _write_split(
    root: Path,
    settings: Export,
    split: str,
    device: torch.device | str,
    on_progress: Callable[[int], None],
) -> Iterator[str]:
    """Write the files of one split, and yield their names."""
    # Batches of any size tile the same instances, so the size is free to suit the shards.
    batch_size = min(_BATCH, settings.shard_size, settings.instances)
    rows, schema = settings.open_split(split, batch_size, device), settings.schema()
    starts = range(0, settings.instances, settings.shard_size)
    for number, first in enumerate(starts):
        name = f"data/{split}-{number:05}-of-{len(starts):05}.parquet"
        end = min(first + settings.shard_size, settings.instances)
        with parquet.ParquetWriter(root / name, schema, compression="zstd") as writer:
            for start in range(first, end, batch_size):
                count = min(batch_size, end - start)
                columns = dict(rows(start // batch_size, count))
                writer.write_batch(pa.RecordBatch.from_pydict(columns, schema=schema))
                on_progress(count)
        yield name


def _earlier_export(folder: Path) -> dict[str, Any]:
    """What an earlier export in this folder says of itself; nothing if there was none."""
    try:
        summary = json.loads((folder / _SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    is_export = isinstance(summary, dict) and {"format", "files"} <= summary.keys()
    return summary if is_export else {}


def _put_in_place(finished: Path, out: Path) -> None:
    if not out.exists():
        finished.rename(out)
        return
    # A folder cannot be renamed over one that holds files, so the old one steps aside.
    replaced = out.with_name(f".{out.name}.replaced-{os.getpid()}")
    out.rename(replaced)
    finished.rename(out)
    shutil.rmtree(replaced)
