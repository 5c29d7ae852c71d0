"""Fuzzy logic functions, inferred in context: the task, its objective and its study of codes."""

from hyla.tasks.fuzzy_logic.task import (
    FuzzyLogic,
    FuzzyLogicConfig,
    evaluate,
    term_name,
    term_negations,
)

__all__ = ["FuzzyLogic", "FuzzyLogicConfig", "evaluate", "term_name", "term_negations"]
