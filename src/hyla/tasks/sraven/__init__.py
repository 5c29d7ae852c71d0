"""SRAVEN, the symbolic Raven task: its rules, its sampler and its size."""

from hyla.tasks.sraven.config import SravenConfig
from hyla.tasks.sraven.counts import (
    num_correspondences,
    num_instances,
    num_rule_combinations,
    num_tasks,
    num_tasks_in_paper,
)
from hyla.tasks.sraven.generator import Instances, Sraven, SravenSampler, encode
from hyla.tasks.sraven.rules import PAPER_RULES, RULES, Draws, Rule, rule

__all__ = [
    "PAPER_RULES",
    "RULES",
    "Draws",
    "Instances",
    "Rule",
    "Sraven",
    "SravenConfig",
    "SravenSampler",
    "encode",
    "num_correspondences",
    "num_instances",
    "num_rule_combinations",
    "num_tasks",
    "num_tasks_in_paper",
    "rule",
]
