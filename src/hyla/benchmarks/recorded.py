"""What was measured here, beside what others measured and sent.

A file of `hyla bench train`, from whichever machine, becomes a column when it lies in
`results/bench` as train-*.json.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

RECORDED = Path("results/bench")
_ROW = ("task", "attention", "variant", "members", "precision", "blocks")
_FIGURE = "model_steps_per_second"


def beside_recorded(rows: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, str]]:
    """Return the lines of a table: model-steps/s here, in each file of `folder`, the authors'."""
    columns = list(_recorded(folder))
    lines = []
    for row in rows:
        line = {name: str(row.get(name, "")) for name in _ROW}
        line["model-steps/s here"] = shown(row.get(_FIGURE, row.get("note")))
        if any("peak_memory_gib" in other for other in rows):
            line["GiB"] = shown(row.get("peak_memory_gib"))
        line |= {name: shown(figures.get(_key(row))) for name, figures in columns}
        line["authors' steps/s"] = row["authors_steps_per_second"]
        lines.append(line)
    empty = {name for name, _ in columns if not any(line[name] for line in lines)}
    return [{k: v for k, v in line.items() if k not in empty} for line in lines]


def in_columns(lines: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield the lines of a table as plain text, its heading first."""
    names = list(dict.fromkeys(name for line in lines for name in line))
    cells = [names, *([line.get(name, "") for name in names] for line in lines)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()


def in_a_line(row: Mapping[str, Any]) -> str:
    """Return what a row has, by names."""
    return " · ".join(f"{name} {shown(value)}" for name, value in row.items() if value)


def shown(value: Any) -> str:
    """Return a figure as a table has it: three digits, and nothing for what is missing."""
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _recorded(folder: Path) -> Iterator[tuple[str, dict[tuple, float]]]:
    """Yield the device and the figures of each file; those of one device by their names."""
    seen: set[str] = set()
    for path in sorted(folder.glob("train-*.json")):
        content = json.loads(path.read_text())
        name = content["environment"]["device"]
        name = f"{name} ({path.stem})" if name in seen else name
        seen.add(name)
        yield name, {_key(row): row[_FIGURE] for row in content["rows"] if _FIGURE in row}


def _key(row: Mapping[str, Any]) -> tuple:
    return tuple(row.get(name, "") for name in _ROW)  # earlier files lack some
