"""Tasks as PyTorch datasets: the sampler's instances, for a training loop of one's own.

`TaskDataset` is map-style: `dataset[i]` is instance i of a split, whoever asks and however often.
`dataset.stream(...)` is the same in order, as an iterable of whole batches, and its `loader` can be
stopped and resumed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from hyla._errors import check_positive
from hyla.tasks.base import Batch, Task
from hyla.tasks.fuzzy_logic import FuzzyLogic, FuzzyLogicConfig
from hyla.tasks.randomness import MAX_INSTANCES
from hyla.tasks.sraven.variants import INSTANCES, variant_named

TRAINING_INSTANCES = 20_000_000
"""Of the split `train`, unless told otherwise: as many as the paper's models see."""


def sraven_dataset(
    variant: str, split: str, *, seed: int = 0, instances: int | None = None
) -> TaskDataset:
    """A split of a named variant of SRAVEN (`hyla sraven variants`).

    At seed 0, `ood` is what the leaderboard evaluates on. Other seeds have other instances of the
    same combinations.
    """
    return TaskDataset(variant_named(variant).task, split, seed=seed, instances=instances)


def fuzzy_dataset(
    split: str,
    config: FuzzyLogicConfig | None = None,
    *,
    seed: int = 0,
    instances: int | None = None,
) -> TaskDataset:
    """A split of fuzzy logic, by default the paper's; the seed also says what is held out."""
    task = FuzzyLogic(config or FuzzyLogicConfig())
    return TaskDataset(task, split, seed=seed, instances=instances)


class TaskDataset(Dataset[Batch]):
    """The first instances of a split, each computed when it is asked for.

    They are drawn independently, so that training need not shuffle them.
    """

    def __init__(
        self, task: Task, split: str, *, seed: int = 0, instances: int | None = None
    ) -> None:
        if instances is None:
            instances = TRAINING_INSTANCES if split == "train" else INSTANCES
        check_positive(instances=instances)
        if instances > MAX_INSTANCES:
            raise ValueError(f"a split has {MAX_INSTANCES} instances, got {instances}")
        self._sampler = task.sampler(split, seeds=[seed], batch_size=1)
        self._instances = instances

    def __len__(self) -> int:
        return self._instances

    def __getitem__(self, number: int) -> Batch:
        """One instance: inputs, targets, labels, without a batch axis."""
        [instance] = self.__getitems__([number])
        return instance

    def __getitems__(self, numbers: Sequence[int]) -> list[Batch]:
        """Several at once, which a DataLoader asks for: far faster than one after the other."""
        batch = self.batch(torch.tensor([self._checked(number) for number in numbers]))
        return [Batch(*fields) for fields in zip(*batch, strict=True)]

    def batch(self, numbers: torch.Tensor) -> Batch:
        """The instances of these numbers as one batch."""
        return Batch(*(field.squeeze(0) for field in self._sampler.at(numbers)))

    def stream(self, batch_size: int) -> TaskStream:
        """The same instances in order, as an iterable of batches."""
        return TaskStream(self, batch_size)

    def _checked(self, number: int) -> int:
        if not -len(self) <= number < len(self):
            raise IndexError(f"there are {len(self)} instances, got number {number}")
        return number % len(self)


class TaskStream(IterableDataset[Batch]):
    """Batches of a dataset's instances, in order; the last may be smaller.

    A DataLoader with `batch_size=None` and any number of workers hands out the same batches in the
    same order. `loader` makes one that can also say where it is.
    """

    def __init__(self, dataset: TaskDataset, batch_size: int) -> None:
        check_positive(batch_size=batch_size)
        self.dataset, self.batch_size = dataset, batch_size
        self.next_batch = 0
        """Where an iteration begins."""

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        # A DataLoader asks its workers in turn, so that these shares give the order of one process.
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number in range(self.next_batch + first, len(self), step):
            begin = number * self.batch_size
            end = min(begin + self.batch_size, len(self.dataset))
            yield self.dataset.batch(torch.arange(begin, end))

    def loader(self, **options: Any) -> StreamLoader:
        """A DataLoader that can be resumed; options are those of `torch.utils.data.DataLoader`."""
        return StreamLoader(copy.copy(self), **options)  # each is where it is by itself


class StreamLoader(DataLoader[Batch]):
    """A DataLoader that knows which batches it has handed out, however far its workers are ahead.

    Iterating goes on where it was left, or where `load_state_dict` puts it; a pass that came to its
    end begins again.
    """

    def __init__(self, stream: TaskStream, **options: Any) -> None:
        if options.get("persistent_workers"):
            raise ValueError("persistent_workers would not hear where to resume: leave it out")
        if not options.get("in_order", True):
            raise ValueError("in_order=False loses count of the batches handed out: leave it out")
        super().__init__(stream, batch_size=None, **options)
        self._stream = stream

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        for batch in super().__iter__():
            self._stream.next_batch += 1
            yield batch
        self._stream.next_batch = 0

    def state_dict(self) -> dict[str, int]:
        """What to save beside a checkpoint."""
        return {"next_batch": self._stream.next_batch, "batch_size": self._stream.batch_size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on after the batches that had been handed out."""
        if state["batch_size"] != self._stream.batch_size:
            raise ValueError(
                f"the state is of batches of {state['batch_size']}, these are of "
                f"{self._stream.batch_size}: they would not begin where the others ended"
            )
        self._stream.next_batch = state["next_batch"]
