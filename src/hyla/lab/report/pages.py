"""The report as files: figures, a Markdown page to read and compare, an HTML page to explore."""

import base64
import html
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from hyla._errors import install_command
from hyla.figures.draw_plotly import figure_html, page_html
from hyla.figures.drawing import Table
from hyla.figures.page import contents
from hyla.lab.experiment import Experiment
from hyla.lab.report.costs import Costs, in_minutes
from hyla.lab.report.first_page import COLOURS, GREY, Line, findings, headlines
from hyla.lab.report.sections import Section, beyond_the_paper, build, counts, missing, noting
from hyla.lab.verdicts import STATUSES, UNJUDGED, Verdict

_TITLE = "Attention as a Hypernetwork: ours beside the paper's"
_INTRODUCTION = (
    "Made by `hyla report` from the tables beside this page. All numbers were measured with this "
    "library; the paper's own are beside them where it prints any."
)
_TERMS = (
    "**OOD** scores are on compositions that no training instance has: combinations of terms in "
    "fuzzy logic (R²), of rules in SRAVEN (accuracy). **Seen** ones are on new instances of the "
    "compositions in training.",
    "A claim rests on an **effect**, with its t interval over seeds in brackets, and a **rule** "
    "that names its size. It is **reproduced** where the whole interval is above 0 and the size is "
    "as claimed, **partly** where the size is another, **not reproduced** where the interval is "
    "below 0, and else **undecided**. All claims are judged together: of the effects that are "
    "called certain, one in twenty is expected to be none.",
    "Not judged, and not counted, are claims with **too few seeds** (less than three), those that "
    "**cannot be told** by what was measured, and those that are true **by construction**.",
    "**Paper scale** is the paper's models and tasks, trained for as many steps, or for the part "
    "that is named: **1/4 of the steps**. Of Figure 6, its section says how much was trained. "
    "**Laptop** and **smoke scale** are smaller models for minutes and seconds of a CPU.",
    "**float32**, **tf32** and **bf16** are what matrices are multiplied in: tf32 has 10 bits of "
    "float32's 23 behind the point, and bf16 has 7; both are faster on a GPU. Nothing is averaged "
    "over settings.",
    "More on how all this is measured, picked and judged: [docs/lab.md](../../docs/lab.md).",
)
_SMOKE = (
    "Smoke scale: seconds of training. These numbers only show that everything runs: claims are "
    "listed, not judged."
)
_DIRTY = "From a tree with uncommitted changes:"
_MISSING = "Not measured at paper scale and length"
_TEN = "Ten claims that matter"
_CERTAIN = "What is most certain"
_TERMS_TITLE = "How to read what follows"
_FIRST_PAGE = ("claim", "verdict", "ours", "the paper's", "", "where, or what it would take")
_PICTURES = (
    "Dot: our effect, with its interval (cut off at thrice the effect); ring: the paper's; dashed: "
    "0. GPU minutes are those of one H200, where models that differ in attention alone train "
    "together: of what the claim's figure lacks of three seeds in tf32 at the preset's setting; "
    "or, for a verdict, of what its measured methods lack, trained for as long as those were."
)
_STYLE = """
h2 { font-size: 1.5em; margin-top: 2.5em; border-bottom: 2px solid var(--line) }
h3 { margin-top: 2em }
table { border-collapse: collapse; font-size: 13px; margin: .8em 0 }
th, td { text-align: left; padding: .2em .8em .2em 0; border-bottom: 1px solid var(--line);
         vertical-align: top }
.scroll > table { min-width: 700px }
.status { border-left: .7em solid; padding-left: .4em; white-space: nowrap }
.ten { line-height: 1.3 } .ten svg { width: 170px }
img { max-width: 100% } summary { cursor: pointer; color: var(--soft) }
"""


def write_all(
    store: Path,
    say: Callable[[str], None],
    *,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Section]:
    """Build everything from the store's tables; say what was written and what could not be.

    `progress` is told what is being done, a line for each section: all take about a minute.
    """
    sections = build(store, progress, say)
    figures = _write_figures(sections, store, say, progress)
    costs = Costs(store)
    page = store / "report.md"
    page.write_text(_markdown(sections, figures, costs, store), encoding="utf-8")
    say(f"Report: {page}")
    page = store / "report.html"
    progress("writing the page")
    page.write_text(_html(sections, figures, store, costs, say), encoding="utf-8")
    say(f"Page: {page}")
    return sections


def _write_figures(
    sections: Sequence[Section],
    store: Path,
    say: Callable[[str], None],
    progress: Callable[[str], None],
) -> dict[Path, Path]:
    """Draw the figures; return the PNG (relative to the store) of each that could be drawn."""
    drawn = [section for section in sections if section.figure is not None]
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        say(f"No figures: matplotlib is not installed; {install_command('figures')}")
        return {}
    from hyla.figures.draw_matplotlib import write_figure

    written = {}
    for i, section in enumerate(drawn, start=1):
        assert section.figure is not None
        name = f"{section.conditions.label}, {section.experiment.name}"
        progress(f"{name}: drawing figure {i} of {len(drawn)}")
        with noting(section.failures, "figure"):
            png, _ = write_figure(section.figure, store / section.figure_path)
            written[section.figure_path] = png.relative_to(store)
    return written


# --- Markdown --------------------------------------------------------------------------------


def _markdown(
    sections: Sequence[Section], figures: dict[Path, Path], costs: Costs, store: Path
) -> str:
    lines = [f"# {_TITLE}", "", _INTRODUCTION, ""]
    lines += [*_markdown_first_page(sections, costs, store), *_markdown_list(_TERMS), ""]
    for heading, own in _by_heading(sections).items():
        lines += [f"## {_inert(heading)}", "", _count_line(own), ""]
        judged = [(s, v) for s in own for v in s.verdicts]
        if judged:
            rows = [(s.experiment.name, v.claim, _status(v), v.number) for s, v in judged]
            table = Table(columns=["", "claim", "verdict", "measured"], rows=rows)
            lines += [*_markdown_table(table), ""]
        for section in own:
            lines += [f"### {section.experiment.title}", "", section.experiment.shows, ""]
            if section.figure_path in figures:
                path = figures[section.figure_path].as_posix()
                lines += [f"![{section.experiment.name}, {section.conditions.label}]({path})", ""]
            for failure in section.failures:
                lines += [f"**{_inert(failure)}**", ""]
            if section.figure is not None and section.figure.note:
                lines += [section.figure.note, ""]
            for table in (section.table, section.models):
                if table is not None:
                    lines += [*_markdown_table(table), ""]
            mark = f"**{_DIRTY}** " if section.dirty else ""
            lines += [f"{mark}_{_inert(section.origin)}_", ""]
    if left_out := _missing_lines(sections, costs):
        lines += [f"## {_MISSING}", "", *_markdown_list(left_out), ""]
    return "\n".join(lines)


def _markdown_first_page(sections: Sequence[Section], costs: Costs, store: Path) -> list[str]:
    """Return the ten claims as a table; its pictures are files beside the page."""
    if not _judging(sections):
        return []
    folder = store / "claims"
    folder.mkdir(exist_ok=True)
    rows, lines = [], headlines(sections, costs)
    for number, line in enumerate(lines, start=1):
        picture = folder / f"{number}.svg"
        picture.write_text(line.picture + "\n", encoding="utf-8")
        shown = f"![{line.status}]({picture.relative_to(store).as_posix()})"
        ours = line.verdict.number if line.verdict else ""
        texts = [line.headline.words, f"**{line.status}**", ours, line.headline.printed]
        rows.append(f"| {' | '.join(map(_inert, texts))} | {shown} | {_inert(line.where)} |")
    head = [f"| {' | '.join(_FIRST_PAGE)} |", "|" + " --- |" * len(_FIRST_PAGE)]
    found = [f"**{v.status}**: {_inert(v.claim)} {_inert(v.number)}" for v in findings(sections)]
    certain = [f"## {_CERTAIN}", "", *_markdown_list(found), ""] if found else []
    shown = [f"## {_TEN}", "", _outcome(lines), "", *head, *rows, "", _PICTURES, ""]
    return [*shown, *certain, f"## {_TERMS_TITLE}", ""]


def _inert(text: str) -> str:
    """Write what runs say of themselves as text: no HTML, no link, no line of its own."""
    return html.escape(" ".join(text.split()), quote=False).replace("[", "\\[")


def _markdown_list(texts: Sequence[str]) -> list[str]:
    return [f"- {text}" for text in texts]


def _status(verdict: Verdict) -> str:
    return f"**{verdict.status}**" if verdict.status in STATUSES else verdict.status


def _markdown_table(table: Table) -> list[str]:
    def line(texts: Sequence[object]) -> str:
        return "| " + " | ".join(_inert(str(text)).replace("|", "\\|") for text in texts) + " |"

    body = [line(row) for row in table.rows]
    head = [line(table.columns), line(["---"] * len(table.columns))]
    return [*head, *body, *(["", table.note] if table.note else [])]


# --- HTML ------------------------------------------------------------------------------------


def _html(
    sections: Sequence[Section],
    figures: dict[Path, Path],
    store: Path,
    costs: Costs,
    say: Callable[[str], None],
) -> str:
    try:
        import plotly  # noqa: F401
    except ImportError:
        say(f"The page has still figures: plotly is not installed; {install_command('figures')}")
        interactive = False
    else:
        interactive = True
    by_heading = _by_heading(sections)
    parts = [
        f"<p>{_html_text(_INTRODUCTION)}</p>",
        *_html_first_page(sections, costs),
        "<h2>Contents</h2>",
        contents(list(by_heading), [_html_links(own) for own in by_heading.values()]),
        f"<h2>{_TERMS_TITLE}</h2>",
        _html_list(_TERMS),
    ]
    for i, (heading, own) in enumerate(by_heading.items()):
        parts.append(f"<h2 id='part-{i}'>{html.escape(heading)}</h2>")
        parts.append(f"<p>{_count_line(own)}</p>")
        for section in own:
            parts += _html_section(section, figures, store, interactive)
    if left_out := _missing_lines(sections, costs):
        parts += [f"<h2>{_MISSING}</h2>", _html_list(left_out)]
    return page_html(_TITLE, parts, style=_STYLE, interactive=interactive)


def _html_links(sections: Sequence[Section]) -> str:
    """Return links to the sections below a heading, each by its figure or question."""
    links = (
        f"<li><a href='#{_anchor(section)}'>{html.escape(section.experiment.title)}</a></li>"
        for section in sections
    )
    return f"<ul>{''.join(links)}</ul>"


def _html_first_page(sections: Sequence[Section], costs: Costs) -> list[str]:
    if not _judging(sections):
        return []
    lines = headlines(sections, costs)
    rows = "".join(
        f"<tr><td>{html.escape(line.headline.words)}</td><td>{_badge(line.status)}</td>"
        f"<td>{_html_ours(line.verdict)}</td><td>{html.escape(line.headline.printed)}</td>"
        f"<td>{line.picture}</td><td class='note'>{html.escape(line.where)}</td></tr>"
        for line in lines
    )
    head = "".join(f"<th>{name}</th>" for name in _FIRST_PAGE)
    found = findings(sections)
    certain = [f"<h2>{_CERTAIN}</h2>", _html_verdicts(found)] if found else []
    table = f"<div class='scroll'><table class='ten'><tr>{head}</tr>{rows}</table></div>"
    outcome = f"<p class='conclusion'>{_outcome(lines)}</p>"
    return [f"<h2>{_TEN}</h2>", outcome, table, f"<p class='note'>{_PICTURES}</p>", *certain]


def _html_ours(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    basis = html.escape(verdict.basis)
    return f"{html.escape(verdict.measured)}<br><span class='note'>{basis}</span>"


def _outcome(lines: Sequence[Line]) -> str:
    """Say in a sentence how many of the claims that matter have which verdict."""
    found = Counter(line.status for line in lines)
    return (
        f"Of these {len(lines)}: "
        + ", ".join(f"{n} {status}" for status, n in found.most_common())
        + "."
    )


def _badge(status: str) -> str:
    colour = COLOURS.get(status, GREY)
    return f"<span class='status' style='border-color:{colour}'>{status}</span>"


def _html_text(text: str) -> str:
    """Return a text with the little Markdown that ours have: code, bold, links."""
    text = html.escape(text)
    text = re.sub(r"`(.+?)`", r"<code>\1</code>", text)
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text)
    return re.sub(r"\[(.+?)\]\((.+?)\)", r"<a href='\2'>\1</a>", text)


def _html_list(texts: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{_html_text(text)}</li>' for text in texts)}</ul>"


def _html_section(
    section: Section, figures: dict[Path, Path], store: Path, interactive: bool
) -> list[str]:
    experiment = section.experiment
    parts = [
        f"<h3 id='{_anchor(section)}'>{html.escape(experiment.title)}</h3>",
        f"<p>{_html_text(experiment.shows)}</p>",
    ]
    if section.verdicts:
        parts.append(_html_verdicts(section.verdicts))
    if section.figure is not None and interactive:
        with noting(section.failures, "figure"):
            parts.append(f"<div class='scroll'>{figure_html(section.figure)}</div>")
    elif section.figure_path in figures:
        data = base64.b64encode((store / figures[section.figure_path]).read_bytes()).decode()
        parts.append(f"<img alt='{experiment.name}' src='data:image/png;base64,{data}'>")
    parts += [f"<p><b>{html.escape(failure)}</b></p>" for failure in section.failures]
    if section.figure is not None and section.figure.note:
        parts.append(f"<p class='note'>{_html_text(section.figure.note)}</p>")
    if section.table is not None:
        parts.append(_html_table(section.table))
    if section.models is not None:
        parts.append(
            f"<details><summary>Every method: scores, picked hyper-parameters</summary>"
            f"{_html_table(section.models)}</details>"
        )
    mark = f"<b>{_DIRTY}</b> " if section.dirty else ""
    parts.append(f"<p class='note'>{mark}{html.escape(section.origin)}</p>")
    return parts


def _anchor(section: Section) -> str:
    return f"{section.conditions.label}-{section.experiment.name}"


def _html_verdicts(verdicts: Sequence[Verdict]) -> str:
    rows = "".join(
        f"<tr><td>{_badge(v.status)}</td><td>{html.escape(v.claim)}</td><td>{html.escape(v.number)}</td></tr>"
        for v in verdicts
    )
    head = "<tr><th></th><th>claim</th><th>measured</th></tr>"
    return f"<div class='scroll'><table>{head}{rows}</table></div>"


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(str(name))}</th>" for name in table.columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    note = f"<p class='note'>{_html_text(table.note)}</p>" if table.note else ""
    return f"<div class='scroll'><table><tr>{head}</tr>{body}</table></div>{note}"


# --- both ------------------------------------------------------------------------------------


def _by_heading(sections: Sequence[Section]) -> dict[str, list[Section]]:
    grouped: dict[str, list[Section]] = {}
    for section in sections:
        grouped.setdefault(section.heading, []).append(section)
    return grouped


def _count_line(sections: Sequence[Section]) -> str:
    if sections[0].conditions.scale == "smoke":
        return _SMOKE
    paper = [section for section in sections if not beyond_the_paper(section)]
    ours = [section for section in sections if beyond_the_paper(section)]
    texts = [_counted("Claims of the paper", paper), _counted("Questions beyond the paper", ours)]
    return " ".join(text for text in texts if text) or "Nothing can be judged by what was measured."


def _counted(what: str, sections: Sequence[Section]) -> str:
    found = counts(sections)
    if not any(found.values()):
        return ""
    judged = ", ".join(f"{found[status]} {status}" for status in STATUSES)
    others = ", ".join(f"{found[status]} {status}" for status in UNJUDGED if found[status])
    text = f"{what}: {sum(found[status] for status in STATUSES)} judged, {judged}"
    return f"{text}; not judged: {others}." if others else f"{text}."


def _judging(sections: Sequence[Section]) -> bool:
    """Whether anything is there but what was trained for seconds."""
    return any(section.conditions.scale != "smoke" for section in sections)


def _missing_lines(sections: Sequence[Section], costs: Costs) -> list[str]:
    def text(experiment: Experiment) -> str:
        return f"`{experiment.name}` ({experiment.title}): {in_minutes(costs.minutes(experiment))}"

    if not _judging(sections):  # nearly all of them
        return [
            f"{state}: {len(experiments)} figures and tables (`hyla reproduce` lists all)"
            for state, experiments in missing(sections).items()
        ]
    return [
        f"{state}: " + "; ".join(map(text, experiments))
        for state, experiments in missing(sections).items()
    ]
