"""What a population's run and a language model's have in common, through the same eyes.

Both go through `train` or `train_language` alone, so that this holds whatever lies beneath.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hyla.training import Member, load_run, run_path, train
from hyla.training.language import language_run_path, train_language
from hyla.training.run.reading import read_metrics
from tiny_runs import tiny_config
from tiny_text import tiny_corpus, tiny_language_config

STEPS = 12
TOO_FAST = {"learning_rate": 1e30, "warmup_steps": 0}


class Kind:
    """One of the things that a run can train, for 12 steps with a checkpoint at the end."""

    def __init__(self, name: str, folder: Path):
        self.name = name
        if name == "language":
            pytest.importorskip("sentencepiece")
            self._corpus = tiny_corpus(folder)

    def config(self, *, log_every: int = 4, member: dict[str, Any] | None = None) -> Any:
        if self.name == "language":
            changes = {"steps": STEPS, "log_every": log_every, "member": member or {}}
            return tiny_language_config(self._corpus, **changes)
        members = (Member(**(member or {})),)
        return tiny_config(steps=STEPS, log_every=log_every, members=members)

    def path(self, config: Any, root: Path) -> Path:
        where = language_run_path if self.name == "language" else run_path
        return where(config, root)

    def train(self, config: Any, root: Path) -> dict[str, Any]:
        if self.name == "language":
            return train_language(config, self._corpus, root=root, device="cpu")
        return train(config, root=root, device="cpu")

    def damaged_checkpoint(self, run: Path, step: int) -> Path:
        """Leave half of a checkpoint, as a disk that was pulled out might."""
        if self.name == "language":
            path = run / f"checkpoint-{step:06d}"
            path.mkdir(parents=True)
            (path / "state.json").write_text('{"hyla_checkpoint": "language-1", "st')
        else:
            path = run / f"checkpoint-{step:06d}.safetensors"
            run.mkdir(parents=True)
            path.write_bytes(b"\x50\0\0\0\0\0\0\0{")
        return path


@pytest.fixture(scope="module", params=["population", "language"])
def kind(request, tmp_path_factory) -> Kind:
    return Kind(request.param, tmp_path_factory.mktemp("corpus"))


def test_a_damaged_checkpoint_goes_with_a_word_once_a_later_one_is_saved(kind, tmp_path, capsys):
    config = kind.config()
    run = kind.path(config, tmp_path)
    damaged = kind.damaged_checkpoint(run, 3)
    kind.train(config, tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    assert f"{damaged} is not used: " in said
    assert f"{damaged} is damaged, and is removed: checkpoint-000012" in said
    assert [path.name[:17] for path in run.glob("checkpoint-*")] == ["checkpoint-000012"]


def test_a_damaged_checkpoint_of_a_step_to_come_is_replaced_with_a_word(kind, tmp_path, capsys):
    config = kind.config()
    damaged = kind.damaged_checkpoint(kind.path(config, tmp_path), STEPS)
    kind.train(config, tmp_path)
    assert f"{damaged} is damaged, and is replaced" in " ".join(capsys.readouterr().out.split())
    assert load_run(damaged.parent).step == STEPS


@pytest.mark.parametrize("log_every", [1, 3, 12])
def test_the_step_at_which_it_diverged_is_exact(kind, tmp_path, capsys, log_every):
    """The first update is absurd: the second loss, after one step, is not finite."""
    config = kind.config(log_every=log_every, member=TOO_FAST)
    (member,) = kind.train(config, tmp_path)["members"]
    assert member["diverged_at"] == 1
    assert "diverged at step 1: " in " ".join(capsys.readouterr().out.split())
    stored = json.loads((kind.path(config, tmp_path) / "finished.json").read_text())
    assert stored["members"][0]["diverged_at"] == 1


def test_a_run_that_ends_early_on_an_evaluation_has_its_final_record(kind, tmp_path):
    """With the only model gone, a language run ends at step 4, where it is evaluated."""
    config = kind.config(member=TOO_FAST)
    config = replace(config, evaluation=replace(config.evaluation, every=4))
    summary = kind.train(config, tmp_path)
    last = read_metrics(kind.path(config, tmp_path))[-2:]
    assert [record["step"] for record in last] == [summary["steps"]] * 2
    assert ["loss" in record for record in last] == [True, False]
    assert summary["members"][0]["metrics"].keys() <= last[-1].keys()


def test_any_run_directory_is_opened_in_the_same_way(kind, tmp_path):
    config = kind.config()
    kind.train(config, tmp_path)
    run = load_run(kind.path(config, tmp_path))
    assert run.step == STEPS
    assert run.config == config
    assert (run.tokenizer is not None) == (kind.name == "language")
    model = run.model(0)
    assert not model.training
    assert sum(parameter.numel() for parameter in model.parameters()) == sum(
        tensor.numel() for tensor in run.parameters.values()
    )
