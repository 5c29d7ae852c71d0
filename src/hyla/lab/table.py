"""One table of a sweep's results, as Parquet and as CSV."""

from collections.abc import Sequence
from pathlib import Path

from hyla.lab.store import Row


def write_table(rows: Sequence[Row], path: Path) -> list[Path]:
    """Write the rows to `path` with the suffixes .parquet and .csv; return what was written.

    Without pyarrow, which Parquet needs, there is the CSV alone.
    """
    try:
        import pandas
    except ImportError as error:
        raise ValueError('tables need pandas: pip install "hyla[tables]"') from error
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pandas.DataFrame.from_records(list(rows))
    csv, parquet = path.with_suffix(".csv"), path.with_suffix(".parquet")
    table.to_csv(csv, index=False)
    try:
        table.to_parquet(parquet, index=False)
    except ImportError:
        return [csv]
    return [parquet, csv]
