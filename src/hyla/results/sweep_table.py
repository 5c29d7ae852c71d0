"""One table of a sweep's results, as Parquet and as CSV."""

from collections.abc import Sequence
from pathlib import Path

from hyla._errors import install_command
from hyla.results.runs import Row


def write_table(rows: Sequence[Row], path: Path) -> list[Path]:
    """Write the rows to `path` with .parquet and .csv appended; return what was written.

    Without pyarrow, which Parquet needs, there is the CSV alone.
    """
    try:
        import pandas
    except ImportError as error:
        raise ValueError(f"tables need pandas: {install_command('tables')}") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pandas.DataFrame.from_records(list(rows))
    # Not with_suffix: of `a-0.5`, it would take .5 for a suffix and replace it.
    csv, parquet = (path.with_name(path.name + suffix) for suffix in (".csv", ".parquet"))
    table.to_csv(csv, index=False)
    try:
        table.to_parquet(parquet, index=False)
    except ImportError:
        return [csv]
    return [parquet, csv]
