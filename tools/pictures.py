"""Draw the pictures of SRAVEN in docs/ from what was measured: results/sraven/*.json.

`hyla sraven think ... --json` and `hyla sraven audit ... --json` write these files; docs/sraven.md
has the commands.
"""

import json
from pathlib import Path
from typing import Any

from hyla.figures.draw_matplotlib import write_picture
from hyla.lab.sraven_figures import ambiguity_figure, thinking_figure

ROOT = Path(__file__).parent.parent
MEASURED = ROOT / "results" / "sraven"
IMAGES = ROOT / "docs" / "images"


def main() -> None:
    """Draw both."""
    curves = [_read(path) for path in sorted(MEASURED.glob("think-*.json"))]
    audits = {
        int(path.stem.removeprefix("audit-k")): _read(path)
        for path in MEASURED.glob("audit-k*.json")
    }
    for name, figure in (
        ("sraven-thinking", thinking_figure(curves)),
        ("sraven-ambiguity", ambiguity_figure(audits)),
    ):
        path = IMAGES / f"{name}.png"
        write_picture(figure, path)
        print(path.relative_to(ROOT))


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
