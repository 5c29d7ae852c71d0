"""Training: populations of small models, exact resume, run directories."""

from hyla.training.config import (
    SCALES,
    Evaluation,
    TrainConfig,
    config_from_tree,
    load_preset,
    merge,
)
from hyla.training.loading import TrainedRun, load_run
from hyla.training.member import Member
from hyla.training.population.company import company_key
from hyla.training.population.population import Population
from hyla.training.population.training import train, train_together
from hyla.training.run.held import run_path
from hyla.training.run.stop import Interrupted

__all__ = [
    "SCALES",
    "Evaluation",
    "Interrupted",
    "Member",
    "Population",
    "TrainConfig",
    "TrainedRun",
    "company_key",
    "config_from_tree",
    "load_preset",
    "load_run",
    "merge",
    "run_path",
    "train",
    "train_together",
]
