"""What the report shows of a store, what it leaves out, and how far a verdict may go."""

import dataclasses
import html
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hyla.cli import main
from hyla.commands.shared.exits import FAILURE
from hyla.figures.drawing import PALETTE, Figure, Lines, Series
from hyla.lab.claims import BY_CONSTRUCTION
from hyla.lab.estimate import seconds_for
from hyla.lab.experiments.tables.tablea1 import ABLATIONS, printed_lead
from hyla.lab.grids import METHODS
from hyla.lab.methods import Method
from hyla.lab.plan.reproduction import Reproduction
from hyla.lab.registry import NAMES, load
from hyla.lab.report.costs import Costs
from hyla.lab.report.first_page import COLOURS, GREY, HEADLINES
from hyla.lab.report.pages import write_all
from hyla.lab.report.sections import Section, build, missing
from hyla.lab.verdicts import NO_VERDICT, NOT, PARTLY, REPRODUCED, TOO_FEW
from hyla.results.conditions import Conditions
from hyla.results.selection import Estimate
from hyla.results.tables import MEMBER, Tables
from hyla.tasks import SravenConfig
from stored_models import PAPER, write_models

SHORT = Conditions(scale="paper", shorten=4, precision="tf32")
BETTER = "SRAVEN: OOD accuracy: HYLA generalises better than softmax and linear attention."


def on_sraven(wanted: Callable[[Method], bool]) -> Callable[[Method], Estimate | None]:
    """The three methods on SRAVEN, HYLA ahead; `wanted` narrows them down."""

    def score(method: Method) -> Estimate | None:
        config = method.config
        attention = config.model.attention
        if config.task_name != "sraven" or attention not in METHODS or not wanted(method):
            return None
        return Estimate(0.6 if attention == "hyla" else 0.5, 0.01)

    return score


def plain(method: Method) -> bool:
    config = method.config
    usual = (config.model.feed_forward, config.model.attention_dropout) == ("gelu", 0.0)
    return usual and config.task == SravenConfig()


def sections_of(store: Path) -> dict[str, Section]:
    return {section.experiment.name: section for section in build(store)}


def test_shared_models_are_shown_once_and_judged(tmp_path: Path):
    write_models(tmp_path, "tableA1", on_sraven(plain), conditions=SHORT)
    [(name, section)] = sections_of(tmp_path).items()
    assert name == "tableA1"
    # The printed numbers are of full training: nothing is said of them.
    assert [(v.claim, v.status) for v in section.verdicts] == [(BETTER, REPRODUCED)]


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("unambiguous", lambda method: method.config.task.unambiguous),
        ("figA5", lambda method: method.config.task.held_out_fraction == 0.5),
        ("dropout", lambda method: method.config.model.attention_dropout > 0),
    ],
)
def test_a_question_appears_with_models_of_its_own(tmp_path: Path, name: str, own):
    store = tmp_path / "shared"
    write_models(store, name, on_sraven(plain))
    assert sections_of(store).keys() == {"tableA1"}
    store = tmp_path / "own"
    write_models(store, name, on_sraven(lambda method: plain(method) or own(method)))
    sections = sections_of(store)
    assert name in sections
    # The comparison of the methods is not taken away by a figure that shares its models.
    assert BETTER in [verdict.claim for verdict in sections["tableA1"].verdicts]


def test_a_measurement_does_not_repeat_the_scores(tmp_path: Path):
    tables = write_models(tmp_path, "tableA1", on_sraven(plain))
    clusters = {"what": "clusters", "attention": "hyla", "layer": 3, "statistic": "ratio"}
    rows = [
        {**clusters, "seed": seed, "label": label, "value": value}
        for seed in (0, 1, 2)
        for label, value in (("rule", 1.5), ("target", 1.1))
    ]
    tables.add_measured("geometry-sraven", rows)
    sections = sections_of(tmp_path)
    assert {name for name, section in sections.items() if section.models} == {"tableA1"}
    [verdict] = sections["fig5b"].verdicts
    assert verdict.status == REPRODUCED
    assert "rule: certainly above 0, and the rules' ratio 1.100 or more" in verdict.number

    tables.add_measured("geometry-sraven", [row for row in rows if row["seed"] < 2])
    [verdict] = sections_of(tmp_path)["fig5b"].verdicts
    assert verdict.status == TOO_FEW


@pytest.mark.parametrize(
    ("seeds", "hyla", "status"),
    [(3, 0.6, REPRODUCED), (2, 0.6, TOO_FEW), (3, 0.4, NOT), (1, 0.4, TOO_FEW)],
)
def test_fewer_than_three_seeds_are_not_judged(
    tmp_path: Path, seeds: int, hyla: float, status: str
):
    def score(method: Method) -> Estimate | None:
        known = on_sraven(plain)(method)
        return Estimate(hyla, 0.01) if known and method.config.model.attention == "hyla" else known

    write_models(tmp_path, "tableA1", score, seeds=seeds)
    [found] = [v for v in sections_of(tmp_path)["tableA1"].verdicts if v.claim == BETTER]
    assert found.status == status
    assert f"n = {seeds} and {seeds}" in found.number


def test_a_single_seed_elsewhere_does_not_matter(tmp_path: Path):
    write_models(tmp_path, "tableA1", on_sraven(plain))
    attention = "linear_rmshead"

    def another(method: Method) -> Estimate | None:
        config = method.config
        is_it = (config.task_name, config.model.attention) == ("sraven", attention)
        return Estimate(0.7, 0.01) if is_it else None

    write_models(tmp_path, "tableA1", another, seeds=1)
    verdicts = {v.claim: v for v in sections_of(tmp_path)["tableA1"].verdicts}
    assert verdicts[BETTER].status == REPRODUCED
    [boost] = [v for claim, v in verdicts.items() if "RMSHead by itself" in claim]
    assert boost.status == TOO_FEW


def test_the_scores_behind_a_mean_are_listed(tmp_path: Path):
    write_models(tmp_path, "tableA1", on_sraven(plain))
    models = sections_of(tmp_path)["tableA1"].models
    assert models is not None
    column = models.columns.index("OOD of each seed")
    assert {row[column] for row in models.rows} == {"60.0, 58.3, 61.7", "50.0, 48.3, 51.7"}


def test_unknown_terms_count_wherever_they_were_measured(tmp_path: Path):
    def measured(method: Method) -> Estimate | None:
        """HYLA at all twelve lengths and fractions, the others at one."""
        task = method.config.task
        usual = (task.sequence_length, task.held_out_fraction) == (32, 0.7)
        return Estimate(0.9, 0.01) if usual or method.config.model.attention == "hyla" else None

    tables = write_models(tmp_path, "figA3", measured)
    rows = tables.measured("models-fuzzy")
    for row, score in zip(rows, [0.1] * 39 + [0.6] * 3, strict=True):
        row["unknown_terms/r2"] = score
    tables.add_measured("models-fuzzy", rows, key=("method", *MEMBER))
    verdict, *_ = sections_of(tmp_path)["figA3"].verdicts
    assert verdict.status == PARTLY
    assert "from 0.10 to 0.60; 39 of 42 models are below 0.5" in verdict.number


def test_counts_need_no_seeds(tmp_path: Path):
    sizes = {"num_features": 4, "num_values": 8}
    Tables(tmp_path, PAPER).add_measured("figA9", [{"what": "instances", **sizes, "log10": 25.0}])
    [section] = build(tmp_path)
    assert [v.status for v in section.verdicts] == [BY_CONSTRUCTION]
    assert section.origin == "no training"


def test_a_smoke_report_says_that_claims_are_listed(tmp_path: Path):
    dense = on_sraven(lambda method: method.config.model.feed_forward == "gelu")
    write_models(tmp_path, "tableA1", dense, conditions=Conditions(scale="smoke"))
    [section] = write_all(tmp_path, lambda line: None)
    assert {v.status for v in section.verdicts} == {NO_VERDICT}
    for page in ("report.md", "report.html"):
        text = (tmp_path / page).read_text()
        assert "claims are listed, not judged" in text
        assert "can be judged" not in text
        assert text.index("listed, not judged") < text.index(BETTER)


# --- what the pages say of themselves ----------------------------------------------------------


def pages(store: Path) -> tuple[str, str]:
    """The Markdown page, and the text of the other with what is left of its tags."""
    write_all(store, lambda line: None)
    page = (store / "report.html").read_text()
    words = re.sub(r"<(script|style)>.*?</\1>|<[^>]*>", "", page, flags=re.DOTALL)
    return (store / "report.md").read_text(), html.unescape(words)


def test_the_pages_explain_themselves_in_the_same_words(tmp_path: Path):
    write_models(tmp_path, "tableA1", on_sraven(plain))
    markdown, page = pages(tmp_path)
    _, _, explained = markdown.partition("## How to read what follows\n")
    introduction = explained[: explained.index("## ")].splitlines()
    assert "[docs/lab.md](../../docs/lab.md)" in introduction[-2]
    for line in introduction:
        assert re.sub(r"^[-#] |\*\*|`|\[|\]\(.*\)", "", line) in page
    for term in ("OOD", "Seen", "effect", "reproduced", "partly", "undecided", "too few seeds"):
        assert f"**{term}**" in "".join(introduction)
    assert "`" not in page


def test_the_first_page_has_ten_claims_beside_the_papers(tmp_path: Path):
    write_models(tmp_path, "tableA1", on_sraven(plain))
    markdown, page = pages(tmp_path)
    first = markdown[markdown.index("## Ten claims") : markdown.index("## What is most certain")]
    rows = [line.split(" | ") for line in first.splitlines() if "![" in line]
    assert len(rows) == 10
    [better] = [row for row in rows if row[0] == f"| {BETTER.replace(': OOD accuracy', '')[:-1]}"]
    assert better[1] == "**reproduced**"
    assert better[3] == "+12.6 points (Table A1)"
    # What a verdict rests on: the line of the long tables, in which it is once more.
    measured, effect, number, rule = better[2].split("; ")
    assert measured == "HYLA 60.0 ± 1.0 against 50.0 ± 1.0 (Softmax attention)"
    assert re.fullmatch(r"effect \+10\.0 points, 9\d\.\d% in \\\[\+\d\.\d, \+1\d\.\d]", effect)
    assert number == "n = 3 and 3"
    assert rule == "rule: certainly above 0, and 6.3 or more (half of what is printed)"
    assert markdown.count(better[2]) == 3  # and among what is most certain
    assert page.count(f"{effect}; {number}; {rule}".replace("\\[", "[")) == 3
    others = [row for row in rows if row is not better]
    assert {row[1] for row in others} == {"**not measured**"}
    assert re.search(r"about \d+ GPU minutes", next(r[-1] for r in rows if "all its parts" in r[0]))
    assert "SRAVEN: HYLA needs all its parts" in page
    # Its pictures are beside it: dot, interval and ring, or the paper's ring alone.
    drawn = [(tmp_path / "claims" / f"{i}.svg").read_text() for i in range(1, 11)]
    assert [picture.count("<circle") for picture in drawn[:5]] == [1, 2, 0, 0, 1]
    assert "stroke-width='3'" in drawn[1]


def test_contents_lead_somewhere(tmp_path: Path):
    write_models(tmp_path, "tableA1", on_sraven(plain))
    write_models(tmp_path, "fig5c", on_sraven(lambda method: True), conditions=SHORT)
    write_all(tmp_path, lambda line: None)
    page = (tmp_path / "report.html").read_text()
    links = re.findall(r"href='#([^']+)'", page)
    assert len(links) > 3
    assert all(f"id='{link}'" in page for link in links)


def test_costs_are_of_what_is_missing(tmp_path: Path):
    def minutes() -> float:
        found = Costs(tmp_path).minutes(load("fig5c"))
        assert found is not None
        return found

    tf32 = Conditions(scale="paper", precision="tf32")
    many = on_sraven(lambda method: method.config.model.num_heads > 1)
    costs = [minutes()]
    for score, seeds in ((many, 3), (on_sraven(plain), 2), (on_sraven(plain), 3)):
        write_models(tmp_path, "fig5c", score, conditions=tf32, seeds=seeds)
        costs.append(minutes())
    whole, few_heads, a_seed, nothing = costs
    assert whole > few_heads > a_seed > nothing == 0
    # Another setting's seeds are none of those that are compared.
    tables = Tables(tmp_path, tf32)
    rows = [row | ({"learning_rate": 3e-4} if row["seed"] == 2 else {}) for row in tables.models()]
    tables.add_measured("models-sraven", rows)
    assert minutes() > a_seed
    # A million steps of 256 × 512 tokens: softmax a day, linear attention and HYLA more.
    assert Costs(tmp_path).minutes(load("fig6")) == pytest.approx(4484, rel=0.01)
    assert Costs(tmp_path).minutes(load("fig3")) is None


def test_costs_are_what_reproducing_it_would_take(tmp_path: Path):
    job = Reproduction(
        names=["fig5c"], scale="paper", precision="tf32", seeds=3, search=False, root=tmp_path
    )
    shares = job.plan()
    seconds = sum(job.seconds(shares, torch.device("cuda")))
    assert seconds < sum(seconds_for(share.config, device="cuda") for share in shares)
    assert Costs(tmp_path).minutes(load("fig5c")) == pytest.approx(seconds / 60)


@pytest.mark.parametrize(("seeds", "models"), [(2, 3), (1, 6)])
def test_too_few_seeds_say_what_a_verdict_would_take(tmp_path: Path, seeds: int, models: int):
    """Of what was measured, not of the whole figure at the paper's length."""
    write_models(tmp_path, "tableA1", on_sraven(plain), conditions=SHORT, seeds=seeds)
    for page in pages(tmp_path):
        number = r"about (\d+) GPU minutes"
        found = re.search(rf"for a verdict (\d+) more models, {number}; in full {number}", page)
        assert found is not None
        assert int(found[1]) == models
        assert 10 * int(found[2]) < int(found[3])
    needed = Costs(tmp_path).more_seeds(load("tableA1"), SHORT)
    assert needed is not None
    full = Conditions(scale="paper", precision="tf32")
    write_models(tmp_path, "tableA1", on_sraven(plain), conditions=full, seeds=seeds)
    there = Costs(tmp_path).more_seeds(load("tableA1"), full)
    assert there is not None
    assert there.models == needed.models == models
    assert there.seconds > 2 * needed.seconds
    markdown, _ = pages(tmp_path)
    assert f"for a verdict {models} more models" in markdown
    assert "in full" not in markdown


def test_where_all_seeds_are_trained_nothing_is_left_to_train(tmp_path: Path):
    full = Conditions(scale="paper", precision="tf32")
    write_models(tmp_path, "tableA1", on_sraven(plain), conditions=full, seeds=3)
    assert Costs(tmp_path).more_seeds(load("tableA1"), full) == (0, 0.0)
    assert Costs(tmp_path).more_seeds(load("tableA2"), full) is None  # it trains nothing


def test_what_was_not_measured_is_named(tmp_path: Path):
    write_models(tmp_path, "tableA1", on_sraven(plain))
    write_models(tmp_path, "fig5c", on_sraven(lambda method: True), conditions=SHORT)
    write_models(
        tmp_path, "phi", lambda m: Estimate(0.5, 0.1), conditions=Conditions(scale="laptop")
    )
    found = {
        state: [e.name for e in experiments]
        for state, experiments in missing(build(tmp_path)).items()
    }
    assert found.pop("Measured only at paper scale, 1/4 of the steps, tf32") == ["fig5c"]
    assert found.pop("Measured only at laptop scale, float32") == ["phi"]
    [(state, names)] = found.items()
    assert state.startswith("Not measured yet")
    assert sorted(names) == sorted(set(NAMES) - {"tableA1", "fig5c", "phi"})
    for page in pages(tmp_path):
        line = page[page.index("Not measured yet") :].partition("\n")[0]
        assert "(Figure 4A: scaling data and width on SRAVEN)" in line
        assert "(Table A1: model ablations)" not in line


def test_what_smoke_scale_leaves_out_is_counted(tmp_path: Path):
    write_models(
        tmp_path, "phi", lambda m: Estimate(0.5, 0.1), conditions=Conditions(scale="smoke")
    )
    for page in pages(tmp_path):
        lines = page[page.index("Not measured at paper scale") :]
        assert f"Not measured yet, or too little to show: {len(NAMES) - 1} figures" in lines
        assert "Measured only at smoke scale, float32: 1 figures" in lines
        assert "hyla reproduce" in lines
        assert "fig4a" not in lines


@pytest.mark.parametrize("drawn", [False, True])
def test_a_figure_that_fails_loses_nothing_else(tmp_path: Path, monkeypatch, capsys, drawn: bool):
    """Whether the experiment or whoever draws finds the mistake in it."""
    write_models(tmp_path, "tableA1", on_sraven(plain))
    write_models(tmp_path, "phi", lambda method: Estimate(0.5, 0.01))

    def figure(results):
        if not drawn:
            raise KeyError("my <task>")
        wrong = Series(name="", y=[1.0], colour=PALETTE[0])
        return Figure(panels=[[Lines(title="", x_label="", y_label="", x=[1, 2], series=[wrong])]])

    experiment = dataclasses.replace(load("phi"), figure=figure)
    monkeypatch.setattr("hyla.lab.experiments.beyond.phi.EXPERIMENT", experiment)
    assert main(["report", str(tmp_path)]) == FAILURE
    told = capsys.readouterr().err
    assert "not all of the report could be drawn:\n  paper, phi: no figure: " in told
    assert "Traceback" in told  # for whoever wrote it
    for name in ("report.md", "report.html"):
        page = (tmp_path / name).read_text()
        assert "no figure: " + ("ValueError: " if drawn else "KeyError: ") in page
        assert drawn or "my &lt;task&gt;" in page
        assert "Table A1: model ablations" in page


def test_the_first_page_has_the_colours_and_the_ablations_of_the_figures():
    assert {*COLOURS.values(), GREY} <= set(PALETTE)
    [parts] = [headline for headline in HEADLINES if "all its parts" in headline.words]
    assert parts.effect == printed_lead("sraven", "hyla", ABLATIONS)
    assert not set(ABLATIONS) & {*METHODS, "hyla_deep"}


def test_questions_of_ours_are_counted_by_themselves(tmp_path: Path):
    write_models(tmp_path, "dropout", on_sraven(lambda method: True), conditions=SHORT)
    for page in pages(tmp_path):
        count = "1 judged, 1 reproduced, 0 partly, 0 undecided, 0 not reproduced."
        assert f"Claims of the paper: {count}" in page
        assert "Questions beyond the paper: 2 judged, 2 reproduced" in page


def test_what_is_not_judged_is_counted_by_itself(tmp_path: Path):
    write_models(tmp_path, "tableA1", on_sraven(plain), conditions=SHORT, seeds=2)
    for page in pages(tmp_path):
        assert "0 judged, 0 reproduced, 0 partly, 0 undecided, 0 not reproduced; " in page
        assert "; not judged: 1 too few seeds." in page


def test_the_footer_tells_what_was_trained_and_what_is_shown(tmp_path: Path):
    tables = write_models(tmp_path, "tableA1", on_sraven(plain))
    worse = [
        row | {"learning_rate": 3e-4, "validation/accuracy": 0.5}
        for row in tables.models()
        if row["run"] == "sraven-hyla"
    ]
    tables.add_measured("models-sraven", worse, key=("method", *MEMBER))
    clusters = {"what": "clusters", "attention": "hyla", "seed": 0, "label": "rule", "layer": 3}
    tables.add_measured("geometry-sraven", [{**clusters, "statistic": "ratio", "value": 1.5}])
    sections = sections_of(tmp_path)
    trained = "12 models trained, 9 at the picked hyper-parameters"
    length = "sraven 156,250 steps × 128 = 20,000,000 instances"
    assert sections["tableA1"].origin == f"{trained}; {length}; device a device"
    picked = "lr 0.001, decay 0.1, warmup 100 (hyla, softmax, linear)"
    assert sections["fig5b"].origin == f"{trained}; {picked}; {length}; device a device"


def test_what_runs_say_of_themselves_is_text(tmp_path: Path):
    tables = write_models(tmp_path, "tableA1", on_sraven(plain))
    hostile = "<img src=x onerror=alert(1)> [here](javascript:alert(1))\n\n# a heading"
    rows = [row | {"device": hostile} for row in tables.models()]
    tables.add_measured("models-sraven", rows, key=("method", *MEMBER))
    write_all(tmp_path, lambda line: None)
    for name in ("report.md", "report.html"):
        page = (tmp_path / name).read_text()
        assert "&lt;img src=x onerror" in page
        assert "<img src=x" not in page
    assert " \\[here](javascript:alert(1)) # a heading" in (tmp_path / "report.md").read_text()


def test_progress_is_told_for_each_setting_and_figure(tmp_path: Path):
    write_models(tmp_path, "phi", lambda method: Estimate(0.5, 0.01))
    told: list[str] = []
    sections = write_all(tmp_path, lambda line: None, progress=told.append)
    drawn = [section for section in sections if section.figure is not None]
    assert told[0] == "paper: reading its tables"
    assert told[1:-1] == [
        f"paper, {section.experiment.name}: drawing figure {i} of {len(drawn)}"
        for i, section in enumerate(drawn, start=1)
    ]


def test_tables_of_dirty_origin_are_marked(tmp_path: Path):
    tables = write_models(tmp_path, "tableA1", on_sraven(plain))
    mark = "From a tree with uncommitted changes:"
    assert not any(mark in page for page in pages(tmp_path))
    rows = tables.models()
    rows[0] |= {"git_commit": "0123456789abcdef-dirty"}
    tables.add_measured("models-sraven", rows, key=("method", *MEMBER))
    for page in pages(tmp_path):
        line = next(line for line in page.splitlines() if mark in line)
        assert "git commit 0123456789ab-dirty" in line
