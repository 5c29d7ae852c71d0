"""The processes of a run: one, or as many as torchrun started."""

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hyla.training.devices import resolve_device
from hyla.training.run.errors import RunDirectoryError
from hyla.training.run.stop import Interrupted

Result = TypeVar("Result")


class RankFailedError(RunDirectoryError):
    """What the first rank did for all of them, with the run's directory, failed."""


class Ranks:
    """This process among the others; entered, they can talk to each other."""

    def __init__(
        self, device: torch.device | str = "auto", *, environment: Mapping[str, str] = os.environ
    ):
        """Find out, from torchrun's environment variables, who else there is."""
        self.size = int(environment.get("WORLD_SIZE", 1))
        self.rank = int(environment.get("RANK", 0))
        self.device = resolve_device(device)
        # Under torchrun also with one process: strategies want a group.
        self.launched = "RANK" in environment and "MASTER_ADDR" in environment
        if self.launched and self.device.type == "cuda":
            self.device = torch.device("cuda", int(environment.get("LOCAL_RANK", 0)))

    @classmethod
    def alone(cls, device: torch.device | str = "auto") -> "Ranks":
        """Return this process as the only one, whatever started it."""
        return cls(device, environment={})

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes files and talks to people."""
        return self.rank == 0

    def __enter__(self) -> "Ranks":
        self._started = self.launched and not dist.is_initialized()
        if self._started:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)
            backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        # After an error the others may be gone, and leaving politely would wait for them.
        together = kind is None or issubclass(kind, Interrupted)
        if self._started and together:
            dist.destroy_process_group()

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over the ranks."""
        if self.size > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor)
        return tensor

    def largest(self, *numbers: int) -> list[int]:
        """Return the largest of each number over the ranks."""
        if self.size == 1:
            return list(numbers)
        tensor = torch.tensor(numbers)  # by gloo, which does not wait for a GPU
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.tolist()

    def on_first(self, function: Callable[[], Result]) -> Result:
        """Call `function` on the first rank alone and return its result, or fail, everywhere."""
        if self.size == 1:
            return function()
        outcome: list[Any] = [None, None]
        error: Exception | None = None
        if self.first:
            try:
                outcome[0] = function()
            except Exception as raised:
                error, outcome[1] = raised, str(raised)
        dist.broadcast_object_list(outcome, src=0, device=torch.device("cpu"))
        if error is not None:
            raise error
        if outcome[1] is not None:
            raise RankFailedError(outcome[1])
        return outcome[0]
