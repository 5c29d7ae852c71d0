"""The models that can be explored: those of named runs, and those that are shipped."""

import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from hyla._errors import nearest
from hyla.attention import RECOMMENDED
from hyla.explorer import labels
from hyla.explorer.packed import Description, read_description, read_weights, shipped_models
from hyla.explorer.web import schemas
from hyla.explorer.web.refusals import NotThereError, RefusedError
from hyla.latents.pairs import resolve_pairs
from hyla.nn import Transformer
from hyla.results.runs import flat_settings, load_model, read_run
from hyla.results.subjects import Subject
from hyla.tasks import FuzzyLogic, Sraven, task_class
from hyla.training import TrainConfig
from hyla.training.identity import shape_key
from hyla.training.run.errors import CheckpointError, RunDirectoryError

_NAMES = {
    RECOMMENDED: "HYLA as recommended",
    "hyla": "HYLA",
    "softmax": "Softmax",
    "linear": "Linear",
}


class Exhibit(Subject):
    """A trained model as the page shows it, and as requests take turns with it."""

    def __init__(
        self,
        *,
        id: str,
        config: TrainConfig,
        member: int,
        scores: dict[str, float],
        note: str,
        load: Callable[[], Transformer],
    ):
        super().__init__(name=id, config=config, member=member, load=load)
        self.id, self.scores, self.note = id, scores, note
        self.settings = asdict(config.members[member]) | flat_settings(config.to_tree())
        self.label = self._own_label()  # a gallery adds to it where others have the same
        self.shape = shape_key(config)
        # Codes are recorded and edited through hooks on the model: one request at a time.
        self._lock = threading.RLock()

    @contextmanager
    def lent(self) -> Iterator[Transformer]:
        """Lend the model to one thread."""
        with self._lock:
            yield self.model

    def finite(self, computed: Tensor) -> Tensor:
        """Return what the model computed; refuse if that is no numbers."""
        if not computed.isfinite().all():
            raise RefusedError(
                f"{self.id} computes no finite numbers, as a model whose training diverged does: "
                "choose another"
            )
        return computed

    @cached_property
    def model(self) -> Transformer:
        """The network; refused where it is there no more."""
        try:
            return super().model
        except (RunDirectoryError, CheckpointError) as error:  # it was there when all began
            raise RefusedError(f"{self.id} can no longer be read: {error}") from error

    @property
    def sraven(self) -> Sraven:
        """Its task, if that is SRAVEN."""
        return self._task_of("sraven")

    @property
    def fuzzy(self) -> FuzzyLogic:
        """Its task, if that is fuzzy logic."""
        return self._task_of("fuzzy")

    def _task_of(self, name: str) -> Any:
        if self.config.task_name != name:
            raise RefusedError(
                f"{self.id} learned {self.task.title}: choose a model of {task_class(name).title}"
            )
        return self.task

    @cached_property
    def description(self) -> schemas.Model:
        """What the page shows of it."""
        model, task = self.config.model, self.config.task_name
        return schemas.Model(
            id=self.id,
            name=self._name,
            label=self.label,
            task=task,  # pyright: ignore[reportArgumentType]
            attention=str(model.attention),
            layers=model.num_layers,
            heads=model.num_heads * model.width_factor,
            seed=self.seed,
            note=self.note,
            scores=self.scores,
            metric=self.task.headline,
            **{name: shape(self) if name == task else None for name, shape in FACES.items()},
        )

    @property
    def _name(self) -> str:
        attention = str(self.config.model.attention)
        return _NAMES.get(attention, attention)

    def _own_label(self) -> str:
        model = self.config.model
        heads = model.num_heads * model.width_factor
        size = f"{_counted(model.num_layers, 'layer')}, {_counted(heads, 'head')}"
        return f"{self._name}, seed {self.seed} ({size})"


def _puzzle_shape(subject: Exhibit) -> schemas.PuzzleShape:
    task = subject.sraven
    return schemas.PuzzleShape(
        shape=subject.shape,
        features=task.config.num_features,
        values=task.config.num_values,
        rules=list(task.config.rules),
        pairs=study_pairs(subject),
    )


def _function_shape(subject: Exhibit) -> schemas.FunctionShape:
    config = subject.fuzzy.config
    return schemas.FunctionShape(
        shape=subject.shape,
        variables=config.num_variables,
        terms=config.num_terms,
        context=config.sequence_length - 1,
    )


FACES = {"sraven": _puzzle_shape, "fuzzy": _function_shape}
"""The tasks that the page can show, by name, and what tells it how their instances look."""


class Gallery:
    """All exhibits by id; the first of a task is the one to begin with."""

    def __init__(self, subjects: Sequence[Exhibit]):
        self.subjects = {subject.id: subject for subject in subjects}
        for task in FACES:  # the page never shows models of two at once
            ours = {id: s for id, s in self.subjects.items() if s.config.task_name == task}
            named = labels.distinct(
                {id: subject.label for id, subject in ours.items()},
                {id: subject.settings for id, subject in ours.items()},
            )
            for id, label in named.items():
                ours[id].label = label

    def __getitem__(self, id: str) -> Exhibit:
        if id not in self.subjects:
            raise NotThereError(
                f"there is no model {id!r}{nearest(id, self.subjects)}; see /api/about"
            )
        return self.subjects[id]

    def first(self, *, shape: str) -> Exhibit | None:
        """Return the first model of a shape."""
        return next((s for s in self.subjects.values() if s.shape == shape), None)


def open_gallery(
    runs: Sequence[Path], *, leave_out: Callable[[str], None] | None = None
) -> Gallery:
    """Return the models of these runs, and after them the shipped ones.

    With `leave_out`, runs that cannot be explored are left out and it is told why, unless none can.

    Raises:
        RunDirectoryError: one is no run, or none that can be explored.
        CheckpointError: one has no checkpoint yet.
    """
    subjects: list[Exhibit] = []
    refused: list[RunDirectoryError | CheckpointError] = []
    for run in runs:
        try:
            subjects += _of_run(run)
        except (RunDirectoryError, CheckpointError) as error:
            refused.append(error)
    if refused and (leave_out is None or not subjects):
        raise refused[0]
    for error in refused:
        if leave_out is not None:
            leave_out(str(error))
    return Gallery([*subjects, *map(_shipped, shipped_models().values())])


def study_pairs(subject: Exhibit, name: str = "row") -> list[tuple[int, int]]:
    """Return the study's pairs of positions, counted from the beginning."""
    length = subject.task.sequence_length
    listed = resolve_pairs(subject.study.pairs[name], queries=length, keys=length)
    return [(query, key) for query, key in listed.tolist()]


def _of_run(path: Path) -> Iterator[Exhibit]:
    """Yield every member of a run; its first is loaded at once, to see whether it can be."""
    first, config = load_model(path)
    if config.task_name not in FACES:
        raise RunDirectoryError(
            f"{path} was trained on the task {config.task_name}, which the explorer has no page "
            f"for: choose a run of {' or '.join(FACES)}"
        )
    if not getattr(config.task, "all_scored", True):
        raise RunDirectoryError(
            f"{path} was trained with distractors or blanks, and the explorer's solver cannot take "
            "those: choose a run without"
        )
    stored = read_run(path)
    headline = config.build_task().headline
    for number in range(len(config.members)):
        metrics = stored.summary["members"][number]["metrics"] if stored.summary else {}
        yield Exhibit(
            id=f"{path.resolve().name}:{number}",
            config=config,
            member=number,
            scores=_by_split(metrics, headline),
            note=f"Member {number} of {path.resolve().name}, step {stored.checkpoint_step}"
            + ("." if stored.summary else " or later: not finished yet."),
            load=lambda number=number: first if number == 0 else load_model(path, number)[0],
        )


def _shipped(stem: Path) -> Exhibit:
    about, config = read_description(stem)
    devices = "; ".join(dict.fromkeys(start["device"] for start in about.provenance))
    version = about.provenance[-1]["hyla"]
    return Exhibit(
        id=stem.name,
        config=config,
        member=0,
        scores=about.scores,
        note=f"Comes with hyla: {config.steps:,} steps of version {version} on {devices}"
        f"{_among_seeds(about)}.",
        load=lambda: read_weights(stem, config),
    )


def _among_seeds(about: Description) -> str:
    """Say how the model was chosen, if it is one of several that differ by their seed."""
    of_seeds = about.scores_of_seeds.values()
    if len(of_seeds) < 2:
        return ""
    validation = [scores["validation"] for scores in of_seeds if "validation" in scores]
    best = bool(validation) and about.scores["validation"] == max(validation)
    which, how = ("the best", " on validation") if best else ("one", "")
    mean = statistics.fmean(scores["ood"] for scores in of_seeds)
    return (
        f"; {which} of {len(of_seeds)} seeds{how} (their mean on held-out combinations: {mean:.3f})"
    )


def _counted(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _by_split(metrics: dict[str, float], headline: str) -> dict[str, float]:
    wanted = f"/{headline}"
    return {
        name.removesuffix(wanted): value
        for name, value in metrics.items()
        if name.endswith(wanted) and name.count("/") == 1 and value == value
    }
