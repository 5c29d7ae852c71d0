"""What commands print: tables that fit the terminal, and plain lines elsewhere."""

import math

from rich.console import Console
from rich.table import Table

# Wide enough that no row is wrapped where nobody looks at a screen: logs, pipes.
_PLAIN_WIDTH = 240

# Short enough for a table in a terminal of 80 columns.
HEADINGS = {
    "seed": "seed",
    "learning_rate": "lr",
    "weight_decay": "decay",
    "warmup_steps": "warmup",
}


def console() -> Console:
    """Return a console on stdout."""
    default = Console()
    return default if default.is_terminal else Console(width=_PLAIN_WIDTH)


def table(title: str, *columns: str, numeric: tuple[str, ...] = ()) -> Table:
    """Return an empty table; columns named in `numeric` are aligned right."""
    made = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in numeric else "left")
    return made


def score(value: float | None) -> str:
    """Three decimals; a dash for what was not measured."""
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"
