"""Fuzzy logic: targets against a plain evaluation, and what each split holds fixed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyla.tasks import FuzzyLogic, FuzzyLogicConfig

TASK = FuzzyLogic(FuzzyLogicConfig())


def evaluate(terms, point):
    """The function's value by the definition, one number at a time."""
    values = []
    for term in terms:
        literals = []
        for variable, x in enumerate(point):
            negated = (term // 2**variable) % 2 == 1
            literals.append(1.0 - x if negated else x)
        values.append(min(literals))
    return max(values)


@settings(max_examples=25, deadline=None)
@given(
    num_variables=st.integers(2, 5),
    num_terms=st.integers(2, 3),
    sequence_length=st.integers(2, 9),
    seed=st.integers(0, 1000),
    index=st.integers(0, 10**6),
    split=st.sampled_from(["train", "test", "ood", "ood_fixed_context", "test_fixed_query"]),
)
def test_targets_match_a_plain_evaluation(
    num_variables, num_terms, sequence_length, seed, index, split
):
    config = FuzzyLogicConfig(
        num_variables=num_variables,
        num_terms=min(num_terms, num_variables),
        sequence_length=sequence_length,
        held_out_fraction=0.34,
    )
    task = FuzzyLogic(config)
    batch = task.batch(split, seed=seed, index=index, batch_size=4)
    assert batch.inputs.shape == (4, sequence_length, num_variables + 1)
    assert batch.inputs.shape[1:] == (task.sequence_length, task.input_dim)
    assert batch.targets.shape == (4, sequence_length)
    assert batch.inputs.dtype == batch.targets.dtype == torch.float32
    assert batch.inputs.is_contiguous()
    combinations = task.manifest(seed).sides["ood" if "ood" in split else "train"]
    for tokens, targets, terms in zip(*(field.tolist() for field in batch), strict=True):
        assert tuple(terms) in combinations
        expected = [evaluate(terms, token[:-1]) for token in tokens]
        assert targets == expected
        assert [token[-1] for token in tokens] == [*expected[:-1], 0.0]


def test_points_are_uniform():
    points = TASK.batch("train", seed=0, index=0, batch_size=2048).inputs[..., :-1]
    histogram = torch.histc(points, bins=20, min=0, max=1)
    expected = points.numel() / 20
    assert ((histogram - expected) ** 2 / expected).sum() < 50  # 19 degrees of freedom: p = 1e-4
    assert points.flatten(0, 1).T.corrcoef().fill_diagonal_(0).abs().max() < 5 / 256


def test_combinations_are_equally_frequent():
    terms = TASK.batch("ood", seed=0, index=0, batch_size=46 * 200).labels
    combinations, counts = terms.unique(dim=0, return_counts=True)
    assert sorted(map(tuple, combinations.tolist())) == sorted(TASK.manifest(0).sides["ood"])
    assert ((counts - 200.0) ** 2 / 200).sum() < 90  # 45 degrees of freedom: p = 1e-4


def test_unknown_terms_split_uses_the_last_quarter():
    terms = TASK.batch("unknown_terms", seed=0, index=0, batch_size=256).labels
    assert terms.unique().tolist() == [12, 13, 14, 15]


@pytest.mark.parametrize("side", ["test", "ood"])
@pytest.mark.parametrize(
    ("kind", "fixed", "free"),
    [
        ("fixed_context", slice(0, -1), slice(-1, None)),
        ("fixed_query", slice(-1, None), slice(0, -1)),
    ],
)
def test_fixed_points_are_the_same_in_all_tasks_and_batches(side, kind, fixed, free):
    sampler = TASK.sampler(f"{side}_{kind}", seeds=[0, 1], batch_size=16)
    first, second = (sampler(index).inputs[..., :-1] for index in (0, 1))
    other_side = TASK.sampler(f"ood_{kind}", seeds=[0], batch_size=16)(3).inputs[..., :-1]
    for points in (first[0], second[0], other_side[0]):
        assert torch.equal(points[:, fixed], first[0, :1, fixed].expand_as(points[:, fixed]))
    for points in (first[0], torch.stack([first[0, 0], second[0, 0]])):
        assert len(points[:, free].flatten(1).unique(dim=0)) == len(points)
    assert not torch.equal(first[0, 0, fixed], first[1, 0, fixed])


def test_dimensions():
    assert (TASK.input_dim, TASK.output_dim, TASK.sequence_length, TASK.num_queries) == (
        5,
        1,
        32,
        1,
    )


def test_unknown_terms_is_absent_where_the_last_quarter_is_too_small():
    task = FuzzyLogic(FuzzyLogicConfig(num_variables=2, num_terms=2, held_out_fraction=0.34))
    assert "unknown_terms" not in task.splits
    with pytest.raises(ValueError, match="'unknown_terms' is unknown; choose from train"):
        task.sampler("unknown_terms", seeds=[0], batch_size=1)


@pytest.mark.parametrize("name", ["num_variables", "num_terms", "sequence_length"])
@pytest.mark.parametrize(
    ("value", "what"), [(0, "at least 1"), (-1, "at least 1"), (1.5, "an integer")]
)
def test_sizes_must_be_positive(name, value, what):
    with pytest.raises(ValueError, match=f"{name} must be {what}, got {value}"):
        FuzzyLogicConfig(**{name: value})


def test_a_single_value_has_no_variance():
    with pytest.raises(ValueError, match=r"sequence_length must be at least 2.* got 1"):
        FuzzyLogicConfig(sequence_length=1)


def test_single_terms_cannot_be_held_out():
    with pytest.raises(ValueError, match=r"num_terms must be at least 2.*got 1"):
        FuzzyLogicConfig(num_terms=1)


def test_more_terms_than_there_are_is_an_error():
    with pytest.raises(ValueError, match=r"num_terms must be at most 12.*got 13"):
        FuzzyLogicConfig(num_terms=13)


@pytest.mark.parametrize(("num_variables", "num_terms"), [(8, 4), (40, 2)])
def test_more_combinations_than_a_split_can_list_are_refused_at_once(num_variables, num_terms):
    task = FuzzyLogic(FuzzyLogicConfig(num_variables=num_variables, num_terms=num_terms))
    with pytest.raises(ValueError, match=f"num_variables={num_variables} and .* lists them all"):
        task.manifest(seed=0)
