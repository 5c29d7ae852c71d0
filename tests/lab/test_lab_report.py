"""What the report shows of a store, what it leaves out, and how far a verdict may go."""

from collections.abc import Callable
from pathlib import Path

import pytest
from stored_models import PAPER, write_models

from hyla.lab.claims import NO_VERDICT, NOT, PARTLY, REPRODUCED
from hyla.lab.grids import METHODS
from hyla.lab.pages import write_all
from hyla.lab.report import Section, build
from hyla.lab.results import MEMBER, Tables
from hyla.lab.selection import Estimate
from hyla.lab.setting import Setting
from hyla.lab.sweep import Method
from hyla.tasks import SravenConfig

SHORT = Setting(scale="paper", shorten=4, precision="tf32")
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
    write_models(tmp_path, "tableA1", on_sraven(plain), setting=SHORT)
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
        for seed in (0, 1)
        for label, value in (("rule", 1.5), ("target", 1.1))
    ]
    tables.add_measured("geometry-sraven", rows)
    sections = sections_of(tmp_path)
    assert {name for name, section in sections.items() if section.models} == {"tableA1"}
    [verdict] = sections["fig5b"].verdicts
    assert verdict.status == REPRODUCED
    assert "(1: no structure; counts as reproduced above 1.1" in verdict.number

    tables.add_measured("geometry-sraven", [row for row in rows if row["seed"] == 0])
    [verdict] = sections_of(tmp_path)["fig5b"].verdicts
    assert verdict.status == PARTLY


@pytest.mark.parametrize(
    ("seeds", "hyla", "status"),
    [(3, 0.6, REPRODUCED), (1, 0.6, PARTLY), (3, 0.4, NOT), (1, 0.4, NOT)],
)
def test_a_single_seed_reproduces_at_most_partly(
    tmp_path: Path, seeds: int, hyla: float, status: str
):
    def score(method: Method) -> Estimate | None:
        known = on_sraven(plain)(method)
        return Estimate(hyla, 0.01) if known and method.config.model.attention == "hyla" else known

    write_models(tmp_path, "tableA1", score, seeds=seeds)
    [found] = [v for v in sections_of(tmp_path)["tableA1"].verdicts if v.claim == BETTER]
    assert found.status == status
    assert ("single seed, no standard error" in found.number) == (seeds == 1)


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
    assert boost.status == PARTLY
    [printed] = [v for claim, v in verdicts.items() if "printed numbers" in claim]
    assert "standard errors (ours and the paper's combined)" in printed.number


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
    assert "from 0.10 to 0.60; 39 of 42 models fail" in verdict.number


def test_counts_need_no_seeds(tmp_path: Path):
    sizes = {"num_features": 4, "num_values": 8}
    Tables(tmp_path, PAPER).add_measured("figA9", [{"what": "instances", **sizes, "log10": 25.0}])
    [section] = build(tmp_path)
    assert [v.status for v in section.verdicts] == [REPRODUCED]
    assert section.origin == "no training"


def test_a_smoke_report_says_that_claims_are_listed(tmp_path: Path):
    dense = on_sraven(lambda method: method.config.model.feed_forward == "gelu")
    write_models(tmp_path, "tableA1", dense, setting=Setting(scale="smoke"))
    [section] = write_all(tmp_path, lambda line: None)
    assert {v.status for v in section.verdicts} == {NO_VERDICT}
    for page in ("report.md", "report.html"):
        text = (tmp_path / page).read_text()
        assert "claims are listed, not judged" in text
        assert "can be judged" not in text
        assert text.index("listed, not judged") < text.index(BETTER)
