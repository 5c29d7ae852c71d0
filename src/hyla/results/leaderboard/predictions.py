"""Files of answers: a Parquet table with a row for each of a variant's evaluation instances.

`index` is the number of the instance, `prediction` the list of integers of the panel asked for.
Rows come in any order; further columns do not matter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from hyla._optional import needed
from hyla.tasks.sraven.variants import INSTANCES, Variant, variant_named

with needed("tables", "Parquet needs pyarrow"):
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet

_COLUMNS = ("index", "prediction")
_ABOUT = b"hyla"  # the key in the file's metadata


def write_predictions(
    path: Path, predictions: Int64[Tensor, "n m"], about: Mapping[str, Any] | None = None
) -> None:
    """Write answers to all instances, in their order, and what is known `about` who gave them."""
    flat = pa.array(predictions.to(torch.int32).flatten().cpu().numpy())
    lists = pa.FixedSizeListArray.from_arrays(flat, predictions.shape[1])
    table = pa.table([pa.array(np.arange(len(predictions))), lists], names=_COLUMNS)
    if about is not None:
        table = table.replace_schema_metadata({_ABOUT: json.dumps(about)})
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path)


def read_about(path: Path) -> dict[str, Any]:
    """Read what a file says about who gave its answers: nothing, if `predict` did not write it."""
    metadata = _read(path, parquet.read_schema).metadata or {}
    return json.loads(metadata.get(_ABOUT, b"{}"))


def answered_variant(asked: str | None, told: Mapping[str, Any]) -> Variant:
    """Return the variant that a file answers; a ValueError if it is not the one asked for."""
    name = asked or told.get("variant")
    if name is None:
        raise ValueError("say which variant is answered by --variant: the file does not")
    variant = variant_named(name)
    if told.get("variant", name) != name:
        raise ValueError(
            f"the file answers variant {told['variant']}, not {name}: score it with --variant "
            f"{told['variant']}, or answer {name}"
        )
    if told.get("hash", variant.published["hash"]) != variant.published["hash"]:
        raise ValueError(
            f"the file answers variant {name} as it was, and it is another now: answer it again"
        )
    return variant


def read_predictions(path: Path, variant: Variant) -> Int64[Tensor, "n m"]:
    """Read answers to all instances, put in their order; a ValueError names the row that is wrong.

    Rows are counted from 0, as `pandas.read_parquet` shows them.
    """
    table = _read_columns(path)
    index = _index(path, table["index"])
    values = _values(path, table["prediction"], variant)
    order = np.full(INSTANCES, -1)
    order[index] = np.arange(len(index))
    missing = np.flatnonzero(order < 0)
    if len(missing):
        raise ValueError(
            f"{path}: no row answers instance {missing[0]} ({len(missing):,} of the {INSTANCES:,} "
            f"of variant {variant.name} have no answer)"
        )
    return torch.from_numpy(values[order])


def _read(path: Path, how: Callable[[Path], Any]) -> Any:
    if path.is_dir():  # pyarrow would read all that is in it
        raise ValueError(f"{path} is a folder: answers are one Parquet file")
    try:
        return how(path)
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from error


def _read_columns(path: Path) -> pa.Table:
    table = _read(path, parquet.read_table)
    for name in _COLUMNS:
        if table.column_names.count(name) != 1:
            raise ValueError(
                f"{path} needs the columns {' and '.join(_COLUMNS)}, each once; it has "
                f"{', '.join(table.column_names) or 'none'}"
            )
    return table


def _index(path: Path, column: pa.ChunkedArray) -> np.ndarray:
    if not pa.types.is_integer(column.type):
        raise ValueError(f"{path}: index must hold integers, got {column.type}")
    _refuse(path, column.is_null(), lambda row: "index is null")
    index = column.to_numpy()
    outside = (index < 0) | (index >= INSTANCES)
    _refuse(path, outside, lambda row: f"index {index[row]} lies outside [0, {INSTANCES})")
    numbers, first = np.unique(index, return_index=True)
    again = np.ones(len(index), dtype=bool)
    again[first] = False

    def twice(row: int) -> str:
        earlier = first[np.searchsorted(numbers, index[row])]
        return f"index {index[row]} was answered before, in row {earlier}"

    _refuse(path, again, twice)
    return index


def _values(path: Path, column: pa.ChunkedArray, variant: Variant) -> np.ndarray:
    size, num_values = variant.config.panel_size, variant.config.num_values
    kind = column.type
    is_list = any(
        check(kind)
        for check in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    )
    if not is_list or not pa.types.is_integer(kind.value_type):
        raise ValueError(f"{path}: prediction must hold lists of integers, got {kind}")
    _refuse(path, column.is_null(), lambda row: "prediction is null")
    lengths = pc.call_function("list_value_length", [column]).to_numpy()
    _refuse(
        path,
        lengths != size,
        lambda row: f"a panel of variant {variant.name} has {size} integers, got {lengths[row]}",
    )
    flat = pc.call_function("list_flatten", [column])
    in_row = np.asarray(flat.is_null()).reshape(-1, size)
    _refuse(path, in_row.any(-1), lambda row: "prediction holds a null")
    values = flat.to_numpy().astype(np.int64).reshape(-1, size)
    outside = (values < 0) | (values >= num_values)
    _refuse(
        path,
        outside.any(-1),
        lambda row: f"{values[row][outside[row]][0]} lies outside [0, {num_values})",
    )
    return values


def _refuse(path: Path, wrong: object, why: Callable[[int], str]) -> None:
    """Raise a ValueError about the first row that is wrong."""
    rows = np.flatnonzero(np.asarray(wrong))
    if len(rows):
        raise ValueError(f"{path}, row {rows[0]}: {why(int(rows[0]))}")
