"""One table of a sweep's results, as Parquet and as CSV."""

from collections.abc import Sequence
from pathlib import Path

from hyla.results.csv_table import columns_of, write_csv
from hyla.results.runs import Row


def write_table(rows: Sequence[Row], path: Path) -> list[Path]:
    """Write the rows to `path` with .parquet and .csv appended; return what was written.

    Without pyarrow, which Parquet needs, there is the CSV alone.
    """
    # Not with_suffix: of `a-0.5`, it would take .5 for a suffix and replace it.
    csv, parquet = (path.with_name(path.name + suffix) for suffix in (".csv", ".parquet"))
    write_csv(rows, csv)
    try:
        _write_parquet(rows, parquet)
    except ImportError:
        return [csv]
    return [parquet, csv]


def _write_parquet(rows: Sequence[Row], path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({name: [row.get(name) for row in rows] for name in columns_of(rows)})
    parquet.write_table(table, path)
