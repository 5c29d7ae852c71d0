"""SRAVEN: every row obeys its rule, columns are permuted consistently, tokens say what they should.

The checker below is written from the paper's appendix B.3, one row of plain integers at a time.
"""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyla.tasks import Sraven, SravenConfig
from hyla.tasks.sraven import (
    PAPER_RULES,
    RULES,
    Context,
    Draws,
    Prescription,
    Solver,
    encode,
    rule,
)

TASK = Sraven(SravenConfig())


def obeys(name, grid, num_values):
    """Whether the rows of one feature's grid follow the rule."""
    if name == "constant":
        return all(len(set(row)) == 1 for row in grid)
    if name.startswith("progression"):
        step = int(name.removeprefix("progression"))
        return all(
            (b - a - step) % num_values == 0 for row in grid for a, b in itertools.pairwise(row)
        )
    if name == "addition":
        return all(sum(row[:-1]) % num_values == row[-1] for row in grid)
    if name == "subtraction":
        return all((row[0] - sum(row[1:-1])) % num_values == row[-1] for row in grid)
    assert name == "distribute_three"
    return len({frozenset(row) for row in grid}) == 1 and len(set(grid[0])) == len(grid[0])


def undo_permutations(panels, permutations):
    """Grids [feature][row][column] of one instance, from its panels."""
    size, num_features = len(panels), len(panels[0][0])
    grids = [[[None] * size for _ in range(size)] for _ in range(num_features)]
    for r, row in enumerate(panels):
        for c, panel in enumerate(row):
            for position, value in enumerate(panel):
                grids[permutations[c][position]][r][c] = value
    return grids


@settings(max_examples=30, deadline=None)
@given(
    num_features=st.integers(2, 5),
    grid_size=st.integers(2, 5),
    more_values=st.integers(0, 6),
    seed=st.integers(0, 1000),
    index=st.integers(0, 10**6),
    split=st.sampled_from(TASK.splits),
)
def test_every_row_obeys_its_rule(num_features, grid_size, more_values, seed, index, split):
    num_values = grid_size + more_values
    task = Sraven(
        SravenConfig(num_features=num_features, num_values=num_values, grid_size=grid_size)
    )
    instances = task.sampler(split, seeds=[seed], batch_size=8).instances(index)
    combinations = task.manifest(seed).sides["ood" if "ood" in split else "train"]
    shape = (1, 8, grid_size, grid_size, num_features)
    assert instances.panels.shape == shape
    for panels, rules, permutations in zip(
        *(field[0].tolist() for field in instances), strict=True
    ):
        assert tuple(sorted(rules)) in combinations
        for permutation in permutations:
            assert sorted(permutation) == list(range(num_features))
            assert "unpermuted" not in split or permutation == sorted(permutation)
        for index_of_rule, grid in zip(rules, undo_permutations(panels, permutations), strict=True):
            assert {v for row in grid for v in row} <= set(range(num_values))
            assert obeys(PAPER_RULES[index_of_rule], grid, num_values)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), index=st.integers(0, 10**6), split=st.sampled_from(TASK.splits))
def test_tokens_spell_the_panels_and_hide_the_last(seed, index, split):
    instances = TASK.sampler(split, seeds=[seed], batch_size=4).instances(index)
    batch = TASK.batch(split, seed=seed, index=index, batch_size=4)
    assert batch.inputs.shape == (4, TASK.sequence_length, TASK.input_dim) == (4, 36, 8)
    assert batch.inputs.dtype == torch.float32
    assert batch.targets.dtype == torch.int64
    for b, tokens in enumerate(batch.inputs.tolist()):
        panels = instances.panels[0, b].tolist()
        spelled = [value for row in panels for panel in row for value in panel]
        for token, value in zip(tokens[:32], spelled, strict=False):
            assert token == [float(v == value) for v in range(8)]
        assert not any(any(token) for token in tokens[32:])
        assert batch.targets[b].tolist() == panels[-1][-1]
        last_column = instances.permutations[0, b, -1].tolist()
        rules = instances.rules[0, b].tolist()
        assert batch.labels[b].tolist() == [rules[feature] for feature in last_column]


def test_encode_keeps_any_leading_axes():
    panels = torch.randint(5, (2, 3, 4, 2, 2, 3))
    tokens = encode(panels, num_values=5)
    assert tokens.shape == (2, 3, 4, 12, 5)
    assert torch.equal(tokens[..., :9, :].argmax(-1), panels.flatten(-3)[..., :9])


def chi_square(counts):
    expected = counts.sum() / len(counts)
    return ((counts - expected) ** 2 / expected).sum().item()


def test_draws_are_uniform():
    sampler = TASK.sampler("train", seeds=[0], batch_size=248 * 80)
    panels, rules, permutations = (field[0] for field in sampler.instances(0))
    combinations, counts = rules.sort(-1).values.unique(dim=0, return_counts=True)
    assert sorted(map(tuple, combinations.tolist())) == sorted(TASK.manifest(0).sides["train"])
    assert chi_square(counts.double()) < 340  # 247 degrees of freedom: p = 1e-4
    for column in permutations.unbind(1):
        assert chi_square(column.unique(dim=0, return_counts=True)[1].double()) < 58  # 23 degrees
    assert chi_square(torch.bincount(panels[:, 0, 0, 0]).double()) < 30  # 7 degrees
    # A combination of four different rules meets the features in all 24 orders.
    distinct = next(c for c in combinations if len(c.unique()) == 4)
    orders = rules[(rules.sort(-1).values == distinct).all(-1)]
    assert len(orders.unique(dim=0)) > 20
    # The columns' permutations are independent of each other.
    pairs = permutations[:, :2].flatten(1).unique(dim=0, return_counts=True)[1]
    assert len(pairs) == 24 * 24
    assert chi_square(pairs.double()) < 710  # 575 degrees


def test_distribute_three_uses_all_sets_and_orders():
    task = Sraven(
        SravenConfig(
            num_features=2,
            num_values=4,
            rules=("distribute_three", "constant"),
            held_out_fraction=0.34,
        )
    )
    panels, rules, _ = task.sampler("test_unpermuted", seeds=[0], batch_size=6000).instances(0)
    grids = panels[0, ..., 0][rules[0, :, 0] == 0]
    counts = grids.flatten(1).unique(dim=0, return_counts=True)[1]
    assert len(counts) > 0.85 * 4 * 6**3
    orders = grids.argsort(-1).flatten(0, 1).unique(dim=0, return_counts=True)[1]
    assert chi_square(orders.double()) < 30  # 5 degrees, and rows share a set


@pytest.mark.parametrize("split", ["train", "ood_unpermuted"])
def test_without_distribute_three_values_may_be_fewer_than_columns(split):
    rules = tuple(name for name in PAPER_RULES if name != "distribute_three")
    config = SravenConfig(num_features=3, num_values=2, grid_size=4, rules=rules)
    panels, drawn, permutations = (
        Sraven(config).sampler(split, seeds=[0], batch_size=50).instances(0)
    )
    for grid, names, orders in zip(
        panels[0].tolist(), drawn[0].tolist(), permutations[0].tolist(), strict=True
    ):
        for number, feature in zip(names, undo_permutations(grid, orders), strict=True):
            assert obeys(rules[number], feature, 2)
    solution = Solver(config)(panels[0], permuted=split == "train")
    for index, truth in enumerate(panels[0, :, -1, -1].tolist()):
        assert tuple(truth) in {answer.panel for answer in solution.answers(index)}


def test_a_rule_is_one_function_and_its_inverse():
    def inverse(context: Context):
        *_, before_last, last = context.columns
        fits = (before_last[:-1] == last).all(0)
        return Prescription(fits, before_last[-1])

    @rule(
        "echo", inverse=inverse, count=lambda num_values, grid_size: num_values ** (2 * grid_size)
    )
    def echo(draws: Draws):
        return torch.cat([draws.free[:-1], draws.free[-2:-1]])

    try:
        config = SravenConfig(num_features=2, rules=("echo", "addition"), held_out_fraction=0.34)
        sampler = Sraven(config).sampler("test_unpermuted", seeds=[0], batch_size=64)
        panels, rules, _ = sampler.instances(0)
        grids = panels[0, ..., 0][rules[0, :, 0] == 0]
        assert len(grids) > 0
        assert torch.equal(grids[..., 1], grids[..., 2])
        assert echo is RULES["echo"].fill
        both_echo = (rules[0] == 0).all(-1)
        solution = Solver(config)(panels[0, both_echo], permuted=False)
        assert torch.equal(solution.answer, panels[0, both_echo, -1, -1])
    finally:
        del RULES["echo"]
    assert tuple(RULES) == (*PAPER_RULES, "minimum", "maximum")


def test_dimensions():
    assert (TASK.input_dim, TASK.output_dim, TASK.sequence_length, TASK.num_queries) == (
        8,
        8,
        36,
        4,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_features": 0}, "num_features must be at least 1, got 0"),
        ({"num_features": 1}, r"num_features must be at least 2.*got 1"),
        ({"num_values": -2}, "num_values must be at least 1, got -2"),
        ({"grid_size": 0}, "grid_size must be at least 1, got 0"),
        ({"grid_size": 1}, "grid_size must be at least 2, got 1"),
        ({"num_values": 1, "rules": ("constant",)}, r"num_values must be at least 2.*got 1"),
        (
            {"num_values": 3, "grid_size": 4},
            "distribute_three cannot fill a grid of size 4 with 3 values; raise num_values",
        ),
        ({"rules": ("constant", "adition")}, r"'adition' is not one of.*did you mean 'addition'"),
        ({"rules": ()}, "non-empty"),
        ({"rules": ("constant", "constant")}, "rules must be"),
    ],
)
def test_wrong_configs_are_explained(arguments, message):
    with pytest.raises(ValueError, match=message):
        SravenConfig(**arguments)
