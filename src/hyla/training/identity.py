"""What makes two runs the same: the one definition behind every name, key and table.

A config says what is computed and how that is watched (`WATCHED`). What is computed, as a tree
without what is at its default, is the identity of a method: a setting that a later version adds
changes none. A model is a method and a `Member`: whoever finds these two has found the model,
whatever trained beside it and however often it was looked at.

A run's directory is a place: its name is the `fingerprint` of the whole config as it stands in
``config.json``, how it is watched included, since the metrics that lie there depend on that.
"""

import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hyla.training.config import TrainConfig

WATCHED = ("evaluation", "log_every")
"""Settings of how often, and on what, a run is looked at: they change no model."""
# What computes attention changes no numbers.
_IMPLEMENTATION = ("backend",)
# Which combinations are held out is no matter of what the instances look like.
_NOT_OF_THE_SHAPE = ("held_out_fraction", "split_seed")


def fingerprint(tree: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a tree's canonical JSON, in hex.

    Canonical: keys sorted, no white space, floats as Python's ``repr``, ASCII only. Note that
    ``1`` and ``1.0`` are different.
    """
    try:
        canonical = json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise ValueError(f"A config holds finite numbers only: {error}") from error
    return hashlib.sha256(canonical.encode()).hexdigest()


def computed(config: "TrainConfig") -> dict[str, Any]:
    """Return what all models of a method have in common: the canonical tree of their settings."""
    return {
        field.name: _without_defaults(
            getattr(config, field.name), but=_IMPLEMENTATION if field.name == "model" else ()
        )
        for field in dataclasses.fields(config)
        if field.name not in ("members", *WATCHED)
    }


def method_key(config: "TrainConfig") -> str:
    """Return a short hash of what is computed: models of the same key are compared as one."""
    # Hexadecimal digits alone may read as a number: 12e456789012.
    return f"m{fingerprint(computed(config))[:12]}"


def task_key(config: "TrainConfig") -> str:
    """Return a readable name of a task's settings that are not at their defaults."""
    changed = _without_defaults(config.task)
    return " ".join([config.task_name, *(f"{name}={value}" for name, value in changed.items())])


def shape_key(config: "TrainConfig") -> str:
    """Return a short hash of what a task's instances look like, whatever is held out of them."""
    sizes = _without_defaults(config.task)
    kept = {name: value for name, value in sizes.items() if name not in _NOT_OF_THE_SHAPE}
    return fingerprint({config.task_name: kept})[:8]


def _without_defaults(value: Any, but: Collection[str] = ()) -> Any:
    if not dataclasses.is_dataclass(value):
        return value
    return {
        field.name: getattr(value, field.name)
        for field in dataclasses.fields(value)
        if getattr(value, field.name) != field.default and field.name not in but
    }
