"""Draw pictures of docs/ and of the front page from what was measured.

Those of SRAVEN come from results/sraven/*.json: `hyla sraven think ... --json` and `hyla sraven
audit ... --json` write these files; docs/sraven.md has the commands. The effect on the front page
comes from the lab's tables.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hyla.figures.draw_matplotlib import write_picture
from hyla.figures.drawing import PALETTE, Bars, Figure, Series
from hyla.lab.experiments.shared.panels import at, label_of, lines_by_method, score_of, series
from hyla.lab.grids import METHODS
from hyla.lab.methods import results_of
from hyla.lab.paper import TABLE_A2
from hyla.lab.registry import load
from hyla.lab.sraven_figures import thinking_figure
from hyla.results.conditions import Conditions
from hyla.results.tables import Tables, where

ROOT = Path(__file__).parent.parent
MEASURED = ROOT / "results" / "sraven"
STORE = ROOT / "results" / "lab"
IMAGES = ROOT / "docs" / "images"

_CRITERIA = {
    "ambiguous_by_definition": "by the paper's definition",
    "ambiguous_by_authors": "by the released check",
}
_HELD_OUT, _EXAMPLES = 0.7, 32  # of Table A1


def main() -> None:
    """Draw them all."""
    curves = [_read(path) for path in sorted(MEASURED.glob("think-*.json"))]
    audits = {
        int(path.stem.removeprefix("audit-k")): _read(path)
        for path in MEASURED.glob("audit-k*.json")
    }
    for name, figure in (
        ("sraven-thinking", thinking_figure(curves)),
        ("sraven-ambiguity", ambiguity_figure(audits)),
        ("effect", effect_figure()),
    ):
        path = IMAGES / f"{name}.png"
        write_picture(figure, path)
        print(path.relative_to(ROOT))


def effect_figure() -> Figure:
    """Return how well each attention does on what it has seen, and on what it has not."""
    tables = Tables(STORE, Conditions(scale="paper", precision="tf32"))
    cells = where(results_of(load("fig2c"), tables).cells, task__held_out_fraction=_HELD_OUT)
    curves = lines_by_method(
        cells,
        x=at("task__sequence_length"),
        metric="ood/r2",
        title="Unseen combinations",
        x_label="examples shown",
        y_label="R²",
        y_range=(0, 1),
    )
    own = {
        cell.config.model.attention: cell for cell in where(cells, task__sequence_length=_EXAMPLES)
    }
    grey, purple = PALETTE[7], PALETTE[8]  # no method's
    bars = Bars(
        title=f"Seen and unseen, {_EXAMPLES} examples",
        y_label="R²",
        x=[label_of(method).removesuffix(" attention") for method in METHODS],
        series=[
            series(name, [score_of(own[method], metric) for method in METHODS], colour)
            for name, metric, colour in (
                ("seen combinations", "test/r2", grey),
                ("unseen combinations", "ood/r2", purple),
            )
        ],
        y_range=(0, 1),
    )
    return Figure(panels=[[curves, bars]])


def ambiguity_figure(audits: Mapping[int, Sequence[Mapping[str, Any]]]) -> Figure:
    """Draw the share of ambiguous training instances, by the number of values of each audit.

    An audit is what `hyla sraven audit --json` prints.
    """
    train = {
        values: next(row for row in rows if row["split"] == "train")
        for values, rows in sorted(audits.items())
    }
    series = [
        Series(
            name=name,
            y=[row[criterion] for row in train.values()],
            errors=[row[f"{criterion}_se"] for row in train.values()],
            colour=colour,
        )
        for (criterion, name), colour in zip(_CRITERIA.items(), PALETTE, strict=False)
    ]
    printed = [TABLE_A2[values] for values in train]
    series.append(
        Series(
            name="printed in Table A2",
            y=[each.mean for each in printed],
            errors=[each.standard_error for each in printed],
            colour=PALETTE[2],
        )
    )
    panel = Bars(
        title="SRAVEN: instances with several answers",
        y_label="share of the instances",
        x=[f"K = {values}" for values in train],
        series=series,
    )
    return Figure(panels=[[panel]])


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
