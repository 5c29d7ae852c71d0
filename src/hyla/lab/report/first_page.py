"""The report's first page: ten claims that matter, ours beside the paper's, and what is certain."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hyla.figures.drawing import PALETTE
from hyla.lab.claims import Claim
from hyla.lab.experiments.tables.tablea1 import ABLATIONS, printed_lead
from hyla.lab.paper import TABLE_A2
from hyla.lab.registry import load
from hyla.lab.report.costs import Costs, in_minutes
from hyla.lab.report.sections import Section, likeness
from hyla.lab.verdicts import NOT, PARTLY, REPRODUCED, STATUSES, TOO_FEW, UNDECIDED, Verdict

UNMEASURED = "not measured"
COLOURS = {REPRODUCED: PALETTE[2], PARTLY: PALETTE[4], NOT: PALETTE[0]}
GREY = PALETTE[7]
_FINDINGS = 5
_WIDTH, _HEIGHT = 240, 34


@dataclass(frozen=True, kw_only=True)
class Headline:
    """One of the ten claims."""

    words: str
    experiment: str
    claim: str
    """How the claim begins or ends that decides it."""
    printed: str
    """What the paper says, in a few words."""
    effect: float | None = None
    """The paper's own effect, where it prints the numbers."""


def _table_a1(words: str, task: str, title: str, claim: str, *others: str) -> Headline:
    lead = printed_lead(task, "hyla", others)
    return Headline(
        words=words,
        experiment="tableA1",
        claim=f"{title}: {claim}",
        printed=f"{100 * lead:+.1f} points (Table A1)",
        effect=lead,
    )


_BETTER = "HYLA generalises better than softmax and linear attention."
HEADLINES = (
    _table_a1(
        "Fuzzy logic: HYLA generalises better than softmax and linear attention",
        *("fuzzy", "Fuzzy logic: OOD R²", _BETTER, "softmax", "linear"),
    ),
    _table_a1(
        "SRAVEN: HYLA generalises better than softmax and linear attention",
        *("sraven", "SRAVEN: OOD accuracy", _BETTER, "softmax", "linear"),
    ),
    Headline(
        words="SRAVEN: with its output scaled HYLA generalises better than softmax and linear",
        experiment="scale",
        claim="SRAVEN: HYLA as recommended generalises better than softmax and linear attention.",
        printed="not asked",
    ),
    Headline(
        words="Fuzzy logic: the more is held out, the further HYLA is ahead",
        experiment="fig2c",
        claim="As more is held out",
        printed="yes (Figure 2C)",
    ),
    _table_a1(
        "SRAVEN: HYLA needs all its parts",
        *("sraven", "SRAVEN: OOD accuracy", "the full HYLA model generally performs best"),
        *ABLATIONS,
    ),
    Headline(
        words="SRAVEN: with data and size all models solve 80 % of unseen tasks",
        experiment="fig4a",
        claim="Given sufficient data",
        printed="yes (Figure 4)",
    ),
    Headline(
        words="SRAVEN: HYLA's late codes predict the rule",
        experiment="fig5f",
        claim="(hyla).",
        printed="yes (Figure 5F)",
    ),
    Headline(
        words="SRAVEN: given another rule's code, HYLA follows that rule",
        experiment="codeswap",
        claim="code (donor) the network follows that rule (hyla).",
        printed="not asked",
    ),
    Headline(
        words="Text: HYLA comes close to softmax attention",
        experiment="fig6",
        claim="Language modelling: HYLA performs closely",
        printed="yes (Figure 6)",
    ),
    Headline(
        words="SRAVEN: instances with several answers are negligible",
        experiment="tableA2",
        claim="In the setting used",
        printed=f"{TABLE_A2[8].mean:.1%} (Table A2)",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Line:
    """A headline with what was found."""

    headline: Headline
    verdict: Verdict | None
    """Ours; None where it was not measured."""
    where: str
    """Conditions, or what it would cost."""
    picture: str
    """A small SVG: effect, interval, the paper's."""

    @property
    def status(self) -> str:
        """The verdict's, or that there is none."""
        return UNMEASURED if self.verdict is None else self.verdict.status


def headlines(sections: Sequence[Section], costs: Costs) -> list[Line]:
    """Return the ten claims, each as it was measured under conditions most like the paper's."""
    ranked = sorted(sections, key=lambda section: likeness(section.conditions), reverse=True)
    return [_line(headline, ranked, costs) for headline in HEADLINES]


def _line(headline: Headline, sections: Sequence[Section], costs: Costs) -> Line:
    found = [
        (section, claim, verdict)
        for section in sections
        if section.experiment.name == headline.experiment
        for claim, verdict in zip(section.claims, section.verdicts, strict=True)
        if headline.claim in claim.text
    ]
    # What is judged before what is not: a tf32 run of three seeds before one of float32.
    judged = [each for each in found if each[2].status in STATUSES] or found
    in_full = in_minutes(costs.minutes(load(headline.experiment)))
    if not judged:
        return Line(headline=headline, verdict=None, where=in_full, picture=_picture(headline))
    section, claim, verdict = judged[0]
    where = [section.heading]
    if verdict.status == TOO_FEW:
        where.append(_to_judge(claim, section, costs))
    if section.conditions.shorten > 1:
        where.append(f"in full {in_full}")
    return Line(
        headline=headline,
        verdict=verdict,
        where="; ".join(where),
        picture=_picture(headline, claim, verdict),
    )


def _to_judge(claim: Claim, section: Section, costs: Costs) -> str:
    """Say what more seeds of what was measured would take."""
    needed = claim.needed or costs.more_seeds(section.experiment, section.conditions)
    if needed is None:
        return f"for a verdict {in_minutes(None)}"
    if not needed.models:
        return "for a verdict nothing is left to train, only to measure"
    models = f"{needed.models} more model{'s' * (needed.models > 1)}"
    return f"for a verdict {models}, {in_minutes(needed.seconds / 60)}"


def findings(sections: Sequence[Section]) -> list[Verdict]:
    """Return the most certain verdicts, one of an experiment, clearest first."""
    certain = [
        (claim.weakest.probability, section, verdict)
        for section in sections
        for claim, verdict in zip(section.claims, section.verdicts, strict=True)
        if verdict.status in STATUSES and verdict.status != UNDECIDED and claim.effects
    ]
    found: dict[str, Verdict] = {}
    for _, section, verdict in sorted(certain, key=lambda each: each[0]):
        found.setdefault(section.experiment.name, verdict)
    return list(found.values())[:_FINDINGS]


# --- pictures --------------------------------------------------------------------------------


def _picture(headline: Headline, claim: Claim | None = None, verdict: Verdict | None = None) -> str:
    """Draw 0, our effect with its interval, and the paper's as a ring, on one scale."""
    marks: list[str] = []
    ours = claim.weakest.value if claim is not None and claim.effects else math.nan
    ends = verdict.interval if verdict is not None else None
    values = [v for v in (ours, headline.effect) if v is not None and not math.isnan(v)]
    # An interval may be wider than anything: it is cut off at thrice the effects.
    reach = 3 * max([abs(v) for v in values], default=1.0) or 1.0

    def x(value: float) -> float:
        inside = max(-reach, min(reach, value))
        return round(_WIDTH * (0.5 + 0.48 * inside / reach), 1)

    middle = _HEIGHT / 2
    marks.append(f"<path d='M{x(0)} 4V{_HEIGHT - 4}' stroke='{GREY}' stroke-dasharray='2'/>")
    colour = COLOURS.get(verdict.status, GREY) if verdict is not None else GREY
    if ends is not None:
        low, high = map(x, ends)
        marks.append(f"<path d='M{low} {middle}H{high}' stroke='{colour}' stroke-width='3'/>")
    if not math.isnan(ours):
        marks.append(f"<circle cx='{x(ours)}' cy='{middle}' r='5' fill='{colour}'/>")
    if headline.effect is not None:
        ring = f"r='7' fill='none' stroke='{GREY}' stroke-width='1.5'"
        marks.append(f"<circle cx='{x(headline.effect)}' cy='{middle}' {ring}/>")
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{_HEIGHT}' "
        f"viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img'>{''.join(marks)}</svg>"
    )
