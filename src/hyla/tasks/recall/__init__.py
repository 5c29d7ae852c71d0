"""Associative recall: pairs of keys and values, then keys whose values are asked for."""

from hyla.tasks.recall.task import Recall, RecallConfig

__all__ = ["Recall", "RecallConfig"]
