"""SRAVEN, the symbolic Raven task: its rules, its sampler, its size and its exact solver."""

from hyla.tasks.sraven.config import SravenConfig
from hyla.tasks.sraven.counts import (
    num_correspondences,
    num_instances,
    num_rule_combinations,
    num_tasks,
    num_tasks_in_paper,
)
from hyla.tasks.sraven.generator import Instances, SravenSampler, encode
from hyla.tasks.sraven.rules import PAPER_RULES, RULES, Context, Draws, Prescription, Rule, rule
from hyla.tasks.sraven.solver.ambiguity import ambiguous_by_authors, ambiguous_by_definition
from hyla.tasks.sraven.solver.audit import audit
from hyla.tasks.sraven.solver.exact import Answer, Solution, Solver
from hyla.tasks.sraven.solver.readings import Reading, Thread
from hyla.tasks.sraven.task import Sraven

__all__ = [
    "PAPER_RULES",
    "RULES",
    "Answer",
    "Context",
    "Draws",
    "Instances",
    "Prescription",
    "Reading",
    "Rule",
    "Solution",
    "Solver",
    "Sraven",
    "SravenConfig",
    "SravenSampler",
    "Thread",
    "ambiguous_by_authors",
    "ambiguous_by_definition",
    "audit",
    "encode",
    "num_correspondences",
    "num_instances",
    "num_rule_combinations",
    "num_tasks",
    "num_tasks_in_paper",
    "rule",
]
