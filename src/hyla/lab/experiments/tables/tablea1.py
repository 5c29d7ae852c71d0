"""Table A1: which parts of HYLA matter."""

import itertools
import re
import statistics
from typing import Any

from hyla.figures.drawing import Figure, Heatmap, Table
from hyla.lab.claims import Verdict, agrees, ahead, percent, share
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.panels import label_of
from hyla.lab.grids import METHODS, table_a1
from hyla.lab.paper import TABLE_A1
from hyla.results.selection import Estimate
from hyla.results.tables import Cell, Results
from hyla.tasks.sraven import SravenConfig

_TASKS = {"fuzzy": "Fuzzy logic: OOD R²", "sraven": "SRAVEN: OOD accuracy"}


def _sweeps(scale: str) -> list[dict[str, Any]]:
    return [tree for task in _TASKS for tree in table_a1(task, scale)]


def row_label(attention: str, feed_forward: str) -> str:
    """Return the name of a row as the paper prints it."""
    return label_of(attention) + (" + MoE" if feed_forward == "moe" else "")


def _cell(results: Results, task: str, row: tuple[str, str]) -> Cell | None:
    return results.find(task_name=task, model__attention=row[0], model__feed_forward=row[1])


def _ood(results: Results, task: str, row: tuple[str, str]) -> Estimate | None:
    cell = _cell(results, task, row)
    return None if cell is None else cell.ood


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
    ood, seen = cell.ood, cell.seen
    return [
        "" if ood is None else percent(ood),
        percent(paper),
        "" if seen is None else percent(seen),
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


def _verdicts(results: Results) -> list[Verdict]:
    found: list[Verdict] = []
    for task, name in _TASKS.items():
        ood = {row: _ood(results, task, row) for row in TABLE_A1}

        def plain(*names: str, scores: dict = ood) -> dict[str, Estimate | None]:
            return {label_of(name): scores[name, "gelu"] for name in names}

        hyla = ("HYLA", ood["hyla", "gelu"])
        found += ahead(
            f"{name}: HYLA generalises better than softmax and linear attention.",
            hyla,
            plain("softmax", "linear"),
        )
        for part in ("linear_rmshead", "hyla_minus_nonlinearity"):
            found += ahead(
                f"{name}: {label_of(part)} by itself can slightly boost linear attention.",
                (label_of(part), ood[part, "gelu"]),
                plain("linear"),
            )
        ablations = [n for n, f in TABLE_A1 if f == "gelu" and n not in (*METHODS, "hyla_deep")]
        found += ahead(
            f"{name}: the full HYLA model generally performs best (of the ablations).",
            hyla,
            plain(*ablations),
        )
        found += ahead(
            f"{name}: a deeper value network also generalises strongly.",
            (label_of("hyla_deep"), ood["hyla_deep", "gelu"]),
            plain("softmax", "linear"),
        )
        found += ahead(
            f"{name}: with the softmax instead of RMSHead it performs poorly.",
            hyla,
            plain("hyla_minus_rmshead_plus_softmax"),
        )
        # Smaller models, or fewer steps, are not what was printed.
        if (results.conditions.scale, results.conditions.shorten) == ("paper", 1):
            found += _numbers(task, name, ood)
    return found


def _numbers(task: str, name: str, ood: dict[tuple[str, str], Estimate | None]) -> list[Verdict]:
    """Judge the printed numbers: how many of ours are within two standard errors of them."""
    pairs = [(score, TABLE_A1[row][task]) for row, score in ood.items() if score is not None]
    close = [agrees(ours, paper) for ours, paper in pairs]
    higher = sum(ours.mean > paper.mean for ours, paper in pairs)
    verdicts = share(
        f"{name}: the printed numbers.",
        close,
        f"{sum(close)} of {len(pairs)} rows within two standard errors (ours and the paper's "
        f"combined) of what is printed; {higher} of ours are higher",
        enough=0.95,  # of true agreements one in twenty lies outside
    )
    return verdicts


EXPERIMENT = Experiment(
    name="tableA1",
    title="Table A1: model ablations",
    shows="What RMSHead, the generated output projection and the nonlinearity each contribute, and "
    "what a deeper value network, the softmax and mixtures of experts do.",
    sweeps=_sweeps,
    figure=_figure,
    table=_table,
    verdicts=_verdicts,
)
