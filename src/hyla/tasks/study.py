"""What a task offers to the analyses of latent codes.

A study says which instances to look at, which query-key pairs should carry the operation that
gives a token its answer, and what *another* operation would prescribe for the same inputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

if TYPE_CHECKING:
    from hyla.tasks.base import Task


@dataclass(frozen=True, kw_only=True, eq=False)
class Specimens:
    """Instances to be looked at, all on one device; the columns for tables are NumPy arrays."""

    inputs: Float[Tensor, "N T F"]
    operations: Int64[Tensor, " N"]
    """Which operation gives each its answer, as an index into `Study.operations`."""
    answers: Float[Tensor, " N"]
    """What that operation prescribes."""
    labels: Mapping[str, np.ndarray]
    """Columns [N] for tables: the operation and its parts by name, and `target`, the answer."""
    decodable: Mapping[str, np.ndarray]
    """What to decode from codes: classes [N], or for several at once 0 and 1 [N, classes]."""
    predictors: Mapping[str, Float[np.ndarray, "N D"]]
    """What the same could be decoded from without a network: `inputs` and `target`."""
    operands: Int64[Tensor, " N"] | None = None
    """What the operation is applied to, as a number; None where no two instances share it."""

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, rows: Int64[Tensor, " n"] | slice) -> "Specimens":
        """Return some of them."""
        chosen = rows if isinstance(rows, slice) else rows.cpu().numpy()
        labels, decodable, predictors = (
            {name: column[chosen] for name, column in columns.items()}
            for columns in (self.labels, self.decodable, self.predictors)
        )
        return Specimens(
            inputs=self.inputs[rows],
            operations=self.operations[rows],
            answers=self.answers[rows],
            labels=labels,
            decodable=decodable,
            predictors=predictors,
            operands=None if self.operands is None else self.operands[rows],
        )


class Study(ABC):
    """One token of a task's instances and the operation that gives it its answer."""

    known: str
    """A split with compositions that training shows, whose codes are read."""
    unseen: str
    """The same with compositions that it does not show."""
    pairs: Mapping[str, Sequence[tuple[int, int]]]
    """Named sets of query-key pairs, all with the token as their query; the first is the usual."""
    operation: str
    """What an operation is called: the name of its column in `Specimens.labels`."""
    operations: tuple[str, ...]
    """Names of the operations."""
    classes: Mapping[str, tuple[str, ...]]
    """Names of the classes of everything in `Specimens.decodable`."""
    decoding_metric: str
    """By which the paper scores decoding: accuracy or f1."""
    continuous: bool = False
    """Whether answers are real numbers, which may lie between those of two operations."""

    @property
    def decoded(self) -> Sequence[tuple[str, str]]:
        """Known and unseen splits that are decoded: `known` and `unseen`, then other readings."""
        return ((self.known, self.unseen),)

    @property
    def swapped(self) -> tuple[str, str]:
        """The known and the unseen split among whose instances codes are exchanged."""
        return self.known, self.unseen

    @abstractmethod
    def sample(
        self,
        split: str,
        *,
        seed: int,
        instances: int,
        index: int = 0,
        device: torch.device | str = "cpu",
    ) -> Specimens:
        """Return the instances of batch number `index` of a split, as the seed has it."""

    @abstractmethod
    def prescribed(
        self, recipients: Specimens, operations: Int64[Tensor, " N"]
    ) -> Float[Tensor, " N"]:
        """Return what other operations prescribe for the recipients' inputs; NaN for nothing."""

    @abstractmethod
    def predictions(self, logits: Float[Tensor, "N T O"]) -> Float[Tensor, " N"]:
        """Return the model's answers."""

    @abstractmethod
    def agree(
        self, predictions: Float[Tensor, "*#any"], values: Float[Tensor, "*#any"]
    ) -> Bool[Tensor, "*any"]:
        """Whether predictions are these values; never for NaN."""

    def counterfactuals(
        self, recipients: Specimens, operations: Int64[Tensor, " N"]
    ) -> Float[Tensor, "N T F"] | None:
        """Return the recipients' inputs as another operation would have made them, if it can."""
        return None


class NoStudyError(ValueError):
    """A task says nothing about what its codes are of."""


def study_of(task: "Task") -> Study:
    """Return the task's study of codes; of the paper's tasks, the one of its latent analysis."""
    if task.study is None:
        raise NoStudyError(
            f"there is no study of {type(task).__name__}: derive one from hyla.latents.Study, and "
            "return it from the task's property `study`"
        )
    return task.study


def as_numpy(tensor: Tensor) -> np.ndarray:
    """Return a tensor of any device as an array."""
    return tensor.cpu().numpy()
