"""Training language models: one process or many, DDP or FSDP2, exact resume."""

from hyla.training.language.config import (
    Execution,
    LanguageConfig,
    LanguageEvaluation,
    language_config_from_tree,
    load_language_preset,
)
from hyla.training.language.conversion import Source
from hyla.training.language.training import language_run_path, train_language
from hyla.training.loading import load_language_model

__all__ = [
    "Execution",
    "LanguageConfig",
    "LanguageEvaluation",
    "Source",
    "language_config_from_tree",
    "language_run_path",
    "load_language_model",
    "load_language_preset",
    "train_language",
]
