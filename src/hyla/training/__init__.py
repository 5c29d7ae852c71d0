"""Training: populations of small models, exact resume, run directories."""

from hyla.training.config import (
    SCALES,
    Evaluation,
    TrainConfig,
    config_from_tree,
    load_preset,
    merge,
)
from hyla.training.loop import Interrupted, train
from hyla.training.population import Member, Population

__all__ = [
    "SCALES",
    "Evaluation",
    "Interrupted",
    "Member",
    "Population",
    "TrainConfig",
    "config_from_tree",
    "load_preset",
    "merge",
    "train",
]
