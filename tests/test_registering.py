"""What may be registered: tasks, figures, rules and attention presets, and under which names."""

import dataclasses
import pickle
import sys

import pytest
import torch

from hyla.attention import AttentionSpec, register_attention, resolve_spec
from hyla.attention.spec import PRESETS
from hyla.cli import main
from hyla.lab.registry import load, register_experiment
from hyla.tasks import FuzzyLogic, Sraven, Task, register_task, task_class, task_names
from hyla.tasks.sraven.rules import RULES, rule
from hyla.training import config_from_tree, load_preset
from tiny_runs import tiny_config


def test_the_papers_tasks_are_registered_like_any_other():
    assert task_names() == ("fuzzy", "sraven", "recall")
    assert task_class("fuzzy") is FuzzyLogic
    assert task_class("sraven") is Sraven
    assert register_task("fuzzy")(FuzzyLogic) is FuzzyLogic


@pytest.mark.parametrize("name", ["language", "my task", "", "-x", "a/b", "a.b"])
def test_a_name_that_no_run_directory_or_command_could_have(name):
    with pytest.raises(ValueError, match="a task cannot be called"):
        register_task(name)(FuzzyLogic)


@pytest.mark.parametrize("name", [["fuzzy"], {"fuzzy": 1}, None, 3])
def test_what_is_no_name_is_no_task(name):
    with pytest.raises(ValueError, match="is unknown"):
        task_class(name)


def test_a_name_is_given_once():
    with pytest.raises(ValueError, match="'Fig-2C' is a name of hyla itself"):
        register_experiment(dataclasses.replace(load("phi"), name="Fig-2C"))
    with pytest.raises(ValueError, match=r"there is a task 'fuzzy' already, hyla\.tasks\.fuzzy"):
        register_task("fuzzy")(Sraven)
    with pytest.raises(ValueError, match="'hyla' is a preset of hyla itself"):
        register_attention("hyla", resolve_spec("softmax"))
    with pytest.raises(ValueError, match="there is a rule 'constant' already"):
        rule("constant", inverse=RULES["constant"].inverse, count=RULES["constant"].count)(
            lambda draws: draws.free
        )


def test_settings_are_a_dataclass():
    class Unsettled(FuzzyLogic):
        config_class = dict

    with pytest.raises(ValueError, match=r"Unsettled\.config_class must be a dataclass"):
        register_task("unsettled")(Unsettled)


class Unscored:
    loss = sums = finish = staticmethod(lambda *args: None)


def test_a_task_has_an_objective():
    aimless = type("Aimless", (FuzzyLogic,), {"objective": Task.objective})
    headless = type("Headless", (FuzzyLogic,), {"objective": Unscored()})
    with pytest.raises(ValueError, match="Aimless has no objective: give the class an `objective`"):
        register_task("aimless")(aimless)
    with pytest.raises(ValueError, match=r"objective of Headless has no headline: add what hyla\."):
        register_task("headless")(headless)
    assert not {"aimless", "headless"} & set(task_names())


def test_an_objective_that_depends_on_settings_is_looked_at_before_training(monkeypatch):
    monkeypatch.setattr(FuzzyLogic, "objective", property(lambda task: Unscored()))
    with pytest.raises(ValueError, match="the objective of FuzzyLogic has no headline"):
        tiny_config()


@pytest.mark.parametrize(
    ("has", "scored", "headline"),
    [
        (("train", "test"), ("test",), "test"),
        (("train", "validation"), ("validation",), "validation"),
        (("train", "ood", "validation", "other"), ("validation", "ood"), "ood"),
    ],
)
def test_what_a_task_has_is_scored(monkeypatch, has, scored, headline):
    monkeypatch.setattr(FuzzyLogic, "presets", {})
    monkeypatch.setattr(FuzzyLogic, "splits", has)
    evaluation = config_from_tree(load_preset("fuzzy", "smoke")).evaluation
    assert (evaluation.splits, evaluation.headline) == (scored, headline)


def test_splits_that_a_task_needs(monkeypatch):
    monkeypatch.setattr(FuzzyLogic, "presets", {})
    monkeypatch.setattr(FuzzyLogic, "splits", ("train", "other"))
    with pytest.raises(ValueError, match="say which to score of train, other; fuzzy has none of "):
        config_from_tree(load_preset("fuzzy", "smoke"))
    monkeypatch.setattr(FuzzyLogic, "splits", ("test",))
    with pytest.raises(ValueError, match="fuzzy has no split 'train' to train on"):
        config_from_tree(load_preset("fuzzy", "smoke"))


def test_presets_name_their_scales(monkeypatch):
    monkeypatch.setattr(FuzzyLogic, "presets", {"labtop": {"steps": 1}})
    with pytest.raises(
        ValueError, match=r"fuzzy: scale 'labtop' is unknown \(did you mean 'laptop'"
    ):
        load_preset("fuzzy", "smoke")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stepz": 1}, r": stepz is not a setting \(did you mean 'steps'"),
        ({"model": {"num_layer": 1}}, ": model.num_layer is not a setting"),
        (None, " must hold settings by name, got None"),
        ({"task": {"nope": 1}}, ": task.nope is not a setting"),
        ({"evaluation": 3}, ": evaluation must hold settings by name, got 3"),
    ],
)
def test_a_preset_with_a_wrong_name_is_named(monkeypatch, wrong, message):
    monkeypatch.setattr(FuzzyLogic, "presets", {"smoke": wrong})
    with pytest.raises(ValueError, match=f"^presets of fuzzy at smoke scale{message}"):
        load_preset("fuzzy", "smoke")


def test_presets_go_over_those_of_any_task(monkeypatch):
    monkeypatch.setattr(FuzzyLogic, "presets", {"smoke": {"steps": 7}})
    config = config_from_tree(load_preset("fuzzy", "smoke"))
    assert (config.steps, config.batch_size) == (7, 16)
    assert config.task == FuzzyLogic.config_class()


def test_a_config_is_pickled_by_the_name_of_its_task():
    config = tiny_config()
    stored = pickle.dumps(config)
    assert b"FuzzyLogicConfig" not in stored
    assert pickle.loads(stored) == config


# --- attention presets --------------------------------------------------------------------------


def test_a_preset_of_ones_own_goes_wherever_a_name_goes(monkeypatch):
    monkeypatch.setattr("hyla.attention.spec._PRESETS", dict(PRESETS))
    monkeypatch.setattr("hyla.attention.spec.PRESETS", sys.modules["hyla.attention.spec"]._PRESETS)
    spec = AttentionSpec(normalisation=("softmax", "rms_head"), value="hidden", phi="tanh")
    register_attention("mine", spec)
    assert resolve_spec("mine") == spec
    assert resolve_spec("mine.silu.rms4").phi == "silu"
    with pytest.raises(ValueError, match=r"did you mean 'mine'\?"):
        resolve_spec("minne")


@pytest.mark.parametrize("name", ["mine.silu", "", "my own"])
def test_a_preset_has_a_name_without_dots(name):
    with pytest.raises(ValueError, match="a preset cannot be called"):
        register_attention(name, resolve_spec("hyla"))


def test_a_preset_keeps_its_meaning(monkeypatch):
    monkeypatch.setattr("hyla.attention.spec._PRESETS", dict(PRESETS))
    register_attention("mine", PRESETS["hyla"])
    register_attention("mine", PRESETS["hyla"])  # a module that is imported again
    with pytest.raises(ValueError, match="already the name of another spec"):
        register_attention("mine", PRESETS["softmax"])


def test_a_preset_that_no_run_could_be_named_by_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(PRESETS, "mine", dataclasses.replace(PRESETS["hyla"], phi=torch.sqrt))
    arguments = ["train", "fuzzy", "--scale", "smoke", "--attention", "mine"]
    assert main([*arguments, "--root", str(tmp_path)]) == 2
    assert "the preset 'mine' cannot be identified" in capsys.readouterr().err


def test_a_preset_is_a_spec():
    with pytest.raises(ValueError, match="must be an AttentionSpec, got str"):
        register_attention("mine", "hyla")  # pyright: ignore[reportArgumentType]
