"""Names and keys of what was computed stay: runs on disk and committed tables are found by them."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from hyla.attention import AttentionSpec
from hyla.attention.spec import PRESETS
from hyla.results.csv_table import read_csv
from hyla.results.origins import read_with_origins, write_with_origins
from hyla.results.runs import Row
from hyla.training import TrainConfig, config_from_tree, load_preset, merge, run_path
from hyla.training.identity import (
    OWN_PRESET,
    method_key,
    own_preset,
    plain_tree,
    shape_key,
    task_key,
)

RESULTS = Path(__file__).parents[2] / "results" / "lab"
_MEMBER = ("learning_rate", "seed", "warmup_steps", "weight_decay")


def config(name: str = "fuzzy", /, **changes: Any) -> TrainConfig:
    return config_from_tree(merge(load_preset(name, "smoke"), changes))


@pytest.mark.parametrize(
    ("task", "settings", "name", "method"),
    [
        (
            "fuzzy",
            {
                "precision": "tf32",
                "evaluation": {"splits": ["validation", "test", "ood", "unknown_terms"]},
                "members": {
                    "seed": [0, 1, 2],
                    "learning_rate": [1e-3],
                    "weight_decay": [0.1],
                },
            },
            "fuzzy-hyla-dabc348ce3b5",
            "m4b94666d52a9",
        ),
    ],
)
def test_a_run_of_old_is_found(task: str, settings: dict[str, Any], name: str, method: str):
    tree = merge(load_preset(task, "paper"), settings)
    found = config_from_tree(tree)
    assert run_path(found, "runs").name == name
    assert method_key(found) == method


def _runs() -> Iterator[tuple[str, list[Row]]]:
    for path in sorted(RESULTS.glob("*/models-*.csv")):
        runs: dict[str, list[Row]] = {}
        for row in read_csv(path):
            runs.setdefault(row["run"], []).append(row)
        yield from runs.items()


def _config_of(rows: list[Row]) -> TrainConfig:
    """The config that the rows of a whole run came from."""
    tree: dict[str, Any] = {"members": [{name: row[name] for name in _MEMBER} for row in rows]}
    fields = {field.name for field in dataclasses.fields(TrainConfig)}
    for key, value in rows[0].items():
        first, _, rest = key.partition(".")
        if first in fields and value is not None:
            tree = merge(tree, {first: {rest: value} if rest else value})
    for part, lists in (("evaluation", "splits"), ("task", "rules")):
        if lists in tree[part]:  # a table's cell holds no list
            tree[part][lists] = tree[part][lists].split()
    return config_from_tree(tree)


def test_every_committed_model_keeps_its_method_and_its_run():
    whole = 0
    for name, rows in _runs():
        found = _config_of(rows)
        assert {row["method"] for row in rows} == {method_key(found)}, name
        if len(rows) == rows[0]["population"]:  # else others of its run are in no table
            assert run_path(found, "runs").name == name
            whole += 1
    assert whole > 50


def test_every_committed_origin_keeps_its_name(tmp_path: Path):
    files = sorted(RESULTS.glob("*/origins/*.csv"))
    assert files
    for file in files:
        [row] = read_csv(file)
        table = tmp_path / "table.csv"
        write_with_origins(
            [{name: value for name, value in row.items() if name != "origin"}], table
        )
        assert (tmp_path / "origins" / file.name).exists()
        assert len(read_with_origins(table)) == 1


def test_how_a_run_is_watched_names_its_place_and_not_what_it_computes():
    watched = config(evaluation={"every": 3, "splits": ["test"]}, log_every=1)
    assert method_key(watched) == method_key(config())
    assert run_path(watched, "runs") != run_path(config(), "runs")


def test_tasks_are_told_apart_by_what_is_not_at_its_default():
    assert task_key(config("sraven", task={"num_features": 4, "num_values": 8})) == "sraven"
    changed = config("sraven", task={"num_features": 3, "num_values": 8})
    assert task_key(changed) == "sraven num_features=3"


def test_a_shape_is_that_of_the_instances():
    held_out = config(task={"held_out_fraction": 0.5})
    assert shape_key(held_out) == shape_key(config())
    assert shape_key(config(task={"sequence_length": 5})) != shape_key(config())
    assert shape_key(config("sraven")) != shape_key(config())


def test_heads_that_share_keys_are_another_method_and_the_default_is_what_it_was():
    assert "num_key_heads" not in config().to_tree()["model"]
    heads = config().model.num_heads
    assert config(model={"num_key_heads": heads}) == config()
    shared = config(model={"num_key_heads": 2})
    assert config_from_tree(shared.to_tree()) == shared
    assert method_key(shared) != method_key(config())
    assert run_path(shared, "runs") != run_path(config(), "runs")


def test_a_later_setting_leaves_runs_their_names_in_whatever_config_it_is():
    @dataclasses.dataclass
    class Inner:
        first: int = 1
        later: int = dataclasses.field(default=2, metadata={"later": True})

    @dataclasses.dataclass
    class Outer:
        inner: Inner

    assert plain_tree(Outer(Inner())) == {"inner": {"first": 1}}
    assert plain_tree(Outer(Inner(later=3))) == {"inner": {"first": 1, "later": 3}}


@pytest.fixture
def named(monkeypatch) -> Callable[..., TrainConfig]:
    """A run of a preset of one's own with this φ."""

    def config_with(phi: Any, attention: str = "mine") -> TrainConfig:
        spec = AttentionSpec(normalisation="none", value="hidden", phi=phi)
        monkeypatch.setitem(PRESETS, "mine", spec)
        return config(model={"attention": attention})

    return config_with


def test_a_preset_of_ones_own_that_was_changed_is_another_method(named):
    tree = named(torch.abs, "mine.rms4").to_tree()
    assert config_from_tree(tree).to_tree() == tree
    keys = {method_key(named(phi)) for phi in ("relu", "silu", torch.abs, F.relu6)}
    paths = {run_path(named(phi), "runs") for phi in ("relu", "silu", torch.abs, F.relu6)}
    assert len(keys) == len(paths) == 4
    with pytest.raises(ValueError, match=r"'mine.rms4' is not the one that this run was trained"):
        config_from_tree(tree)
    assert OWN_PRESET not in config().to_tree()


def test_what_a_preset_computes_is_what_counts(named):
    def leaning(slope: float):
        return lambda hidden: hidden.relu() + slope * hidden

    class Leaning:
        def __init__(self, slope: float):
            self.slope = slope

        def __call__(self, hidden):
            return leaning(self.slope)(hidden)

        bound = __call__

    same = (
        leaning,
        Leaning,
        lambda slope: Leaning(slope).bound,
        lambda slope: lambda hidden, slope=slope: hidden.relu() + slope * hidden,
        lambda slope: functools.partial(lambda slope, hidden: leaning(slope)(hidden), slope),
    )
    first, *others = ([method_key(named(bind(s))) for s in (0.1, 0.1, 0.2)] for bind in same)
    assert first[0] == first[1] != first[2]
    assert others == [first] * len(others)
    assert len({method_key(named(torch.nn.PReLU(init=slope))) for slope in (0.1, 0.1, 0.2)}) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"value": "deep"},
        {"value": "residual"},
        {"normalisation": "rms_head"},
        {"normalisation": lambda scores, mask, eps: scores.relu()},
        {"output": "rms"},
        {"gain": 0.5},
    ],
)
def test_every_part_of_a_preset_counts(monkeypatch, changes):
    spec = AttentionSpec(normalisation="softmax", value="hidden")
    monkeypatch.setitem(PRESETS, "mine", spec)
    monkeypatch.setitem(PRESETS, "other", dataclasses.replace(spec, **changes))
    assert own_preset("mine") != own_preset("other")


@pytest.mark.parametrize(
    ("phi", "message"),
    [
        (lambda hidden: hidden.nothing(), "float64 on a CPU: AttributeError: .*nothing"),
        (lambda hidden: F.prelu(hidden, torch.ones(1)), "float64 on a CPU: RuntimeError"),
        (torch.sqrt, "makes some that are not finite"),
    ],
)
def test_a_preset_that_cannot_be_identified_says_why(named, phi, message):
    with pytest.raises(ValueError, match=f"'mine' cannot be identified, for .*{message}"):
        method_key(named(phi))
