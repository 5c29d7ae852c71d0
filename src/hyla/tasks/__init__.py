"""The paper's two tasks and associative recall, as stateless samplers, and their registry."""

from hyla.tasks.base import Batch, Manifest, Objective, Sampler, Task
from hyla.tasks.datasets import TaskDataset, fuzzy_dataset, sraven_dataset
from hyla.tasks.fuzzy_logic import FuzzyLogic, FuzzyLogicConfig
from hyla.tasks.recall import Recall, RecallConfig
from hyla.tasks.registry import register_task, task_class, task_names
from hyla.tasks.sraven import Instances, Sraven, SravenConfig, SravenSampler

__all__ = [
    "Batch",
    "FuzzyLogic",
    "FuzzyLogicConfig",
    "Instances",
    "Manifest",
    "Objective",
    "Recall",
    "RecallConfig",
    "Sampler",
    "Sraven",
    "SravenConfig",
    "SravenSampler",
    "Task",
    "TaskDataset",
    "fuzzy_dataset",
    "register_task",
    "sraven_dataset",
    "task_class",
    "task_names",
]
