"""What makes two runs the same: the one definition behind every name, key and table.

A config says what is computed and how that is watched (`WATCHED`). What is computed, as a tree
without what is at its default, is the identity of a method: a setting that a later version adds
changes none. A model is a method and a `Member`: whoever finds these two has found the model,
whatever trained beside it and however often it was looked at.

A run's directory is a place: its name is the `fingerprint` of the whole config as it stands in
``config.json``, how it is watched included, since the metrics that lie there depend on that.
"""

import copy
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hyla._plugins import place_of
from hyla.attention.reference import reference_attention
from hyla.attention.spec import AttentionSpec, is_own_preset, resolve_spec
from hyla.tasks.base import Task, without_defaults
from hyla.tasks.registry import is_own_task

if TYPE_CHECKING:
    from hyla.training.config import TrainConfig

OWN_PRESET, OWN_TASK = "own_preset", "own_task"
WATCHED = ("evaluation", "log_every")
"""Settings of how often, and on what, a run is looked at: they change no model."""
# What computes attention changes no numbers.
_IMPLEMENTATION = ("backend",)


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
    tree = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in ("members", *WATCHED)
    }
    for name, value in tree.items():
        if dataclasses.is_dataclass(value):
            tree[name] = without_defaults(value, but=_IMPLEMENTATION if name == "model" else ())
    return (
        tree | own_preset(config.model.attention) | own_task(config.task_name, config.build_task())
    )


def plain_tree(settings: Any) -> dict[str, Any]:
    """Return a config's settings as plain values: all but those that came later, at their defaults.

    So earlier runs keep their names. The same holds of the configs in it.
    """
    tree = dataclasses.asdict(settings)
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.metadata.get("later") and value == field.default:
            del tree[field.name]
        elif dataclasses.is_dataclass(value):
            tree[field.name] = plain_tree(value)
    return tree


def own_preset(attention: str | AttentionSpec) -> dict[str, str]:
    """Return what a tree holds beside the name of somebody's own preset: a hash of its meaning.

    A spec that was changed under its old name is another method, and its runs are others. What
    counts is what it computes, of some numbers between -3 and 3, and not how that is written.
    """
    if not isinstance(attention, str):
        raise ValueError(
            "a run is identified by its config: name model.attention as a preset instead of "
            "passing an AttentionSpec"
        )
    if not is_own_preset(attention):
        return {}
    try:
        outputs = _outputs(resolve_spec(attention))
    except Exception as error:
        raise ValueError(
            f"the preset {attention!r} cannot be identified, for it does not compute float64 on a "
            f"CPU: {type(error).__name__}: {error}{place_of(error)}"
        ) from error
    if not outputs.isfinite().all():
        raise ValueError(
            f"the preset {attention!r} cannot be identified, for of numbers between -3 and 3 it "
            "makes some that are not finite"
        )
    return {OWN_PRESET: fingerprint({"outputs": _digits(*outputs)})[:12]}


@torch.no_grad()
def _outputs(spec: AttentionSpec) -> Tensor:
    """Return what attention makes of fixed numbers: 7 queries and keys of 4 heads of 3."""
    if isinstance(spec.phi, nn.Module):
        spec = dataclasses.replace(spec, phi=copy.deepcopy(spec.phi).double())
    numbers = 3 * torch.arange(4 * 84, dtype=torch.float64, device="cpu").square().sin()
    q, k, v, weights = numbers.reshape(4, 1, 7, 4, 3)
    weight = weights.flatten()[:36].reshape(4, 3, 3)
    return reference_attention(q, k, v, spec=spec, scale=1 / 3, eps=1e-6, value_weight=weight)[0][0]


def own_task(name: str, task: Task) -> dict[str, str]:
    """Return what a tree holds beside the name of somebody's own task: a hash of what it draws."""
    if not is_own_task(name):
        return {}
    batch = task.batch("train", seed=0, index=0, batch_size=4)
    return {OWN_TASK: fingerprint({"instances": _digits(*batch)})[:12]}


def without_own_preset(tree: Mapping[str, Any], attention: str) -> dict[str, Any]:
    """Return the rest of a run's tree; a ValueError if the preset is not what it was then."""
    if OWN_PRESET in tree and tree[OWN_PRESET] != own_preset(attention).get(OWN_PRESET):
        raise ValueError(
            f"the preset {attention!r} is not the one that this run was trained with: its spec has "
            "changed since; give the new one another name, and load the plug-in with the old one"
        )
    return {name: value for name, value in tree.items() if name != OWN_PRESET}


def without_own_task(tree: Mapping[str, Any], name: str, task: Task) -> dict[str, Any]:
    """Return the rest of a run's tree; a ValueError if the task is not what it was then."""
    if OWN_TASK in tree and tree[OWN_TASK] != own_task(name, task).get(OWN_TASK):
        raise ValueError(
            f"the task {name!r} is not the one that this run was trained with: it draws other "
            "instances now; give the new one another name, and load the plug-in with the old one"
        )
    return {name: value for name, value in tree.items() if name != OWN_TASK}


def _digits(*tensors: Tensor) -> list[str]:
    """Return a number for each tensor, to five digits: the last bits of a machine are not in it.

    A sum, in which everything has another weight. Of thousands of numbers that are rounded one by
    one, some would lie where a last bit decides.
    """
    found = []
    for tensor in tensors:
        numbers = tensor.double().flatten()
        weights = torch.arange(len(numbers), dtype=numbers.dtype, device=numbers.device).cos()
        found.append(f"{float(numbers @ weights):.4e}")
    return found


def method_key(config: "TrainConfig") -> str:
    """Return a short hash of what is computed: models of the same key are compared as one."""
    # Hexadecimal digits alone may read as a number: 12e456789012.
    return f"m{fingerprint(computed(config))[:12]}"


def task_key(config: "TrainConfig") -> str:
    """Return a readable name of a task's settings that are not at their defaults."""
    changed = without_defaults(config.task)
    return " ".join([config.task_name, *(f"{name}={value}" for name, value in changed.items())])


def shape_key(config: "TrainConfig") -> str:
    """Return a short hash of what a task's instances look like, whatever is held out of them."""
    fields = dataclasses.fields(config.task)
    others = [field.name for field in fields if not field.metadata.get("shape", True)]
    return fingerprint({config.task_name: without_defaults(config.task, but=others)})[:8]
