"""What pages speak of and do not make themselves: a trained run, a prepared corpus, made tiny.

For the hidden `setup` comments of pages, which are run in a folder of their own.
"""

import sys
from pathlib import Path

import torch

TESTS = Path(__file__).parent.parent
sys.path.insert(0, str(TESTS))

from tiny_runs import tiny_model, tiny_task  # noqa: E402


def untrained_model(task_name: str = "sraven", **changes):
    """A tiny task and a model of it, to look into; training would change nothing about the code."""
    from hyla.nn import Transformer

    torch.manual_seed(0)
    task = tiny_task(task_name)
    return task, Transformer(tiny_model(task, num_heads=4, **changes))


def finished_run(name: str, task: str = "fuzzy") -> None:
    """Train a run at smoke scale and leave it under `runs/` by that name."""
    from hyla.training import config_from_tree, load_preset, run_path, train

    config = config_from_tree(load_preset(task, "smoke"))
    train(config, root="elsewhere", device="cpu")
    _link(run_path(config, "elsewhere"), name)


def language_run(name: str) -> None:
    """Prepare a corpus, train a language model on it, and leave that under `runs/` by that name."""
    from hyla.training.language import language_run_path, train_language
    from tiny_text import tiny_corpus, tiny_language_config

    corpus = tiny_corpus(Path("elsewhere"))
    config = tiny_language_config(corpus)
    train_language(config, corpus, root="elsewhere", device="cpu")
    _link(language_run_path(config, "elsewhere"), name)


def _link(run: Path, name: str) -> None:
    Path("runs").mkdir(exist_ok=True)
    (Path("runs") / name).symlink_to(run.resolve())
