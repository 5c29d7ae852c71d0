"""What pages that are one file share: their style, light and dark, and what stands at their top.

Figures stay on white: their colours are chosen for it.
"""

import html
from collections.abc import Sequence

STYLE = """
:root { color-scheme: light dark; --ink: #222; --soft: #5a5a5a; --line: #ddd; --ground: #fff;
        --link: #0060a0 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --soft: #b0b0b0; --line: #444; --ground: #16191d; --link: #7cc4f5 } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em;
       color: var(--ink); background: var(--ground) }
a { color: var(--link) }
h1 { font-size: 1.5em } h2 { font-size: 1.2em; margin-top: 2em }
.lead { max-width: 75ch } .contents ol { columns: 18em; padding-left: 1.5em }
.note, .origin { color: var(--soft); font-size: 13px }
.scroll { overflow-x: auto } .plotly-graph-div { background: #fff; border-radius: 6px }
"""


def top(lead: Sequence[str] = (), findings: Sequence[str] = ()) -> list[str]:
    """Return plain texts that say what one sees, and what came out, as HTML."""
    parts = [f"<p class='lead'>{html.escape(text)}</p>" for text in lead]
    if findings:
        items = "".join(f"<li>{html.escape(text)}</li>" for text in findings)
        parts.append(f"<h2>In short</h2><ul class='lead'>{items}</ul>")
    return parts


def contents(headings: Sequence[str]) -> str:
    """Return links to the headings, which have the ids `part-0`, `part-1` and so on."""
    items = "".join(
        f"<li><a href='#part-{i}'>{html.escape(heading)}</a></li>"
        for i, heading in enumerate(headings)
    )
    return f"<nav class='contents' aria-label='Contents'><ol>{items}</ol></nav>"
