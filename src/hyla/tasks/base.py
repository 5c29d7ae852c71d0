"""What every task offers: splits, samplers, an objective, presets, perhaps a study of codes."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Protocol,
    TypeVar,
    runtime_checkable,
)

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hyla._errors import check_choice, check_positive
from hyla.tasks.randomness import MAX_INSTANCES
from hyla.tasks.splits import Combination

if TYPE_CHECKING:
    from hyla.tasks.study import Study


class Batch(NamedTuple):
    """One batch; a population's batch has a leading axis P on every field."""

    inputs: Float[Tensor, "*p b t features"]
    """What the model reads."""
    targets: Tensor
    """What it has to predict; the task says of which shape and kind."""
    labels: Int64[Tensor, "*p b constituents"]
    """What the task was made of (terms, rules), for analysis."""


@runtime_checkable
class Objective(Protocol):
    """What is optimised, and how it is scored: sees the logits of one model on one batch.

    Metrics come as sums over the batch and are divided by the number of instances at the end, so
    that any evaluation size aggregates exactly.
    """

    headline: str
    """The metric by which models are compared; more is better."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Mean loss over the batch."""
        ...

    def sums(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Sums over the batch; `finish` turns totals of them into metrics."""
        ...

    def finish(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Metrics from the sums over all evaluated instances."""
        ...


def check_objective(objective: object, task: str) -> None:
    """Raise a ValueError that says what an objective lacks."""
    parts = ("headline", "loss", "sums", "finish")
    if missing := [part for part in parts if not hasattr(objective, part)]:
        raise ValueError(
            f"the objective of {task} has no {' and no '.join(missing)}: add what "
            "hyla.tasks.Objective describes"
        )


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The combinations on each side of a task's split."""

    task: str
    seed: int
    constituents: tuple[str, ...]
    """Names of the constituents; combinations are sorted indices into them."""
    sides: Mapping[str, tuple[Combination, ...]]

    @property
    def hash(self) -> str:
        """SHA-256 of the constituents and sides; two equal splits have the same, whatever seed."""
        sides = {name: sorted(combinations) for name, combinations in self.sides.items()}
        content = json.dumps([self.task, self.constituents, sides], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def __str__(self) -> str:
        lines = [f"{self.task}, seed {self.seed}, sha256 {self.hash}"]
        for name, combinations in self.sides.items():
            lines.append(f"{name}: {len(combinations)} combinations")
            lines += ["  " + " | ".join(self.constituents[c] for c in row) for row in combinations]
        return "\n".join(lines)


class Sampler(ABC):
    """Batches of one split for a population of seeds; holds its constant tables on the device.

    `sampler(index)` is a pure function: batch `index` consists of the split's instances
    `index * batch_size` to `(index + 1) * batch_size - 1`, so batches of any size tile the same
    sequence of instances. The index may be a 0-d int64 tensor on the sampler's device; the call
    then neither waits for the device nor copies from the host, and can be compiled or captured.
    """

    def __init__(self, *, batch_size: int, device: torch.device | str) -> None:
        self.batch_size = batch_size
        self._offsets = torch.arange(batch_size, dtype=torch.int64, device=device)

    @abstractmethod
    def __call__(self, index: int | Int64[Tensor, ""]) -> Batch:
        """Batch number `index`, with a leading axis P."""

    def at(self, numbers: Int64[Tensor, "b"]) -> Batch:
        """The split's instances of these numbers, in their order, with a leading axis P."""
        other = copy.copy(self)
        other.batch_size, other._offsets = len(numbers), numbers
        return other(0)

    def _instance_numbers(self, index: int | Int64[Tensor, ""]) -> Int64[Tensor, "b"]:
        if isinstance(index, Tensor):
            if index.ndim != 0 or index.dtype != torch.int64:
                raise ValueError(
                    f"index must be an int or a 0-d int64 tensor, got a {index.dtype} tensor of "
                    f"shape {tuple(index.shape)}"
                )
        elif not 0 <= index <= MAX_INSTANCES // self.batch_size - 1:
            raise ValueError(
                f"index must lie in [0, {MAX_INSTANCES // self.batch_size}) for batches of "
                f"{self.batch_size}, got {index}"
            )
        return self._offsets + index * self.batch_size


_SamplerT_co = TypeVar("_SamplerT_co", bound=Sampler, covariant=True)


def without_defaults(settings: Any, but: Collection[str] = ()) -> dict[str, Any]:
    """The settings of a dataclass that are not at their defaults, by name, `but` some.

    What identifies a task or a method: a setting that is added later changes no earlier one.
    """
    return {
        field.name: value
        for field in dataclasses.fields(settings)
        if (value := getattr(settings, field.name)) != field.default and field.name not in but
    }


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """The settings of a task that has none."""


class Task(ABC, Generic[_SamplerT_co]):
    """A family of problems composed of constituents, split by their combinations.

    `hyla.tasks.register_task` gives it a name, under which it is trained.
    """

    title: ClassVar[str]
    """What figures and pages call it; its name, if it has none."""
    config_class: ClassVar[type] = NoSettings
    """A dataclass of plain values, with defaults and a docstring each: `--task.SETTING`.

    Runs are named by their settings. One that is added later, as a field with the metadata
    `{"later": True}`, leaves earlier runs their names while it has its default; with
    `{"shape": False}` it does not change what instances look like, as which are held out."""
    presets: ClassVar[Mapping[str, Any] | Path] = MappingProxyType({})
    """Settings of its training at the scales smoke, laptop and paper, or a YAML file of them.

    Every scale says where it differs from paper; what neither says is that of any task at the scale
    (`training/presets/task.yaml`)."""
    searched: ClassVar[Mapping[str, Sequence[float]]] = MappingProxyType({})
    """Hyper-parameters that figures search at paper scale: values of each, every combination."""

    def __init__(self, config: Any = None) -> None:
        self.config = self.config_class() if config is None else config

    @classmethod
    def variant_settings(cls, name: str) -> Any:
        """The settings that the name of a variant stands for; a ValueError if there is none."""
        raise ValueError(f"{cls.__name__} has no named variants, and so none called {name!r}")

    @property
    def objective(self) -> Objective:
        """What is optimised, and how it is scored."""
        raise ValueError(
            f"no objective is known for {type(self).__name__}: give the class an `objective`, or "
            "pass one to Population"
        )

    @property
    def headline(self) -> str:
        """The metric by which models are compared."""
        return self.objective.headline

    @property
    def study(self) -> Study | None:
        """What analyses of latent codes look at; None if they cannot."""
        return None

    def ceiling(
        self, split: str, *, seed: int, instances: int, device: torch.device | str = "cpu"
    ) -> Float[Tensor, " n"] | None:
        """The best headline to expect on each of a split's first instances; None if not known."""
        return None

    @property
    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """Names of the splits.

        Models train on `train`. Settings are chosen on `validation`, or on `test` without it, and
        `ood` is of unseen compositions: of these three, what there is is scored. Others are, where
        presets or `--evaluation.splits` name them.
        """

    @property
    @abstractmethod
    def input_dim(self) -> int:
        """Size of an input token."""

    @property
    @abstractmethod
    def output_dim(self) -> int:
        """Size of the model's output at each predicted position."""

    @property
    @abstractmethod
    def sequence_length(self) -> int:
        """Number of tokens."""

    @property
    @abstractmethod
    def num_queries(self) -> int:
        """How many of the last positions are predicted."""

    @abstractmethod
    def manifest(self, seed: int) -> Manifest:
        """The combinations of each side, as the seed splits them."""

    @abstractmethod
    def _build_sampler(
        self, split: str, *, seeds: Sequence[int], batch_size: int, device: torch.device | str
    ) -> _SamplerT_co:
        """`sampler`, with arguments already checked."""

    def check_split(self, split: str) -> None:
        """Raise a ValueError that names the splits there are."""
        check_choice("split", split, self.splits)

    def sampler(
        self,
        split: str,
        *,
        seeds: Sequence[int],
        batch_size: int,
        device: torch.device | str = "cpu",
    ) -> _SamplerT_co:
        """A sampler for a population: member p sees the split and the data of `seeds[p]`."""
        self.check_split(split)
        if len(seeds) == 0:
            raise ValueError("seeds must hold at least one seed, got none")
        check_positive(batch_size=batch_size)
        return self._build_sampler(split, seeds=seeds, batch_size=batch_size, device=device)

    def batch(
        self,
        split: str,
        *,
        seed: int,
        index: int | Int64[Tensor, ""],
        batch_size: int,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """Batch number `index` of one seed, without the population axis."""
        sampler = self.sampler(split, seeds=[seed], batch_size=batch_size, device=device)
        return Batch(*(field.squeeze(0) for field in sampler(index)))


def stack_combinations(
    manifests: Sequence[Manifest], side: str, *, device: torch.device | str
) -> Int64[Tensor, "p n k"]:
    """The combinations of one side, for every member of a population."""
    return torch.tensor([m.sides[side] for m in manifests], dtype=torch.int64, device=device)


def pick_combinations(
    table: Int64[Tensor, "p n k"], choice: Int64[Tensor, "p b"]
) -> Int64[Tensor, "p b k"]:
    """Row `choice[p, b]` of member p's table."""
    return table.gather(1, choice.unsqueeze(-1).expand(-1, -1, table.shape[-1]))


def check_combinable(**sizes: int) -> None:
    """Raise a ValueError naming the first size that leaves nothing to combine."""
    check_positive(**sizes)
    for name, size in sizes.items():
        if size < 2:
            raise ValueError(
                f"{name} must be at least 2, because a combination of one constituent cannot be "
                f"held out while training shows that constituent, got {size}"
            )
