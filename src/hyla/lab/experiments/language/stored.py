"""Language runs under a folder: on which corpus they train, and which of them what is asked for."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hyla.nn.decoders import decoder_config
from hyla.results.runs import StoredRun, read_runs


def corpus_folder(root: Path) -> Path:
    """Return where the corpus of the runs under `root` is looked for."""
    return root / "corpus"


def language_runs(root: Path) -> list[StoredRun]:
    """Return the runs under `root` that train language models."""
    return [run for run in read_runs(root) if run.config.get("task_name") == "language"]


def departures(run: StoredRun, tree: Mapping[str, Any]) -> str:
    """Say in what, but its attention, a run's model departs from that of a tree of settings."""
    # The vocabulary is the corpus's, and no setting of a run.
    usual = dataclasses.asdict(decoder_config(tree["size"], vocab_size=1, **tree["model"]))
    found = ["the weights of another run to begin with"] * ("conversion" in run.config)
    found += [
        f"{name} {value} instead of {usual[name]}"
        for name, value in run.config["model"].items()
        if name != "attention" and value != usual[name]
    ]
    return ", ".join(found)


def trains(run: StoredRun, tree: Mapping[str, Any]) -> bool:
    """Whether a run trains the model that a tree of settings describes, on whichever corpus.

    How it is watched makes no difference either.
    """
    asked = ("member", "batch_size", "precision", "steps")
    return (
        run.config["model"]["attention"] == tree["model"]["attention"]
        and all(run.config.get(name) == tree[name] for name in asked)
        and not departures(run, tree)
    )
