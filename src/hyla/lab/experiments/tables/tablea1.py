"""Table A1: which parts of HYLA matter."""

import itertools
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hyla.figures.drawing import Figure, Heatmap, Table
from hyla.lab.claims import NOTICEABLE, Claim, Size, ahead, percent
from hyla.lab.effects import effect
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.panels import label_of
from hyla.lab.grids import METHODS, table_a1
from hyla.lab.paper import TABLE_A1
from hyla.results.selection import Estimate
from hyla.results.tables import Cell, Results
from hyla.tasks.sraven import SravenConfig

_TASKS = {"fuzzy": "Fuzzy logic: OOD R²", "sraven": "SRAVEN: OOD accuracy"}
_RIVALS = ("softmax", "linear")
# "Slightly" is the paper's word, and that ours are its numbers ours: these are our sizes for them.
_SLIGHTLY = Size(least=0.01, most=0.1)
_ALIKE = 0.05

ABLATIONS = tuple(n for n, f in TABLE_A1 if f == "gelu" and n not in (*METHODS, "hyla_deep"))
"""What is HYLA, or linear attention, with some of HYLA's parts."""

_Scores = Mapping[tuple[str, str], Estimate | None]
"""OOD scores by attention and feed-forward network."""


def _sweeps(scale: str) -> list[dict[str, Any]]:
    return [tree for task in _TASKS for tree in table_a1(task, scale)]


def row_label(attention: str, feed_forward: str) -> str:
    """Return the name of a row as the paper prints it."""
    return label_of(attention) + (" + MoE" if feed_forward == "moe" else "")


def _cell(results: Results, task: str, row: tuple[str, str]) -> Cell | None:
    return results.find(task_name=task, model__attention=row[0], model__feed_forward=row[1])


def _table(results: Results) -> Table | None:
    tasks = [task for task in _TASKS if any(c.config.task_name == task for c in results.cells)]
    if not tasks:
        return None
    columns = ["attention"]
    for task in tasks:
        name = _TASKS[task]
        columns += [name, "paper", "seen", "lr", "decay", "warmup", "seeds", "grid searched"]
    rows = []
    for row, paper in TABLE_A1.items():
        cells = {task: _cell(results, task, row) for task in tasks}
        if any(cell is not None for cell in cells.values()):
            texts = [row_label(*row)]
            for task in tasks:
                texts += _columns(cells[task], paper[task])
            rows.append(texts)
    ceilings = [results.ceiling(c) for c in results.cells]
    known = [ceiling for ceiling in ceilings if ceiling is not None]
    note = (
        "In percent, mean ± standard error over seeds, at the hyper-parameters best on validation."
    )
    if known:
        note += f" No SRAVEN model can exceed {percent(known[0])} on these OOD instances."
    return Table(columns=columns, rows=rows, note=note)


def _columns(cell: Cell | None, paper: Estimate) -> list[str]:
    if cell is None:
        return ["", percent(paper), *[""] * 6]
    return [
        percent(cell.ood),
        percent(paper),
        percent(cell.seen),
        *(f"{value:g}" for value in cell.hyperparameters.values()),
        str(len(cell.picked)),
        "{} of {}".format(*cell.searched),
    ]


def _figure(results: Results) -> Figure | None:
    """Return which rules each SRAVEN model masters: its score does not say where it fails."""
    families: dict[str, list[str]] = {}
    for rule in SravenConfig().rules:
        families.setdefault(re.split("[+-]", rule)[0], []).append(f"ood/accuracy/{rule}")
    names, values = [], []
    for row in TABLE_A1:
        cell = _cell(results, "sraven", row)
        for model in [] if cell is None else sorted(cell.picked, key=lambda model: model["seed"]):
            if all(model.get(metric) is not None for metric in itertools.chain(*families.values())):
                names.append(f"{row_label(*row)}, seed {model['seed']}")
                values.append(
                    [statistics.fmean(model[m] for m in own) for own in families.values()]
                )
    if not names:
        return None
    panel = Heatmap(
        title="SRAVEN, unseen combinations",
        values=values,
        rows=names,
        columns=[family.replace("_", " ") for family in families],
        label="accuracy by feature",
        value_range=(0, 1),
    )
    note = "By the rule that a feature follows; a panel counts as right if all its features are."
    return Figure(panels=[[panel]], note=note)


def _claims(results: Results) -> list[Claim]:
    found: list[Claim] = []
    for task in _TASKS:
        cells = {row: _cell(results, task, row) for row in TABLE_A1}
        ood = {row: cell and cell.ood for row, cell in cells.items()}
        found += _of_parts(task, ood)
        # Smaller models, or fewer steps, are not what was printed.
        if (results.conditions.scale, results.conditions.shorten) == ("paper", 1):
            found += _as_printed(task, ood)
    return found


def _of_parts(task: str, ood: _Scores) -> list[Claim]:
    """Return what is said of HYLA and its parts; how large, by half of what is printed."""

    def claim(words: str, leader: str, *others: str, size: Size | None = None) -> list[Claim]:
        return ahead(
            f"{_TASKS[task]}: {words}",
            (label_of(leader), ood[leader, "gelu"]),
            {label_of(other): ood[other, "gelu"] for other in others},
            size or _half_of_printed(task, leader, others),
        )

    boosted = [
        claim(
            f"{label_of(part)} by itself can slightly boost linear attention.",
            part,
            "linear",
            size=_SLIGHTLY,
        )
        for part in ("linear_rmshead", "hyla_minus_nonlinearity")
    ]
    return [
        *claim("HYLA generalises better than softmax and linear attention.", "hyla", *_RIVALS),
        *itertools.chain(*boosted),
        *claim(
            "the full HYLA model generally performs best (of the ablations).",
            "hyla",
            *ABLATIONS,
            size=NOTICEABLE,
        ),
        *claim("a deeper value network also generalises strongly.", "hyla_deep", *_RIVALS),
        *claim(
            "with the softmax instead of RMSHead it performs poorly.",
            "hyla",
            "hyla_minus_rmshead_plus_softmax",
        ),
    ]


def _half_of_printed(task: str, leader: str, others: Sequence[str]) -> Size:
    return Size(least=printed_lead(task, leader, others) / 2, why="half of what is printed")


def printed_lead(task: str, leader: str, others: Sequence[str]) -> float:
    """Return by how much a row is printed above the best of others."""
    printed = {name: TABLE_A1[name, "gelu"][task].mean for name in (leader, *others)}
    return printed[leader] - max(printed[name] for name in others)


def _as_printed(task: str, ood: _Scores) -> list[Claim]:
    """Claim that our numbers are the paper's: near them, row by row, on average over the rows."""
    pairs = [(score, TABLE_A1[row][task]) for row, score in ood.items() if score is not None]
    if not pairs:
        return []
    higher = sum(ours.mean > paper.mean for ours, paper in pairs)
    # Of each row the distance: signed, one row that is too high would make up for one too low.
    terms = []
    for pair in pairs:
        lower, upper = sorted(pair, key=lambda score: score.mean)
        terms += [(1 / len(pairs), lower), (-1 / len(pairs), upper)]
    nearer = effect(*terms, above=-_ALIKE)
    return [
        Claim(
            text=f"{_TASKS[task]}: the printed numbers.",
            numbers=f"ours are {100 * (_ALIKE - nearer.value):.1f} points from what is printed, "
            f"mean of {len(pairs)} rows; {higher} of ours are higher",
            effects=[nearer],
            size=Size(least=0, why=f"{100 * _ALIKE:g} points less that distance"),
        )
    ]


EXPERIMENT = Experiment(
    name="tableA1",
    title="Table A1: model ablations",
    shows="What RMSHead, the generated output projection and the nonlinearity each contribute, and "
    "what a deeper value network, the softmax and mixtures of experts do.",
    sweeps=_sweeps,
    figure=_figure,
    table=_table,
    claims=_claims,
)
