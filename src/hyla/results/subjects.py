"""A trained model under study, whoever looks at it: the lab, `hyla latents`, the explorer."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import torch

from hyla.nn import Transformer
from hyla.results.runs import Row, load_model, untrained_like
from hyla.tasks.study import Study, study_of
from hyla.training import TrainConfig


class Subject:
    """One trained model and its task; the weights are read when they are first needed."""

    def __init__(
        self,
        *,
        name: str,
        config: TrainConfig,
        member: int,
        load: Callable[[], Transformer],
        run: Path | None = None,
    ):
        self.name, self.config, self.member, self.run = name, config, member, run
        self.seed: int = config.members[member].seed
        """That of its initial weights, its data and its split."""
        self.task = config.build_task()
        self._load = load

    @classmethod
    def of_run(
        cls, run: Path | str, member: int = 0, *, device: torch.device | str = "cpu"
    ) -> "Subject":
        """Return a member of a run, loaded; raises what `load_model` raises."""
        run = Path(run)
        model, config = load_model(run, member, device=device)
        name = run.name if len(config.members) == 1 else f"{run.name}-member{member}"
        return cls(name=name, config=config, member=member, load=lambda: model, run=run)

    @cached_property
    def model(self) -> Transformer:
        """The network."""
        return self._load()

    @cached_property
    def untrained(self) -> Transformer:
        """The network before its first step."""
        return untrained_like(self.model, self.seed)

    @cached_property
    def study(self) -> Study:
        """What there is to look at in its task."""
        return study_of(self.task)

    @property
    def columns(self) -> Row:
        """What tells its rows in a table from those of others."""
        return {
            "run": self.run.name if self.run else self.name,
            "member": self.member,
            "task": self.config.task_name,
            "attention": str(self.config.model.attention),
            "seed": self.seed,
        }
