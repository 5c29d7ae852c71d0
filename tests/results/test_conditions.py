"""Conditions have a name, and change what they say and nothing else."""

import dataclasses

import pytest

from hyla.results.conditions import Conditions
from hyla.training import config_from_tree, load_preset


@pytest.mark.parametrize(
    ("conditions", "label"),
    [
        (Conditions(scale="paper"), "paper"),
        (Conditions(scale="paper", shorten=4), "paper-short4"),
        (Conditions(scale="paper", precision="tf32"), "paper-tf32"),
        (Conditions(scale="smoke", shorten=12, precision="bf16"), "smoke-short12-bf16"),
    ],
)
def test_labels_can_be_read_back(conditions: Conditions, label: str):
    assert conditions.label == label
    assert Conditions.from_label(label) == conditions


@pytest.mark.parametrize("label", ["figures", "paper-short", "papers", "paper-tf32-short4", ""])
def test_other_folders_are_not_conditions(label: str):
    with pytest.raises(ValueError, match="not the name of conditions"):
        Conditions.from_label(label)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": "papr"}, "did you mean 'paper'"),
        ({"shorten": 0}, "at least 1"),
        ({"precision": "fp8"}, "precision"),
    ],
)
def test_mistakes_are_named(changes, message: str):
    with pytest.raises(ValueError, match=message):
        Conditions(**changes)


def test_a_setting_changes_steps_and_precision_alone():
    config = config_from_tree(load_preset("fuzzy", "paper"))
    shorter = Conditions(scale="paper", shorten=4, precision="tf32").apply(config)
    assert (shorter.steps, shorter.precision) == (12500, "tf32")
    assert dataclasses.replace(shorter, steps=config.steps, precision="float32") == config
