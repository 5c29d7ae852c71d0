"""A task's instances as a folder of Parquet files: what the exports of all tasks share.

`OUT/data/SPLIT-00000-of-00004.parquet` hold the instances, one a row, `OUT/README.md` says what
they are (and names the splits to `datasets.load_dataset`), `OUT/export.json` says the same to
programs. OUT appears all at once, when everything is written.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from hyla._errors import check_positive
from hyla._optional import needed
from hyla.tasks.base import Task
from hyla.tasks.randomness import MAX_INSTANCES

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
class ParquetDataset:
    """What is written: the first `instances` of each split."""

    schema: pa.Schema
    splits: Sequence[str]
    instances: int
    shard_size: int
    open_split: Callable[[str, int], Rows]
    """Of the name of a split, and the size of its batches: where its rows come from."""
    summary: Mapping[str, Any]
    """For export.json; its `format` says which exports a later one may replace."""
    page: str


def check_extent(task: Task, splits: Sequence[str], instances: int, shard_size: int) -> None:
    """Raise a ValueError unless so many instances of these splits can be written."""
    check_positive(instances=instances, shard_size=shard_size)
    for split in splits:
        task.check_split(split)
    if len(set(splits)) != len(splits) or not splits:
        raise ValueError(f"splits must be a non-empty set of names, got {splits}")
    if instances > MAX_INSTANCES:
        raise ValueError(f"a split has {MAX_INSTANCES} instances for each seed, got {instances}")
    if shard_size > _BATCH and shard_size % _BATCH:
        raise ValueError(f"shard_size must be a multiple of {_BATCH}, or less, got {shard_size}")


def write_dataset(
    out: Path,
    dataset: ParquetDataset,
    *,
    on_progress: Callable[[int], None] = lambda instances: None,
) -> list[Path]:
    """Write the dataset to the folder `out` and return its Parquet files.

    An earlier export of the same format in `out` is replaced; anything else there is a ValueError.
    `on_progress` is called with the number of instances written since its last call.
    """
    out, format = out.resolve(), dataset.summary["format"]
    check_destination(out, format)
    unfinished = out.with_name(f".{out.name}.unfinished-{os.getpid()}")
    (unfinished / "data").mkdir(parents=True)
    try:
        names = [
            name
            for split in dataset.splits
            for name in _write_split(unfinished, dataset, split, on_progress)
        ]
        summary = json.dumps({**dataset.summary, "files": names}, indent=1)
        (unfinished / _SUMMARY).write_text(summary + "\n", encoding="utf-8")
        (unfinished / _PAGE).write_text(dataset.page, encoding="utf-8")
        check_destination(out, format)  # again: much may have happened meanwhile
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
    present = {str(path.relative_to(out)) for path in out.rglob("*") if not path.is_dir()}
    foreign = sorted(present - _files_of_export(out, format))
    if foreign:
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


def as_numpy(values: Tensor) -> np.ndarray:
    """The numbers of a tensor on any device."""
    return values.cpu().numpy()


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
    root: Path, dataset: ParquetDataset, split: str, on_progress: Callable[[int], None]
) -> Iterator[str]:
    """Write the files of one split, and yield their names."""
    # Batches of any size tile the same instances, so the size is free to suit the shards.
    batch_size = min(_BATCH, dataset.shard_size, dataset.instances)
    rows = dataset.open_split(split, batch_size)
    starts = range(0, dataset.instances, dataset.shard_size)
    for number, first in enumerate(starts):
        name = f"data/{split}-{number:05}-of-{len(starts):05}.parquet"
        end = min(first + dataset.shard_size, dataset.instances)
        with parquet.ParquetWriter(root / name, dataset.schema, compression="zstd") as writer:
            for start in range(first, end, batch_size):
                count = min(batch_size, end - start)
                columns = dict(rows(start // batch_size, count))
                writer.write_batch(pa.RecordBatch.from_pydict(columns, schema=dataset.schema))
                on_progress(count)
        yield name


def _files_of_export(folder: Path, format: str) -> set[str]:
    """The files that an earlier export in this folder wrote; none if there was none."""
    try:
        summary = json.loads((folder / _SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return set()
    if not isinstance(summary, dict) or summary.get("format") != format:
        return set()
    return {_SUMMARY, _PAGE, *summary["files"]}


def _put_in_place(finished: Path, out: Path) -> None:
    if not out.exists():
        finished.rename(out)
        return
    # A folder cannot be renamed over one that holds files, so the old one steps aside.
    replaced = out.with_name(f".{out.name}.replaced-{os.getpid()}")
    out.rename(replaced)
    finished.rename(out)
    shutil.rmtree(replaced)
