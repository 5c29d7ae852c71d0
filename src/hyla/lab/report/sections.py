"""What the store holds, beside the paper: sections, and the files made of them.

Nothing here trains or measures. Conditions are reported by themselves, the paper's own first.
"""

import dataclasses
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hyla.figures.drawing import Figure, Table
from hyla.lab.claims import Claim, percent
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.panels import each_seed
from hyla.lab.grids import METHODS
from hyla.lab.methods import Method, methods_of, results_of, titled
from hyla.lab.registry import PAPER, all_names, load
from hyla.lab.verdicts import STATUSES, UNJUDGED, Verdict, judge, unjudged
from hyla.results.conditions import Conditions
from hyla.results.origins import is_dirty
from hyla.results.runs import Row
from hyla.results.tables import Cell, Results, Tables, stored_conditions
from hyla.training import SCALES
from hyla.training.identity import method_key

_LEAST_SHARE = 0.3
_HOME = "tableA1"
"""Where models are shown that several experiments share: it compares them as the presets have them.
"""
_ORIGIN = ("device", "torch", "git_commit")


@dataclass(frozen=True, kw_only=True)
class Section:
    """One experiment under one set of conditions, as far as it was measured."""

    experiment: Experiment
    conditions: Conditions
    """Where its tables and figure lie in the store."""
    heading: str
    """What the models of the section have in common: scale, length, precision."""
    figure: Figure | None
    table: Table | None
    models: Table | None
    """Every method that was trained for it: scores, picked hyper-parameters, ceiling.

    None where something was measured on the models: those are in a section about scores.
    """
    claims: Sequence[Claim]
    origin: str
    """What the numbers were computed with."""
    dirty: bool
    """Whether some of it had changes that no commit has."""
    verdicts: Sequence[Verdict] = ()
    """On its claims, judged together with those of all sections."""
    failures: list[str] = field(default_factory=list)
    """A line for what of it could not be shown."""

    @property
    def figure_path(self) -> Path:
        """Where its figure lies in the store, without a suffix."""
        return Path(self.conditions.label) / "figures" / self.experiment.name


def build(
    store: Path,
    progress: Callable[[str], None] = lambda line: None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Section]:
    """Return a section for everything in the store, the paper's scale first.

    `progress` is told which conditions are being read, which takes some seconds, and `say` what is
    left out.
    """
    sections = []
    for conditions in sorted(
        stored_conditions(store), key=lambda s: (-SCALES.index(s.scale), s.label)
    ):
        progress(f"{conditions.label}: reading its tables")
        sections += [_section(*shown) for shown in _shown(Tables(store, conditions), say)]
    return _judged(sections)


def _shown(tables: Tables, say: Callable[[str], None]) -> list[tuple[Experiment, Results]]:
    """Return the experiments of which enough is measured, so that every model is in one of them.

    Models are shared: those of one figure alone would make thin versions of many others. Where a
    claim can be judged by a model's scores, it is in an experiment that judges one. The table in
    which the methods are compared stays when figures that share its models join it.
    """
    everything = [(load(name), results_of(load(name), tables)) for name in all_names()]
    known = {method_key(cell.config) for _, found in everything for cell in found.cells}
    if others := sum(row["method"] not in known for row in tables.models()):
        say(
            f"{tables.conditions.label}: {others} models are left out, for they are of no figure "
            "that is known here; that of a plug-in is known with --plugin FILE.py"
        )
    chosen = {experiment.name for experiment, found in everything if _answered(experiment, found)}
    scored = [(e, found) for e, found in everything if e.measurement is None]
    judging = [(e, found) for e, found in scored if e.claims(found)]
    chosen |= {_HOME} & {experiment.name for experiment, _ in judging}
    for candidates in (judging, scored):
        keys = {e.name: {method_key(cell.config) for cell in r.cells} for e, r in candidates}
        chosen |= _covering(keys, chosen)
    return [(experiment, found) for experiment, found in everything if experiment.name in chosen]


def _answered(experiment: Experiment, results: Results) -> bool:
    """Whether enough is there of what the experiment asks for, and something that is its own."""
    if experiment.measurement is not None:
        return bool(results.rows)
    methods = methods_of(experiment, results.conditions)
    found = {method_key(cell.config) for cell in results.cells}
    if len(found) < _LEAST_SHARE * len(methods):
        return False
    return any(
        method_key(m.config) in found and not _shared(m, results.conditions) for m in methods
    )


def _shared(method: Method, conditions: Conditions) -> bool:
    """Whether it is one of the three that all compare, as the preset has it."""
    task, attention = method.config.task_name, method.config.model.attention
    return attention in METHODS and titled(method, conditions).settings == {task: attention}


def _covering(keys: Mapping[str, set[str]], chosen: set[str]) -> set[str]:
    """Return what to add to the chosen, so that each of the models is in an experiment of these."""
    missing = set().union(*keys.values())
    missing -= set().union(*(keys[name] for name in chosen & keys.keys()))
    added = set()
    while missing:
        best = max(keys, key=lambda name: (len(keys[name] & missing), name == _HOME))
        added.add(best)
        missing -= keys[best]
    return added


@contextmanager
def noting(failures: list[str], what: str) -> Iterator[None]:
    """Go on where something cannot be shown: nothing else is lost for it."""
    try:
        yield
    except OSError:  # of the disk, which nothing else can be written to either
        raise
    except Exception as error:
        traceback.print_exc()
        failures.append(f"no {what}: {type(error).__name__}: {error}")


def failures(sections: Sequence[Section]) -> list[str]:
    """Return a line for everything that could not be shown."""
    return [
        f"{section.conditions.label}, {section.experiment.name}: {failure}"
        for section in sections
        for failure in section.failures
    ]


def _section(experiment: Experiment, results: Results) -> Section:
    failed: list[str] = []
    figure = table = None
    with noting(failed, "figure"):
        figure = experiment.figure(results)
    with noting(failed, "table"):
        table = experiment.table(results)
    return Section(
        experiment=experiment,
        conditions=results.conditions,
        heading=_heading(results),
        figure=figure,
        table=table,
        failures=failed,
        models=_models_table(experiment, results),
        claims=experiment.claims(results),
        origin=_origin(experiment, results),
        dirty=any(is_dirty(row.get("git_commit")) for row in _all_rows(results)),
    )


def _heading(results: Results) -> str:
    """Name the conditions; language models train in their preset's precision, whatever is asked."""
    own = {row["precision"] for row in results.rows if row.get("precision")}
    return results.conditions.heading(" and ".join(sorted(own)) or results.conditions.precision)


def _judged(sections: Sequence[Section]) -> list[Section]:
    """Return the sections with verdicts; at smoke scale nothing is learnt that could be judged."""
    judging = [section for section in sections if section.conditions.scale != "smoke"]
    verdicts = iter(judge([claim for section in judging for claim in section.claims]))
    return [
        dataclasses.replace(
            section,
            verdicts=[
                next(verdicts) if section in judging else unjudged(claim)
                for claim in section.claims
            ],
        )
        for section in sections
    ]


def _models_table(experiment: Experiment, results: Results) -> Table | None:
    """Return what was trained; a column that would be empty everywhere is left out."""
    if experiment.measurement is not None or not results.cells:
        return None
    titles = {
        method_key(method.config): str(titled(method, results.conditions))
        for method in methods_of(experiment, results.conditions)
    }
    columns: dict[str, list[str]] = {
        "method": [titles[method_key(cell.config)] for cell in results.cells],
        "OOD": [percent(cell.ood) for cell in results.cells],
        "OOD of each seed": [_of_each_seed(cell) for cell in results.cells],
        "seen": [percent(cell.seen) for cell in results.cells],
        "unknown terms": [percent(c.score(f"unknown_terms/{c.headline}")) for c in results.cells],
        "best possible OOD": [percent(results.ceiling(cell)) for cell in results.cells],
        "training loss": [_loss(cell) for cell in results.cells],
        "seeds": [str(len(cell.picked)) for cell in results.cells],
        "lr": [f"{cell.hyperparameters['learning_rate']:g}" for cell in results.cells],
        "decay": [f"{cell.hyperparameters['weight_decay']:g}" for cell in results.cells],
        "warmup": [f"{cell.hyperparameters['warmup_steps']:g}" for cell in results.cells],
        "settings compared": ["{} of {}".format(*cell.searched) for cell in results.cells],
        "diverged": [_diverged(cell) for cell in results.cells],
    }
    kept = {name: texts for name, texts in columns.items() if any(texts)}
    return Table(
        columns=list(kept),
        rows=list(zip(*kept.values(), strict=True)),
        note="Scores in percent (R² or accuracy), mean ± standard error over the seeds at the "
        "hyper-parameters best on validation.",
    )


def _of_each_seed(cell: Cell) -> str:
    scores = each_seed(cell)
    return scores if ", " in scores else ""


def _loss(cell: Cell) -> str:
    loss = cell.score("train/loss")
    return "" if loss is None else f"{loss.mean:.3g}"


def _diverged(cell: Cell) -> str:
    count = sum(bool(row["diverged"]) for row in cell.rows)
    return f"{count} of {len(cell.rows)}" if count else ""


def _origin(experiment: Experiment, results: Results) -> str:
    parts = []
    for name in _ORIGIN:
        values = Counter(str(row[name]) for row in _all_rows(results) if row.get(name))
        if values:
            short = [_short_commit(value) if name == "git_commit" else value for value in values]
            parts.append(f"{name.replace('_', ' ')} {', '.join(dict.fromkeys(short))}")
    return "; ".join([*_training(experiment, results), *parts])


def _all_rows(results: Results) -> list[Row]:
    return [*(row for cell in results.cells for row in cell.rows), *results.rows]


def _training(experiment: Experiment, results: Results) -> list[str]:
    """Say how many models there are, how long they trained, and which of them are shown."""
    if not results.cells:
        # Language models are not of a sweep: their runs stand in what was measured on them.
        runs = {row["run"] for row in results.rows if row.get("run")}
        return [f"{len(runs)} models" if runs else "no training"]
    trained = sum(len(cell.rows) for cell in results.cells)
    picked = sum(len(cell.picked) for cell in results.cells)
    shown = f" trained, {picked} at the picked hyper-parameters" if picked < trained else ""
    parts = [f"{trained} models{shown}"]
    if experiment.measurement is not None:  # else the table of models names them
        parts += _picked_hyperparameters(results.cells)
    lengths = {
        f"{cell.config.task_name} {cell.config.steps:,} steps × {cell.config.batch_size} = "
        f"{cell.instances:,} instances": cell.instances
        for cell in results.cells
    }
    return [*parts, *sorted(lengths, key=lambda text: lengths[text])]


def _picked_hyperparameters(cells: Sequence[Cell]) -> list[str]:
    """Name them once for all methods that share them."""
    methods: dict[str, list[str]] = {}
    for cell in cells:
        text = "lr {learning_rate:g}, decay {weight_decay:g}, warmup {warmup_steps:g}"
        picked = text.format(**cell.hyperparameters)
        methods.setdefault(picked, []).append(str(cell.config.model.attention))
    return [f"{picked} ({', '.join(names)})" for picked, names in methods.items()]


def _short_commit(commit: str) -> str:
    """Abbreviate a commit, but not that the tree had changes of its own."""
    digits, dirty, _ = commit.partition("-dirty")
    return digits[:12] + dirty


def beyond_the_paper(section: Section) -> bool:
    """Whether it is a question of ours, or of a reviewer, rather than a claim of the paper."""
    return section.experiment.name not in PAPER


def missing(sections: Sequence[Section]) -> dict[str, list[Experiment]]:
    """Return what was not measured at the paper's own scale and length, by where it was at best."""
    found: dict[str, list[Experiment]] = {}
    for name in all_names():
        own = [section for section in sections if section.experiment.name == name]
        best = max(own, key=lambda section: likeness(section.conditions), default=None)
        if best is None:
            found.setdefault("Not measured yet, or too little to show", []).append(load(name))
        elif likeness(best.conditions) < likeness(Conditions(scale=SCALES[-1])):
            found.setdefault(f"Measured only at {best.heading}", []).append(load(name))
    return found


def likeness(conditions: Conditions) -> tuple[int, int]:
    """Return what rises with how close conditions are to the paper's."""
    return SCALES.index(conditions.scale), -conditions.shorten


def counts(sections: Sequence[Section]) -> dict[str, int]:
    """Return how many claims were judged in each way, and how many were not, for each reason."""
    found = Counter(verdict.status for section in sections for verdict in section.verdicts)
    return {status: found[status] for status in (*STATUSES, *UNJUDGED)}
