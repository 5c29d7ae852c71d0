"""Presets, their numbers, and what a mistake in a config is answered with."""

import dataclasses
import json
from typing import Any

import pytest
import torch
import yaml

from hyla.attention.kernels.cpu import compiler
from hyla.nn import Transformer, TransformerConfig
from hyla.nn.decoders import count_parameters
from hyla.tasks import FuzzyLogicConfig, SravenConfig, task_names
from hyla.training import (
    SCALES,
    Evaluation,
    Member,
    TrainConfig,
    config_from_tree,
    load_preset,
    merge,
)
from hyla.training.identity import fingerprint
from tiny_runs import tiny_config

CPU = torch.device("cpu")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("task", task_names())
def test_every_preset_builds(task, scale):
    config = config_from_tree(load_preset(task, scale))
    assert config.task_name == task
    Transformer(config.model)
    for split in config.evaluation.splits:
        config.build_task().sampler(split, seeds=[0], batch_size=2)(0)
    assert "validation" in config.evaluation.splits
    assert ("ood" in config.evaluation.splits) == ("ood" in config.build_task().splits)
    # Scales shrink the paper's setting.
    paper = config_from_tree(load_preset(task, "paper"))
    assert config.steps <= paper.steps
    assert config.model.embed_dim <= paper.model.embed_dim
    assert all(member.warmup_steps * 2 < config.steps for member in config.members)


def test_the_papers_fuzzy_logic():
    """Table A3, with what it leaves open: positions, dropout, numbers of steps."""
    config = config_from_tree(load_preset("fuzzy", "paper"))
    assert config.task == FuzzyLogicConfig(
        num_variables=4, num_terms=2, sequence_length=32, held_out_fraction=0.7
    )
    assert config.model == TransformerConfig(
        input_dim=5,
        output_dim=1,
        sequence_length=32,
        embed_dim=128,
        qk_dim=16,
        v_dim=16,
        mlp_dim=256,
        num_heads=8,
        num_layers=2,
        width_factor=1,
        attention="hyla",
        positions="t5",
        causal=False,
        attention_dropout=0.0,
    )
    assert (config.batch_size, config.steps) == (128, 50_000)
    assert config.precision == "float32"
    assert [member.seed for member in config.members] == [0, 1, 2]
    for member in config.members:
        assert member.learning_rate in (0.001, 0.003)
        assert member.weight_decay in (0.03, 0.1)
        assert member.warmup_steps == 100
    assert count_parameters(Transformer(config.model)).total == 151_265


def test_the_papers_sraven():
    """Table A3, with what it leaves open: positions, dropout, numbers of steps."""
    config = config_from_tree(load_preset("sraven", "paper"))
    assert config.task == SravenConfig(
        num_features=4, num_values=8, grid_size=3, held_out_fraction=0.25
    )
    assert config.model == TransformerConfig(
        input_dim=8,
        output_dim=8,
        sequence_length=36,
        embed_dim=128,
        qk_dim=64,
        v_dim=64,
        mlp_dim=256,
        num_heads=16,
        num_layers=4,
        width_factor=1,
        attention="hyla",
        positions="t5",
        causal=False,
        attention_dropout=0.0,
    )
    assert config.batch_size == 128
    assert config.steps * config.batch_size == 20_000_000
    assert config.precision == "float32"
    assert [member.seed for member in config.members] == [0, 1, 2]
    for member in config.members:
        assert member.learning_rate in (0.0003, 0.001)
        assert member.weight_decay in (0.1, 0.3)
        assert member.warmup_steps in (1000, 3000)
    assert config.evaluation.final_instances == 51_200
    assert count_parameters(Transformer(config.model)).total == 402_824


def test_a_grid_of_members_is_their_product():
    grid = {"seed": [0, 1], "learning_rate": [1e-3, 3e-3, 1e-2], "weight_decay": 0.3}
    config = config_from_tree(load_preset("fuzzy", "smoke") | {"members": grid})
    assert config.members == tuple(
        Member(seed=seed, learning_rate=rate, weight_decay=0.3)
        for seed in (0, 1)
        for rate in (1e-3, 3e-3, 1e-2)
    )


def test_merge_reaches_into_nested_settings_and_keeps_its_arguments():
    tree = {"model": {"a": 1, "b": 2}, "steps": 3, "list": [1, 2]}
    changes = {"model": {"b": 5}, "list": [9]}
    assert merge(tree, changes) == {"model": {"a": 1, "b": 5}, "steps": 3, "list": [9]}
    assert tree == {"model": {"a": 1, "b": 2}, "steps": 3, "list": [1, 2]}


# --- identity -----------------------------------------------------------------------------------


@pytest.mark.parametrize("task", task_names())
def test_a_tree_describes_its_config_completely(task):
    config = config_from_tree(load_preset(task, "laptop"))
    tree = config.to_tree()
    assert config_from_tree(tree) == config
    # Also after a journey through the run directory's config.json.
    stored = json.loads(json.dumps(tree))
    assert config_from_tree(stored) == config
    assert fingerprint(config_from_tree(stored).to_tree()) == fingerprint(tree)


def test_the_backend_is_not_part_of_a_runs_identity():
    config = tiny_config()
    other = dataclasses.replace(
        config, model=dataclasses.replace(config.model, backend="reference")
    )
    assert other != config
    assert fingerprint(other.to_tree()) == fingerprint(config.to_tree())


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 25},
        {"precision": "tf32"},
        {"members": (Member(seed=1),)},
        {"evaluation": Evaluation(splits=("test",), every=8, instances=8, final_instances=16)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_decides_the_numbers_is_part_of_a_runs_identity(change):
    config = tiny_config()
    assert fingerprint(tiny_config(**change).to_tree()) != fingerprint(config.to_tree())


def test_a_spec_has_no_name_to_identify_a_run_by():
    from hyla.attention import resolve_spec

    config = tiny_config()
    spec = dataclasses.replace(config.model, attention=resolve_spec("hyla"))
    with pytest.raises(ValueError, match=r"name model\.attention as a preset"):
        dataclasses.replace(config, model=spec).to_tree()


def test_yaml_reads_1e_3_as_text_and_we_as_a_number():
    members = yaml.safe_load("{seed: [0], learning_rate: [1e-3], weight_decay: [1]}")
    assert members["learning_rate"] == ["1e-3"]
    (member,) = config_from_tree(load_preset("fuzzy", "smoke") | {"members": members}).members
    assert member.learning_rate == 0.001
    assert isinstance(member.weight_decay, float)


# --- mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stepz": 5}, r"^stepz is not a setting \(did you mean 'steps'\?\)"),
        (
            {"model": {"num_layer": 5}},
            r"^model\.num_layer is not a setting \(did you mean 'num_layers'\?\)",
        ),
        ({"task": {"num_termz": 5}}, r"^task\.num_termz is not .*'num_terms'"),
        ({"members": {"lerning_rate": [1]}}, r"^members\.lerning_rate is not .*'learning_rate'"),
        ({"evaluation": {"evry": 1}}, r"^evaluation\.evry is not .*'every'"),
        ({"steps": "many"}, "^steps must be int, got 'many'"),
        ({"steps": 2.5}, r"^steps must be int, got 2\.5"),
        ({"steps": True}, "^steps must be int, got True"),
        ({"model": {"embed_dim": [8]}}, r"^model\.embed_dim must be int, got \[8\]"),
        ({"model": {"causal": "no"}}, r"^model\.causal must be bool, got 'no'"),
        ({"members": {"learning_rate": ["fast"]}}, r"members\.learning_rate must be float, .*fast"),
        ({"members": {"weight_decay": [None]}}, r"members\.weight_decay must be float, got None"),
        ({"model": {"input_dim": 3}}, r"^model\.input_dim follows from the task; leave it out"),
        ({"model": {"attention": "hylo"}}, "hylo.*hyla"),
        ({"steps": 0}, "^steps must be at least 1, got 0"),
        ({"batch_size": -1}, "^batch_size must be at least 1, got -1"),
        ({"log_every": 0}, "^log_every must be at least 1, got 0"),
        ({"evaluation": {"every": 0}}, r"^evaluation\.every must be at least 1, got 0"),
        ({"evaluation": {"instances": 0}}, r"^evaluation\.instances must be at least 1"),
        ({"evaluation": {"final_instances": 0}}, r"^evaluation\.final_instances must be at least"),
        (
            {"evaluation": {"splits": ["test", "odd"]}},
            r"^evaluation\.splits: 'odd' is unknown \(did you mean 'ood'\?\); choose from",
        ),
        ({"evaluation": {"splits": "test"}}, r"^evaluation\.splits must be a list, got 'test'"),
        ({"evaluation": {"splits": [1]}}, r"^evaluation\.splits must be str, got 1"),
        ({"evaluation": None}, "^evaluation must hold settings by name, got None"),
        ({"task": 3}, "^task must hold settings by name, got 3"),
        ({"model": "big"}, "^model must hold settings by name, got 'big'"),
        ({"members": []}, "^members must hold at least one model"),
        ({"members": {"seed": []}}, "^members must hold at least one model"),
        ({"members": {"seed": [-1]}}, r"^seed must lie between 0 and 2\*\*63 - 1, got -1"),
        ({"members": {"seed": [2**63]}}, r"^seed must lie between 0 and 2\*\*63 - 1"),
        ({"members": {"learning_rate": ["nan"]}}, "^learning_rate must be finite"),
        ({"members": {"weight_decay": ["inf"]}}, "^weight_decay must be finite"),
        ({"members": {"seed": [1, 1]}}, "^members holds a model 2 times: seed 1 lr"),
        ({"members": {"learning_rate": [0.1, "1e-1"]}}, "^members holds a model 2 times"),
        ({"task": {"held_out_fraction": 0.0}}, "^held_out_fraction=0.0 leaves the held-out side"),
        ({"task": {"held_out_fraction": 0.95}}, "^held_out_fraction=0.95 leaves 1 of 15"),
        ({"model": {"inputs": "tokens"}}, r"^model\.inputs must be 'vectors'"),
        ({"members": 3}, "^members must be a list of models or a grid of lists, got 3"),
        ({"members": [3]}, "^members must hold settings by name, got 3"),
        ({"precision": "float23"}, r"^precision 'float23' is unknown \(did you mean 'float32'"),
        ({"task_name": "fuzy"}, r"^task_name 'fuzy' is unknown \(did you mean 'fuzzy'\?\)"),
    ],
    ids=str,
)
def test_a_mistake_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        config_from_tree(merge(load_preset("fuzzy", "smoke"), changes))


@pytest.mark.parametrize("path", ["steps", "batch_size", "model.embed_dim", "evaluation.every"])
def test_a_missing_key_is_named(path):
    tree = load_preset("fuzzy", "smoke")
    *parents, key = path.split(".")
    holder = tree
    for parent in parents:
        holder[parent] = dict(holder[parent])
        holder = holder[parent]
    del holder[key]
    with pytest.raises(ValueError, match=f"^{path} is missing"):
        config_from_tree(tree)


def test_an_unknown_preset_is_named():
    with pytest.raises(ValueError, match=r"^task 'srave' is unknown \(did you mean 'sraven'\?\)"):
        load_preset("srave", "paper")
    with pytest.raises(ValueError, match=r"^scale 'lapdog' is unknown.*choose from"):
        load_preset("fuzzy", "lapdog")


def test_an_empty_grid_of_members_is_not_the_default_member():
    with pytest.raises(ValueError, match="members is an empty grid"):
        config_from_tree(load_preset("fuzzy", "smoke") | {"members": {}})


def with_model(config: TrainConfig, **changes: Any) -> TrainConfig:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **changes))


@pytest.mark.parametrize(
    ("model", "precision", "reason"),
    [
        ({"attention": "hyla_deep"}, "float32", "'deep'"),
        ({"qk_dim": 40, "v_dim": 40}, "float32", "one CUDA device, got cpu"),
        ({}, "bf16", "it takes float32, got torch.bfloat16"),
    ],
)
def test_a_kernel_that_a_cpu_does_not_have_is_refused_with_its_reason(model, precision, reason):
    config = with_model(dataclasses.replace(tiny_config(), precision=precision), **model)
    config.check_device(CPU)
    fused = with_model(config, backend="fused")
    fused.check_device(torch.device("cuda"))
    with pytest.raises(
        ValueError, match=rf"backend 'fused' cannot compute this on cpu: .*{reason}"
    ):
        fused.check_device(CPU)


@pytest.mark.skipif(compiler.why_unavailable() is not None, reason="needs a C++ compiler")
def test_a_kernel_that_a_cpu_has_may_be_asked_for():
    with_model(tiny_config(), backend="fused").check_device(CPU)


@pytest.mark.skipif(compiler.why_unavailable() is not None, reason="needs a C++ compiler")
def test_a_width_factor_leaves_heads_small_enough_for_their_kernel():
    with_model(tiny_config(), backend="fused", width_factor=16).check_device(CPU)
