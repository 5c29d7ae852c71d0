"""The paper's two compositional tasks, as stateless samplers on any device."""

from hyla.tasks.base import Batch, Manifest, Sampler, Task
from hyla.tasks.fuzzy_logic import FuzzyLogic, FuzzyLogicConfig
from hyla.tasks.sraven import Instances, Sraven, SravenConfig, SravenSampler

__all__ = [
    "Batch",
    "FuzzyLogic",
    "FuzzyLogicConfig",
    "Instances",
    "Manifest",
    "Sampler",
    "Sraven",
    "SravenConfig",
    "SravenSampler",
    "Task",
]
