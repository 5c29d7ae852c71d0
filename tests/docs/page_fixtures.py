"""What pages speak of and do not make themselves: a trained run, a prepared corpus, made tiny.

For the hidden `setup` comments of pages, which are run in a folder of their own.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))  # not run by pytest


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
