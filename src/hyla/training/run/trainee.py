"""What a run trains: the little that its loop has to know of a population or a language model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from hyla.nn import BranchScales, TransformerConfig
from hyla.training.member import Member


class Trainee(ABC):
    """One or more models that are trained step by step; lists hold an entry for each.

    On several ranks, all of them call every method at the same time.
    """

    headline: str
    """The metric that is shown while the run goes on."""

    @property
    @abstractmethod
    def step(self) -> int:
        """Steps taken so far."""

    @property
    @abstractmethod
    def has_unlogged_losses(self) -> bool:
        """Whether a step was taken since `mean_losses` was last called."""

    def prepare(self) -> None:  # noqa: B027 - there may be nothing to do
        """Compile, and take all memory, before the first step. Changes no numbers."""

    @abstractmethod
    def train(self, steps: int) -> None:
        """Take `steps` steps; on a GPU, without waiting for them."""

    @abstractmethod
    def mean_losses(self) -> list[float]:
        """Return the mean training losses since the last call."""

    @abstractmethod
    def diverged_at(self) -> list[int | None]:
        """Return after how many steps a loss, or an update, was not finite; None for never."""

    def hopeless(self) -> bool:
        """Return whether further steps would be wasted; asked where losses are reported."""
        return False

    @abstractmethod
    def evaluate(self, *, final: bool, before_batch: Callable[[], None]) -> dict[str, list[float]]:
        """Return all metrics, of the few instances scored on the way or of those at the end.

        `before_batch` may raise, to stop it.
        """

    @abstractmethod
    def branch_scales(self, instances: int) -> list[list[BranchScales]]:
        """Return the scales in the blocks, on some instances of the next training batch."""

    def progress(self) -> dict[str, int]:
        """Return what counts how far the training is, beside steps."""
        return {}

    def speed(self, steps: int, seconds: float) -> dict[str, list[float]]:
        """Return how fast `steps` steps in `seconds` were."""
        return {}

    def summary(self, training_seconds: float) -> dict[str, Any]:
        """Return what the final summary says of the whole, beside steps and time."""
        return {}

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint has to hold, by name."""

    def meta(self) -> dict[str, Any]:
        """Return what else it has to hold, as JSON can."""
        return {}

    @abstractmethod
    def resume(self, step: int, tensors: dict[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's step and `meta`, with what was read into `tensors()`."""

    def close(self) -> None:  # noqa: B027 - there may be nothing to do
        """Let go of what outlives the run; nothing can be trained afterwards."""


@runtime_checkable
class _Periodic(Protocol):
    @property
    def every(self) -> int: ...


@runtime_checkable
class RunConfig(Protocol):
    """What both kinds of configs have."""

    @property
    def members(self) -> Sequence[Member]:
        """One for each model."""
        ...

    @property
    def model(self) -> TransformerConfig:
        """The shape of all of them."""
        ...

    @property
    def steps(self) -> int:
        """Of the whole training."""
        ...

    @property
    def log_every(self) -> int:
        """Steps between records of the loss."""
        ...

    @property
    def evaluation(self) -> _Periodic:
        """How often it is evaluated."""
        ...

    def to_tree(self) -> dict[str, Any]:
        """Return it as it stands in config.json."""
        ...
