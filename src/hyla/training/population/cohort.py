"""A population that fits the device: split into as many parts as its memory demands."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hyla.attention import AttentionSpec
from hyla.nn import BranchScales
from hyla.training.config import Evaluation
from hyla.training.devices import ModelTooLargeError, free_memory
from hyla.training.member import Member
from hyla.training.population.population import Population
from hyla.training.run.held import of_models
from hyla.training.run.trainee import Trainee


class Model(NamedTuple):
    """What tells a model from others that train together."""

    member: Member
    attention: str | AttentionSpec


class Cohort(Trainee):
    """Models that train together as one `Population`, or several in turn where it would not fit.

    The split does not change any member's numbers but for rounding. It is decided once, before
    the first step.
    """

    def __init__(
        self,
        models: Sequence[Model],
        evaluation: Evaluation,
        build: Callable[[Sequence[Model], Population | None], Population],
        say: Callable[[str], None],
    ):
        """`build` makes a population that is ready to train, and may run out of memory.

        It is also given the first part, if there is one, to share what both need only in turn.
        """
        self.models = tuple(models)
        self._evaluation = evaluation
        self._build = build
        self._say = say
        self.parts = self._fit()
        self.headline = f"{evaluation.headline}/{self.parts[0].objective.headline}"

    def _fit(self) -> list[Population]:
        """Build the members in parts as large as memory allows.

        All parts anew at each try: one that fits alone may leave no room for the others.
        """
        size = len(self.models)
        while True:
            try:
                return self._built(size)
            except torch.cuda.OutOfMemoryError as error:
                if size == 1:
                    raise ModelTooLargeError(
                        "Even one model at a time does not fit into the GPU's memory: use a "
                        "smaller batch_size or precision 'bf16', or free the GPU of other "
                        "processes."
                    ) from error
            # Outside the except block: the exception's traceback keeps the failed tensors alive.
            free_memory()
            half = (size + 1) // 2
            self._say(
                f"{size} models do not fit into the GPU's memory together: training {half} at a "
                "time, in turn."
            )
            size = half

    def _built(self, size: int) -> list[Population]:
        parts = [self.models[i : i + size] for i in range(0, len(self.models), size)]
        first = self._build(parts[0], None)
        return [first, *(self._build(part, first) for part in parts[1:])]

    @property
    def step(self) -> int:
        """Steps taken so far."""
        return int(self.parts[0].step)

    def train(self, steps: int) -> None:
        """Take `steps` steps with every part."""
        for part in self.parts:
            part.train(steps)

    @property
    def has_unlogged_losses(self) -> bool:
        """Whether a step was taken since `mean_losses` was last called."""
        return bool(self.parts[0].losses_summed)

    def mean_losses(self) -> list[float]:
        """Mean training loss of each member since the last call."""
        return self._joined([part.mean_losses() for part in self.parts])

    def diverged_at(self) -> list[int | None]:
        """Steps after which members were left as they were, for no finite number came next."""
        steps = self._joined([part.diverged_at for part in self.parts])
        return [None if step < 0 else step for step in steps]

    def evaluate(
        self, *, final: bool, before_batch: Callable[[], None] = lambda: None
    ) -> dict[str, list[float]]:
        """Metrics of each member on every split."""
        settings = self._evaluation
        instances = settings.final_instances if final else settings.instances
        metrics = {}
        for split in settings.splits:
            parts = [
                part.evaluate(split, instances, before_batch=before_batch) for part in self.parts
            ]
            for name in parts[0]:
                metrics[f"{split}/{name}"] = self._joined([part[name] for part in parts])
        return metrics

    def branch_scales(self, instances: int) -> list[list[BranchScales]]:
        """Scales in each member's blocks, on instances of its next training batch."""
        return [member for part in self.parts for member in part.branch_scales(instances)]

    def tensors(self) -> dict[str, Tensor]:
        """State of all parts, members joined again, so that it loads under another split."""
        states = [part.state() for part in self.parts]
        return {
            name: tensor if tensor.ndim == 0 else torch.cat([state[name] for state in states])
            for name, tensor in states[0].items()
        }

    def resume(self, step: int, tensors: dict[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from the `tensors()`, which say all; also those of another split."""
        start = 0
        for part in self.parts:
            stop = start + len(part.members)
            part.load_state(of_models(tensors, slice(start, stop)))
            start = stop

    @staticmethod
    def _joined(tensors: Sequence[Tensor]) -> list[Any]:
        return torch.cat(list(tensors)).tolist()
