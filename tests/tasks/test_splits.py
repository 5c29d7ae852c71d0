"""The sides of a split are disjoint, complete, and leave every constituent to training."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyla.tasks import FuzzyLogic, FuzzyLogicConfig, Sraven, SravenConfig
from hyla.tasks.splits import split_combinations

TASKS = {"fuzzy logic": FuzzyLogic(FuzzyLogicConfig()), "sraven": Sraven(SravenConfig())}
PINNED_HASHES = {
    "fuzzy logic": "83db427c685b54146fe96338797297816194802ec94aa99cc37afd85e1010ee9",
    "sraven": "49c4b5332580262bb7710aaa525c0b2d2b5cc34831cbae5a6e309b6514fe6a1c",
}
SEEDS = st.integers(min_value=0, max_value=2**64)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, name=st.sampled_from(sorted(TASKS)))
def test_sides_are_disjoint_multisets_and_training_shows_every_constituent(seed, name):
    sides = TASKS[name].manifest(seed).sides
    train = {tuple(sorted(c)) for c in sides["train"]}
    held_out = {tuple(sorted(c)) for c in sides["ood"]}
    assert len(train) == len(sides["train"])
    assert len(held_out) == len(sides["ood"])
    assert not train & held_out
    constituents = {c for combination in train for c in combination}
    assert constituents >= {c for combination in held_out for c in combination}
    assert constituents == set(range({"fuzzy logic": 12, "sraven": 8}[name]))


def test_sizes_are_the_papers():
    fuzzy = TASKS["fuzzy logic"].manifest(0).sides
    assert {k: len(v) for k, v in fuzzy.items()} == {"train": 20, "ood": 46, "unknown_terms": 6}
    sraven = TASKS["sraven"].manifest(0).sides
    assert {k: len(v) for k, v in sraven.items()} == {"train": 248, "ood": 82}


def test_unknown_terms_never_appear_in_known_sides():
    sides = TASKS["fuzzy logic"].manifest(0).sides
    assert {t for c in sides["unknown_terms"] for t in c} == {12, 13, 14, 15}


@pytest.mark.parametrize("name", TASKS)
def test_hash_is_stable_and_tells_seeds_apart(name):
    task = TASKS[name]
    assert task.manifest(7).hash == task.manifest(7).hash
    assert len({task.manifest(seed).hash for seed in range(20)}) == 20
    assert task.manifest(0).hash == PINNED_HASHES[name]


def test_manifest_reads_well():
    text = str(
        Sraven(
            SravenConfig(num_features=2, rules=("constant", "addition"), held_out_fraction=0.34)
        ).manifest(0)
    )
    header, *lines = text.splitlines()
    assert header.startswith("sraven, seed 0, sha256 ")
    assert "train: 2 combinations" in lines
    assert "  addition | addition" in lines
    assert "x1∧¬x2∧x3∧¬x4" in str(TASKS["fuzzy logic"].manifest(0))


@settings(max_examples=30, deadline=None)
@given(
    terms=st.integers(5, 9),
    size=st.integers(2, 3),
    fraction=st.floats(0.1, 0.5),
    seed=SEEDS,
)
def test_a_split_is_a_partition_with_every_constituent_in_training(terms, size, fraction, seed):
    combinations = list(itertools.combinations(range(terms), size))
    split = split_combinations(combinations, held_out_fraction=fraction, seed=seed)
    assert sorted(split.train + split.held_out) == combinations
    assert len(split.held_out) == int(math.comb(terms, size) * fraction)
    assert {t for c in split.train for t in c} == set(range(terms))


def test_a_shuffle_that_hides_a_constituent_is_replaced():
    # Two of the three combinations show all constituents only if (0, 1) is one of them.
    combinations = [(0, 0), (0, 1), (2, 2)]
    for seed in range(10):
        split = split_combinations(combinations, held_out_fraction=0.34, seed=seed)
        assert split.held_out == ((0, 0),)


@pytest.mark.parametrize(
    ("fraction", "message"),
    [
        (0.0, "held-out side empty.*at least 1/330"),
        (0.003, "held-out side empty"),
        (1.0, "training side empty"),
        (-0.5, "held-out side empty"),
        (float("nan"), "must be finite, got nan"),
        (float("inf"), "must be finite, got inf"),
        (0.997, "330 combinations for training.*smaller held_out_fraction"),
    ],
)
def test_an_unworkable_fraction_is_explained(fraction, message):
    with pytest.raises(ValueError, match=message):
        Sraven(SravenConfig(held_out_fraction=fraction)).manifest(0)


def test_a_single_combination_cannot_be_split():
    with pytest.raises(ValueError, match="no fraction works; more constituents would"):
        split_combinations([(0,)], held_out_fraction=0.5, seed=0)
