"""Which multisets of rules training shows, and which it never does."""

from __future__ import annotations

import itertools
import math

from hyla.tasks.splits import Combination, Split, check_listable, split_combinations
from hyla.tasks.sraven.config import SravenConfig


def all_combinations(config: SravenConfig, num_features: int) -> list[Combination]:
    """All multisets of as many rules as there are features."""
    rules = range(len(config.rules))
    number = math.comb(len(rules) + num_features - 1, num_features)
    check_listable(number, f"num_features={num_features} and {len(rules)} rules")
    return list(itertools.combinations_with_replacement(rules, num_features))


def combinations_by_side(config: SravenConfig, seed: int) -> Split:
    """Split the multisets of M rules by the seed, or take those of fewer rules for training."""
    combinations = all_combinations(config, config.num_features)
    if config.train_features:
        fewer = (c for number in config.train_features for c in all_combinations(config, number))
        return Split(tuple(fewer), tuple(combinations))
    return split_combinations(combinations, held_out_fraction=config.held_out_fraction, seed=seed)
