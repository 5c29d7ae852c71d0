"""The report as files: figures, a Markdown page to read and compare, an HTML page to explore."""

import base64
import html
from collections.abc import Callable, Sequence
from pathlib import Path

from hyla._errors import install_command
from hyla.lab.claims import NO_VERDICT, NOT, PARTLY, REPRODUCED, STATUSES, Verdict
from hyla.lab.drawing import Table
from hyla.lab.report import Section, build, counts

_TITLE = "Attention as a Hypernetwork: ours beside the paper's"
_SMOKE = (
    "Smoke scale: seconds of training. These numbers only show that everything runs: claims are "
    "listed, not judged."
)
_COLOURS = {REPRODUCED: "#0a7a50", PARTLY: "#a66f00", NOT: "#b3261e", NO_VERDICT: "#777"}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em;
       color: #222; }
h1 { font-size: 1.5em } h3 { margin-top: 2em }
h2 { margin-top: 2.5em; border-bottom: 2px solid #ddd }
table { border-collapse: collapse; font-size: 13px; margin: .8em 0 }
th, td { text-align: left; padding: .2em .8em .2em 0; border-bottom: 1px solid #eee;
         vertical-align: top }
.note, .origin { color: #666; font-size: 13px } .scroll { overflow-x: auto }
.status { color: #fff; border-radius: 3px; padding: 0 .5em; white-space: nowrap }
img { max-width: 100% } nav { font-size: 13px } summary { cursor: pointer; color: #555 }
"""


def write_all(store: Path, say: Callable[[str], None]) -> list[Section]:
    """Build everything from the store's tables; say what was written and what could not be."""
    sections = build(store)
    figures = _write_figures(sections, store, say)
    page = store / "report.md"
    page.write_text(_markdown(sections, figures), encoding="utf-8")
    say(f"Report: {page}")
    page = store / "report.html"
    page.write_text(_html(sections, figures, store, say), encoding="utf-8")
    say(f"Page: {page}")
    return sections


def _write_figures(
    sections: Sequence[Section], store: Path, say: Callable[[str], None]
) -> dict[Path, Path]:
    """Draw the figures; return the PNG (relative to the store) of each that could be drawn."""
    drawn = [section for section in sections if section.figure is not None]
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        say(f"No figures: matplotlib is not installed; {install_command('figures')}")
        return {}
    from hyla.lab.draw_matplotlib import write_figure

    written = {}
    for section in drawn:
        assert section.figure is not None
        png, _ = write_figure(section.figure, store / section.figure_path)
        written[section.figure_path] = png.relative_to(store)
    return written


# --- Markdown --------------------------------------------------------------------------------


def _markdown(sections: Sequence[Section], figures: dict[Path, Path]) -> str:
    lines = [f"# {_TITLE}", "", "Made by `hyla report` from the tables beside it.", ""]
    for heading, own in _by_heading(sections).items():
        lines += [f"## {heading}", "", _count_line(own), ""]
        judged = [(s, v) for s in own for v in s.verdicts]
        if judged:
            rows = [(s.experiment.name, v.claim, _status(v), v.number) for s, v in judged]
            table = Table(columns=["", "claim", "verdict", "measured"], rows=rows)
            lines += [*_markdown_table(table), ""]
        for section in own:
            lines += [f"### {section.experiment.title}", "", section.experiment.shows, ""]
            if section.figure_path in figures:
                path = figures[section.figure_path].as_posix()
                lines += [f"![{section.experiment.name}, {section.setting.label}]({path})", ""]
            if section.figure is not None and section.figure.note:
                lines += [section.figure.note, ""]
            for table in (section.table, section.models):
                if table is not None:
                    lines += [*_markdown_table(table), ""]
            lines += [f"_{section.origin}_", ""]
    return "\n".join(lines)


def _status(verdict: Verdict) -> str:
    return f"**{verdict.status}**" if verdict.status in STATUSES else verdict.status


def _markdown_table(table: Table) -> list[str]:
    def line(texts: Sequence[object]) -> str:
        return "| " + " | ".join(str(text).replace("|", "\\|") for text in texts) + " |"

    body = [line(row) for row in table.rows]
    head = [line(table.columns), line(["---"] * len(table.columns))]
    return [*head, *body, *(["", table.note] if table.note else [])]


# --- HTML ------------------------------------------------------------------------------------


def _html(
    sections: Sequence[Section], figures: dict[Path, Path], store: Path, say: Callable[[str], None]
) -> str:
    try:
        import plotly  # noqa: F401
    except ImportError:
        say(f"The page has still figures: plotly is not installed; {install_command('figures')}")
        interactive = False
    else:
        interactive = True
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>{html.escape(_TITLE)}</title><style>{_STYLE}</style>",
    ]
    if interactive:
        from hyla.lab.draw_plotly import plotly_script

        parts.append(plotly_script())
    parts.append(f"</head><body><h1>{html.escape(_TITLE)}</h1>")
    parts.append("<p class='note'>Made by <code>hyla report</code> from the store's tables.</p>")
    for heading, own in _by_heading(sections).items():
        parts.append(f"<h2>{html.escape(heading)}</h2>")
        names = " · ".join(f"<a href='#{_anchor(s)}'>{s.experiment.name}</a>" for s in own)
        parts += [f"<p>{_count_line(own)}</p>", f"<nav>{names}</nav>"]
        for section in own:
            parts += _html_section(section, figures, store, interactive)
    return "\n".join([*parts, "</body></html>", ""])


def _html_section(
    section: Section, figures: dict[Path, Path], store: Path, interactive: bool
) -> list[str]:
    experiment = section.experiment
    parts = [
        f"<h3 id='{_anchor(section)}'>{html.escape(experiment.title)}</h3>",
        f"<p>{html.escape(experiment.shows)}</p>",
    ]
    if section.verdicts:
        parts.append(_html_verdicts(section.verdicts))
    if section.figure is not None and interactive:
        from hyla.lab.draw_plotly import figure_html

        parts.append(figure_html(section.figure))
    elif section.figure_path in figures:
        data = base64.b64encode((store / figures[section.figure_path]).read_bytes()).decode()
        parts.append(f"<img alt='{experiment.name}' src='data:image/png;base64,{data}'>")
    if section.figure is not None and section.figure.note:
        parts.append(f"<p class='note'>{html.escape(section.figure.note)}</p>")
    if section.table is not None:
        parts.append(_html_table(section.table))
    if section.models is not None:
        parts.append(
            f"<details><summary>Every method: scores, picked hyper-parameters</summary>"
            f"{_html_table(section.models)}</details>"
        )
    parts.append(f"<p class='origin'>{html.escape(section.origin)}</p>")
    return parts


def _anchor(section: Section) -> str:
    return f"{section.setting.label}-{section.experiment.name}"


def _html_verdicts(verdicts: Sequence[Verdict]) -> str:
    rows = "".join(
        f"<tr><td><span class='status' style='background:{_COLOURS[v.status]}'>{v.status}</span>"
        f"</td><td>{html.escape(v.claim)}</td><td>{html.escape(v.number)}</td></tr>"
        for v in verdicts
    )
    return f"<table><tr><th></th><th>claim</th><th>measured</th></tr>{rows}</table>"


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(str(name))}</th>" for name in table.columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    note = f"<p class='note'>{html.escape(table.note)}</p>" if table.note else ""
    return f"<div class='scroll'><table><tr>{head}</tr>{body}</table></div>{note}"


# --- both ------------------------------------------------------------------------------------


def _by_heading(sections: Sequence[Section]) -> dict[str, list[Section]]:
    grouped: dict[str, list[Section]] = {}
    for section in sections:
        grouped.setdefault(section.heading, []).append(section)
    return grouped


def _count_line(sections: Sequence[Section]) -> str:
    if sections[0].setting.scale == "smoke":
        return _SMOKE
    found = counts(sections)
    total = sum(found.values())
    if not total:
        return "No claim of the paper can be judged by what was measured."
    parts = ", ".join(f"{number} {status}" for status, number in found.items())
    return f"{total} claims judged: {parts}."
