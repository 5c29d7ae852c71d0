"""Whatever happens to a run, in whatever order, it ends as the run to which nothing happened.

A state machine: processes train the run and die at any of their moments, disks fill up, files are
damaged in between. After each of these, all that is on disk is part of the uninterrupted run.
"""

import json
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from run_lives import FINISHED, FULL, INTERRUPTED, KILLED, REFUSED, Fate, Lives

from hyla.training import Population
from hyla.training.identity import fingerprint
from hyla.training.run.checkpoints.file import FileCheckpoints
from tiny_runs import assert_same_run, run_path, short_config

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes")

ENDS = st.sampled_from(["SIGTERM", "kill"])
FATES = st.one_of(
    st.builds(Fate),
    st.builds(Fate, ENDS, st.just("step"), st.integers(1, 12)),
    st.builds(Fate, ENDS, st.just("batch"), st.integers(1, 8)),
    st.builds(Fate, st.one_of(ENDS, st.just("full")), st.just("change"), st.integers(1, 90)),
)
TEARS = st.sampled_from([b"{", b'{"step": 4, "seconds": 0.1, "lo', b"\0" * 30, b'{"st\0\0\0'])
GARBAGE = st.sampled_from([b"garbage\n" * 5, b"garbage", b"[" * 100_000])


class Reference:
    """The uninterrupted run: what it logged and left."""

    def __init__(self, root: Path, lives: Lives):
        assert lives.live(root, Fate()) == FINISHED
        self.root = root
        self.records = records_of((run_path(root) / "metrics.jsonl").read_bytes())
        self.summary = summary_of(root)


def all_states() -> list[list[dict[str, torch.Tensor]]]:
    """The states that a checkpoint of each step may hold: before and after its loss is logged."""
    config = short_config()
    population = Population(
        config.build_task(),
        config.model,
        config.members,
        total_steps=config.steps,
        batch_size=config.batch_size,
    )
    logged = {3, 4, 6, 8, 9, 10}
    states = []
    for step in range(config.steps + 1):
        if step:
            population.train(1)
        after = [_copy(population)]
        if step in logged:
            population.mean_losses()
            after.append(_copy(population))
        states.append(after)
    return states


def _copy(population: Population) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in population.state().items()}


def records_of(log: bytes) -> list[dict[str, Any]]:
    """The whole records of a log, without the clock."""
    lines = [line for line in log.splitlines(keepends=True) if line.endswith(b"\n")]
    return [
        {name: value for name, value in json.loads(line).items() if "second" not in name}
        for line in lines
    ]


def summary_of(root: Path) -> dict[str, Any]:
    summary = json.loads((run_path(root) / "finished.json").read_text())
    return {name: value for name, value in summary.items() if "second" not in name}


class RunStates(RuleBasedStateMachine):
    """One run; the test sets what is the same for all."""

    lives: Lives
    reference: Reference
    explored: Counter[Hashable]
    """How often each state of the directory was met."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.root = self.folder / "runs"

    def teardown(self) -> None:
        for summary in self.root.glob("*/finished.json"):  # else nobody would look at the rest
            summary.unlink()
        try:
            assert self.lives.live(self.root, Fate()) == FINISHED
            assert self.log_lines()[-1].endswith(b"\n")
            assert records_of(b"".join(self.log_lines())) == self.reference.records
            assert summary_of(self.root) == self.reference.summary
            self.check_the_end()
        finally:
            shutil.rmtree(self.folder)

    # --- what happens ---------------------------------------------------------------------------

    @rule(fate=FATES, saves_often=st.booleans())
    def live(self, fate: Fate, saves_often: bool) -> None:
        """A process trains until its fate, or to the end."""
        expected = {
            "nothing": (),
            "SIGTERM": (INTERRUPTED, -signal.SIGTERM),  # the latter before it can handle it
            "kill": (KILLED,),
            "full": (FULL,),
        }[fate.what]
        status = self.lives.live(self.root, fate, saves_often=saves_often)
        assert status in (FINISHED, *expected)

    @precondition(lambda self: self.has("metrics.jsonl"))
    @rule(torn=TEARS)
    def tear_the_log(self, torn: bytes) -> None:
        """A power cut leaves part of a record, or zeros in place of it."""
        log = self.path / "metrics.jsonl"
        content = log.read_bytes()
        if not content or content.endswith(b"\n"):
            log.write_bytes(content + torn)

    @precondition(lambda self: self.checkpoints())
    @rule(how=st.sampled_from(["half", "empty", "flipped", "deleted"]))
    def damage_the_newest_checkpoint(self, how: str) -> None:
        file = self.file_of(self.checkpoints()[-1])
        content = bytearray(file.read_bytes() if file.exists() else b"")
        if how == "deleted":
            file.unlink(missing_ok=True)
        elif content:
            if how == "flipped":
                content[len(content) // 2] ^= 4
            file.write_bytes(content[: {"half": len(content) // 2, "empty": 0}.get(how)])

    @precondition(lambda self: self.has("metrics.jsonl"))
    @rule(garbage=GARBAGE)
    def garble_the_log(self, garbage: bytes) -> None:
        """Refused until a person brings it back; without a checkpoint it is made anew."""
        log, was_finished = self.path / "metrics.jsonl", self.has("finished.json")
        content = log.read_bytes()
        log.write_bytes(garbage)
        if self.lives.live(self.root, Fate()) == REFUSED or was_finished:
            assert log.read_bytes() == garbage
            log.write_bytes(content)

    @precondition(lambda self: self.has("finished.json"))
    @rule(garbage=GARBAGE)
    def garble_the_summary(self, garbage: bytes) -> None:
        """Refused until a person deletes it; the run is then scored again."""
        (self.path / "finished.json").write_bytes(garbage)
        assert self.lives.live(self.root, Fate()) == REFUSED
        (self.path / "finished.json").unlink()

    @precondition(lambda self: self.has("lock"))
    @rule(name=st.sampled_from(["checkpoint-000004.safetensors", "metrics.jsonl", "config.json"]))
    def leave_a_temporary(self, name: str) -> None:
        """What a process leaves that is killed while it writes."""
        (self.path / f".{name}.tmp-1").write_bytes(b"half")

    # --- what holds -----------------------------------------------------------------------------

    @invariant()
    def the_log_is_the_beginning_of_the_reference_s(self) -> None:
        logged = records_of(b"".join(self.log_lines()))
        assert logged == self.reference.records[: len(logged)]

    @invariant()
    def the_newest_good_checkpoint_is_the_reference_s(self) -> None:
        if self.checkpoints():
            self.check_the_newest_checkpoint()

    @invariant()
    def a_summary_is_the_reference_s(self) -> None:
        if self.has("finished.json"):
            assert summary_of(self.root) == self.reference.summary

    @invariant()
    def count(self) -> None:
        lines = self.log_lines()
        state = (
            tuple(path.name for path in self.checkpoints()),
            len(lines),
            bool(lines) and not lines[-1].endswith(b"\n"),
            self.has("finished.json"),
            len(list(self.path.glob(".*"))) if self.has("lock") else None,
        )
        self.explored[state] += 1

    # --- the directory --------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        return run_path(self.root)

    def has(self, name: str) -> bool:
        return self.root.exists() and any(self.root.glob(f"*/{name}"))

    def log_lines(self) -> list[bytes]:
        if not self.has("metrics.jsonl"):
            return []
        return (self.path / "metrics.jsonl").read_bytes().splitlines(keepends=True)

    # --- what the kinds of runs have each their own way of ---------------------------------------

    def checkpoints(self) -> list[Path]:
        raise NotImplementedError

    def file_of(self, checkpoint: Path) -> Path:
        """A file of a checkpoint, to be damaged."""
        raise NotImplementedError

    def check_the_newest_checkpoint(self) -> None:
        raise NotImplementedError

    def check_the_end(self) -> None:
        raise NotImplementedError


class PopulationStates(RunStates):
    states: list[list[dict[str, torch.Tensor]]]
    """Those of the reference."""

    def checkpoints(self) -> list[Path]:
        return sorted(self.root.glob("*/checkpoint-*.safetensors"))

    def file_of(self, checkpoint: Path) -> Path:
        return checkpoint

    def check_the_newest_checkpoint(self) -> None:
        identity = fingerprint(short_config().to_tree())
        found = FileCheckpoints(self.path, identity).latest()
        if found is not None:
            assert found.tensors is not None
            assert any(
                found.tensors.keys() == state.keys()
                and all(tensor.equal(state[name]) for name, tensor in found.tensors.items())
                for state in self.states[found.step]
            )

    def check_the_end(self) -> None:
        assert_same_run(self.root, self.reference.root)


class LanguageStates(RunStates):
    def checkpoints(self) -> list[Path]:
        return sorted(self.root.glob("*/checkpoint-*"))

    def file_of(self, checkpoint: Path) -> Path:
        # Its state; once that is deleted, its tensors; then there is none.
        return max(checkpoint.iterdir(), default=checkpoint / "state.json")

    def check_the_newest_checkpoint(self) -> None:
        for path in self.checkpoints():
            assert not path.name.endswith(".tmp")

    def check_the_end(self) -> None:
        assert final_weights(self.root).keys() == final_weights(self.reference.root).keys()
        for name, tensor in final_weights(self.reference.root).items():
            assert tensor.equal(final_weights(self.root)[name]), name


def final_weights(root: Path) -> dict[str, torch.Tensor]:
    (checkpoint,) = root.glob("*/checkpoint-000012")
    (file,) = checkpoint.glob("*.safetensors")
    return safetensors.torch.load_file(file)


@pytest.fixture(scope="module", params=["population", "language"])
def machine(request, tmp_path_factory) -> Iterator[type[RunStates]]:
    folder = tmp_path_factory.mktemp("reference")
    if request.param == "language":
        pytest.importorskip("sentencepiece")
        from tiny_text import tiny_corpus

        kind, lives = LanguageStates, Lives("language", tiny_corpus(folder / "corpus").path)
    else:
        kind, lives = PopulationStates, Lives("population")
        PopulationStates.states = all_states()
    try:
        kind.lives, kind.explored = lives, Counter()
        kind.reference = Reference(folder / "runs", lives)
        yield kind
    finally:
        lives.close()


@pytest.mark.parametrize(
    ("runs", "events"),
    [pytest.param(5, 6, id="some"), pytest.param(200, 10, marks=pytest.mark.slow, id="many")],
)
def test_any_order_of_events(machine, runs, events):
    machine.explored.clear()
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=runs,
            stateful_step_count=events,
            deadline=None,
            database=None,
            phases=[Phase.generate],  # so few events need no shrinking, which takes minutes
        ),
    )
    states = machine.explored
    print(f"{states.total()} states, of which {len(states)} look different")
    assert states.total() >= (2000 if runs > 100 else 10)
