"""Tables of codes on disk, as Parquet (also piece by piece) or safetensors."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
import safetensors.numpy

from hyla._optional import required
from hyla.latents.table import CodeTable, as_values, check_column, concatenate, rows_with

if TYPE_CHECKING:
    import pyarrow

_FORMAT = "hyla_codes"
_VECTORS = ("code", "residual")


def write_codes(tables: CodeTable | Iterable[CodeTable], path: Path | str) -> None:
    """Write to a .parquet or .safetensors file, which `read_codes` reads.

    Several tables with the same columns are put below each other; Parquet takes them one by one,
    so that all of them need not fit into memory. The file appears when it is complete.
    """
    path = Path(path)
    tables = [tables] if isinstance(tables, CodeTable) else tables
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.part")
    try:
        if path.suffix == ".parquet":
            _write_parquet(tables, unfinished)
        elif path.suffix == ".safetensors":
            _write_safetensors(concatenate(tables), unfinished)
        else:
            raise ValueError(f"{path}: codes are written to .parquet or .safetensors files")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_codes(path: Path | str, **wanted: Any) -> CodeTable:
    """Read a table; with `wanted` (as in `CodeTable.where`), only its rows are read."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file of codes")
    if path.suffix == ".safetensors":
        table = _read_safetensors(path)
        return table.where(**wanted) if wanted else table
    parquet = required("pyarrow.parquet")
    known = parquet.read_schema(path).names
    for name, value in wanted.items():
        check_column(name, [column for column in known if column not in _VECTORS])
        column = parquet.read_table(path, columns=[name])[name]
        rows_with(value, name, column.to_numpy(zero_copy_only=False))
    filters = [(name, "in", as_values(value)) for name, value in wanted.items()]
    return _from_arrow(parquet.read_table(path, filters=filters or None))


def _write_parquet(tables: Iterable[CodeTable], path: Path) -> None:
    parquet = required("pyarrow.parquet")
    writer = None
    try:
        for table in tables:  # one row group each
            part = _to_arrow(table)
            writer = writer or parquet.ParquetWriter(path, part.schema)
            writer.write_table(part)
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise ValueError("there are no codes to write")


def _to_arrow(table: CodeTable) -> "pyarrow.Table":
    arrow = required("pyarrow")
    columns = {name: arrow.array(column) for name, column in table.columns.items()}
    columns["code"] = _to_lists(table.codes)
    if table.residual is not None:
        columns["residual"] = _to_lists(table.residual)
    return arrow.table(columns)


def _to_lists(matrix: np.ndarray) -> "pyarrow.Array":
    """Return the rows as lists, without the NaN at their ends."""
    arrow = required("pyarrow")
    lengths = (~np.isnan(matrix)).cumsum(axis=1).argmax(axis=1) + 1
    kept = np.arange(matrix.shape[1]) < lengths[:, None]
    offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
    return arrow.ListArray.from_arrays(arrow.array(offsets), arrow.array(matrix[kept]))


def _from_arrow(table: "pyarrow.Table") -> CodeTable:
    columns = {
        name: table[name].to_numpy(zero_copy_only=False)
        for name in table.column_names
        if name not in _VECTORS
    }
    columns = {n: c.astype(str) if c.dtype == object else c for n, c in columns.items()}
    codes, residual = (
        _from_lists(table[name].combine_chunks()) if name in table.column_names else None
        for name in _VECTORS
    )
    assert codes is not None
    return CodeTable(codes=codes, columns=columns, residual=residual)


def _from_lists(lists: Any) -> np.ndarray:
    lists = lists.combine_chunks() if hasattr(lists, "combine_chunks") else lists
    lengths = np.diff(lists.offsets.to_numpy())
    matrix = np.full((len(lists), lengths.max(initial=0)), np.nan, dtype=np.float32)
    matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = lists.flatten().to_numpy()
    return matrix


def _write_safetensors(table: CodeTable, path: Path) -> None:
    """Numbers as they are; of a column of strings, the distinct ones are in the metadata."""
    tensors = {"codes": table.codes}
    if table.residual is not None:
        tensors["residual"] = table.residual
    strings = {}
    for name, column in table.columns.items():
        if column.dtype.kind in "UO":
            distinct, column = np.unique(column.astype(str), return_inverse=True)
            strings[name] = distinct.tolist()
        tensors[f"columns/{name}"] = column
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    metadata = {_FORMAT: "1", "strings": json.dumps(strings)}
    safetensors.numpy.save_file(tensors, path, metadata)


def _read_safetensors(path: Path) -> CodeTable:
    with safetensors.safe_open(path, framework="numpy") as file:
        metadata = file.metadata() or {}
        if metadata.get(_FORMAT) != "1":
            raise ValueError(f"{path} is not a table of codes that hyla wrote")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    strings = json.loads(metadata["strings"])
    columns = {}
    for name, tensor in tensors.items():
        if name.startswith("columns/"):
            name = name.removeprefix("columns/")
            columns[name] = np.array(strings[name])[tensor] if name in strings else tensor
    return CodeTable(codes=tensors["codes"], columns=columns, residual=tensors.get("residual"))
