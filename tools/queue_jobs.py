"""What the queue consists of: calls of `hyla.lab.run`, and language models on a corpus.

Both kinds of jobs say what they have and need, and go on where they stopped.
"""

import dataclasses
import math
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hyla import lab
from hyla._errors import BusyError, UnfinishedError
from hyla.lab.estimate import language_seconds
from hyla.lab.experiments.language.stored import corpus_folder, language_runs, trains
from hyla.lab.methods import methods_of
from hyla.lab.plan.reproduction import Reproduction
from hyla.lab.registry import load_all
from hyla.results.conditions import Conditions
from hyla.results.runs import StoredRun, flat_settings
from hyla.tasks.language import Corpus, CorpusError
from hyla.training import Interrupted, merge
from hyla.training.devices import free_memory, resolve_device
from hyla.training.identity import fingerprint, method_key
from hyla.training.language import (
    language_config_from_tree,
    language_run_path,
    load_language_preset,
    train_language,
)
from hyla.training.run.checkpoints.base import newest_step
from hyla.training.run.errors import RunBusyError

PAPER = "paper"
FIGURE_6 = 1500
"""Steps of Figure 6's run here: 197 M tokens, of the paper's 131 B."""


def least_seconds(device: str) -> float:
    """Return the seconds below which nothing new is begun.

    Nobody looks at the clock while a model is compiled.
    """
    return {"cpu": 20.0, "cuda": 90.0}[resolve_device(device).type]


@dataclass(frozen=True, kw_only=True)
class State:
    """What a job has, and needs beside what those before it train."""

    models: int
    finished: int
    model_steps: int
    tokens: int = 0
    """Of language models."""
    seconds: float
    """Estimated, of a GPU."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A call of `hyla.lab.run`, and why anybody wants to know."""

    name: str
    why: str
    asked: tuple[str, ...]
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)
    seeds: int = 3
    search: bool = False

    def options(self, scale: str) -> dict[str, Any]:
        """Return the keywords of `lab.run` that say what is trained."""
        only = self.only if scale == PAPER else self._left_of_only(scale)
        options = {"scale": scale, "precision": "tf32", "seeds": self.seeds, "only": only}
        return options | {"search": self.search, "report": False}

    def _left_of_only(self, scale: str) -> dict[str, list[str]]:
        """Return what of `only` there is at a scale at which the queue is merely tried out."""
        conditions = Conditions(scale=scale, precision="tf32")
        models = [
            flat_settings(method.config.to_tree())
            for experiment in load_all(self.asked)
            for method in methods_of(experiment, conditions)
        ]
        known = {key: {str(model.get(key)) for model in models} for key in self.only}
        left = {key: [v for v in values if v in known[key]] for key, values in self.only.items()}
        return {key: values for key, values in left.items() if values}

    def state(self, planned: set[Any], *, scale: str, root: Path, out: Path | None) -> State:
        """Return what is there; what jobs before it train is `planned`, and the rest joins it."""
        work = Reproduction(names=self.asked, root=root, out=out, **self.options(scale))
        models = finished = steps = 0
        left = []
        for share in work.plan():
            members = share.config.members
            models += len(members)
            if share.finished:
                finished += len(members)
                continue
            key = method_key(share.config)
            new = tuple(member for member in members if (key, member) not in planned)
            planned |= {(key, member) for member in new}
            if new:
                rest = dataclasses.replace(share.config, members=new)
                left.append(dataclasses.replace(share, config=rest))
                steps += len(new) * (share.config.steps - share.step)
        seconds = sum(work.seconds(left, torch.device("cuda")))
        return State(models=models, finished=finished, model_steps=steps, seconds=seconds)

    def run(
        self, *, scale: str, max_seconds: float, say: Callable[[str], None], **options: Any
    ) -> None:
        """Train what is missing, and collect; raise what `lab.run` does."""
        limit = None if math.isinf(max_seconds) else max(max_seconds, 1e-6)
        lab.run(*self.asked, max_seconds=limit, say=say, **self.options(scale), **options)


@dataclass(frozen=True, kw_only=True)
class LanguageJob:
    """Language models of Figure 6 on the corpus beside the runs, one after the other."""

    name: str
    why: str
    attentions: tuple[str, ...]
    learning_rate: float
    seeds: tuple[int, ...] = (0,)
    steps: int = FIGURE_6

    def trees(self, scale: str) -> list[dict[str, Any]]:
        """Return the settings of each model; at a smaller scale it takes fewer steps alike."""
        preset = load_language_preset(scale)
        steps = self.steps if scale == PAPER else self.steps * preset["steps"] // FIGURE_6
        changes = {
            "member": {"learning_rate": self.learning_rate, "warmup_steps": steps // 10},
            "steps": steps,
            "log_every": 25,
            "evaluation": {"every": max(1, steps // 20)},
        }
        return [
            merge(merge(preset, changes), {"model": {"attention": name}, "member": {"seed": seed}})
            for seed in self.seeds
            for name in self.attentions
        ]

    def state(self, planned: set[Any], *, scale: str, root: Path, out: Path | None) -> State:
        """Return what is there; what jobs before it train is `planned`, and the rest joins it."""
        trees, runs = self.trees(scale), language_runs(root)
        left = [tree for tree in trees if not _is_finished(tree, runs)]
        new = [tree for tree in left if fingerprint(tree) not in planned]
        planned |= {fingerprint(tree) for tree in new}
        steps, tokens = 0, Counter[str]()
        for tree in new:
            own = tree["steps"] - _step_to_continue(tree, root)
            length = tree["model"]["sequence_length"]
            steps += own
            tokens[tree["model"]["attention"]] += own * tree["batch_size"] * length
        return State(
            models=len(trees),
            finished=len(trees) - len(left),
            model_steps=steps,
            tokens=tokens.total(),
            seconds=language_seconds(tokens),
        )

    def run(
        self, *, scale: str, max_seconds: float, say: Callable[[str], None], **options: Any
    ) -> None:
        """Train what is missing; raise what `lab.run` does, or a CorpusError without a corpus.

        What is trained is collected where it is read: by `hyla reproduce fig6`.
        """
        deadline = time.monotonic() + max_seconds
        launch = Reproduction(names=["fig6"], scale=scale, **options)
        launch.check_source()
        root, device = launch.root, launch.device
        runs = language_runs(root)
        trees = [tree for tree in self.trees(scale) if not _is_finished(tree, runs)]
        if not trees:
            return
        corpus = Corpus.open(corpus_folder(root))
        failures, busy = [], False
        for number, tree in enumerate(trees):
            config = language_config_from_tree(tree, corpus)
            model = f"{config.model.attention}, {config.member}, {config.steps:,} steps"
            left = deadline - time.monotonic()
            if number and left < least_seconds(device):
                raise Interrupted(f"{model}: left for the next time", "time limit", failures)
            say(f"language model {number + 1} of {len(trees)}: {model}")
            try:
                summary = train_language(config, corpus, root=root, device=device, max_seconds=left)
            except Interrupted as stop:
                raise Interrupted(f"{model}: {stop}", stop.reason, failures) from stop
            except RunBusyError as error:
                say(str(error))
                busy = True
            except Exception as error:  # one model's failure is not the others'
                traceback.print_exc()
                failures.append(f"{model}: {type(error).__name__}: {error}")
                say(failures[-1])
            else:
                loss = summary["members"][0]["metrics"]["validation/loss"]
                say(f"finished in {summary['seconds']:.0f} s, validation loss {loss:.4f}")
            free_memory()
        if failures:
            raise UnfinishedError("\n".join(failures))
        if busy:
            raise BusyError("the same command continues what other processes leave")


def _step_to_continue(tree: Mapping[str, Any], root: Path) -> int:
    """Return the step of the run that training would go on with; 0 without its corpus."""
    try:
        corpus = Corpus.open(corpus_folder(root))
        path = language_run_path(language_config_from_tree(tree, corpus), root)
    except CorpusError:
        return 0
    return newest_step(path) or 0


def _is_finished(tree: Mapping[str, Any], runs: Sequence[StoredRun]) -> bool:
    return any(run.summary is not None and trains(run, tree) for run in runs)
