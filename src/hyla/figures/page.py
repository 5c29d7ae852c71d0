"""What pages that are one file share: their style, light and dark, and what stands at their top.

Figures of plotly are drawn for a light ground: on a dark one, the style turns their text, axes and
what is black in them, and leaves every other colour.
"""

import html
from collections.abc import Sequence
from itertools import zip_longest

STYLE = """
:root { color-scheme: light dark; --ink: #222; --soft: #5a5a5a; --line: #ddd; --ground: #fff;
        --link: #0060a0 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --soft: #b0b0b0; --line: #444; --ground: #16191d; --link: #7cc4f5 } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em;
       color: var(--ink); background: var(--ground) }
a { color: var(--link) }
h1 { font-size: 1.5em } h2 { font-size: 1.2em; margin-top: 2em }
.lead, .note { max-width: 80ch } .contents ol { columns: 20em; column-gap: 2em; padding-left: 2em }
.contents li { break-inside: avoid }
.conclusion { font-size: 1.2em; font-weight: 600; max-width: 60ch }
.note, .origin { color: var(--soft); font-size: 13px }
.scroll { overflow-x: auto }
.js-plotly-plot :is(.infolayer, .xaxislayer-above, .yaxislayer-above) text {
  fill: var(--ink) !important }
.js-plotly-plot :is(.gridlayer, .zerolinelayer) path { stroke: var(--line) !important }
.js-plotly-plot :is(.bg, .legend .bg) { fill: none !important }
.js-plotly-plot .barlayer .errorbar path { stroke: var(--ink) !important }
.js-plotly-plot [style*="stroke: rgb(0, 0, 0)"] { stroke: var(--ink) !important }
@media (prefers-color-scheme: dark) {
  .js-plotly-plot [style*="stroke: rgb(112, 48, 160)"] { stroke: #b68ae0 !important }
  .js-plotly-plot .point { stroke: var(--soft) !important; stroke-width: .5px !important } }
.js-plotly-plot :is(.points, .legendpoints) [style*="fill: rgb(0, 0, 0)"] {
  fill: var(--ink) !important }
"""


def top(lead: Sequence[str] = (), findings: Sequence[str] = ()) -> list[str]:
    """Return plain texts as HTML: first what came out, then what one sees."""
    items = [html.escape(text) for text in findings]
    match items:
        case []:
            parts = []
        case [conclusion]:
            parts = [f"<p class='conclusion'>{conclusion}</p>"]
        case _:
            listed = "".join(f"<li>{text}</li>" for text in items)
            parts = [f"<h2>In short</h2><ul class='lead'>{listed}</ul>"]
    return parts + [f"<p class='lead'>{html.escape(text)}</p>" for text in lead]


def contents(headings: Sequence[str], below: Sequence[str] = ()) -> str:
    """Return links to the headings, which have the ids `part-0`, `part-1` and so on.

    `below` has a piece of HTML for each, such as links to what is in it.
    """
    items = "".join(
        f"<li><a href='#part-{i}'>{html.escape(heading)}</a>{more}</li>"
        for i, (heading, more) in enumerate(zip_longest(headings, below, fillvalue=""))
    )
    return f"<nav class='contents' aria-label='Contents'><ol>{items}</ol></nav>"
