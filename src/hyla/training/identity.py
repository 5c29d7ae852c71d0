"""What makes two runs the same: the one definition behind every name, key and table.

A config says what is computed and how that is watched (`WATCHED`). What is computed, as a tree
without what is at its default, is the identity of a method: a setting that a later version adds
changes none. A model is a method and a `Member`: whoever finds these two has found the model,
whatever trained beside it and however often it was looked at.

A run's directory is a place: its name is the `fingerprint` of the whole config as it stands in
``config.json``, how it is watched included, since the metrics that lie there depend on that.
"""

import ast
import dataclasses
import functools
import hashlib
import inspect
import json
import textwrap
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from hyla.attention.spec import AttentionSpec, is_own_preset, resolve_spec

if TYPE_CHECKING:
    from hyla.training.config import TrainConfig

OWN_PRESET = "own_preset"
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
    tree = {
        field.name: _without_defaults(
            getattr(config, field.name), but=_IMPLEMENTATION if field.name == "model" else ()
        )
        for field in dataclasses.fields(config)
        if field.name not in ("members", *WATCHED)
    }
    return tree | own_preset(config.model.attention)


def own_preset(attention: str | AttentionSpec) -> dict[str, str]:
    """Return what a tree holds beside the name of somebody's own preset: a hash of its meaning.

    A spec that was changed under its old name is another method, and its runs are others. Of a
    function counts what stands in it, comments aside, and what was bound to it; not what it calls.
    """
    if not isinstance(attention, str):
        raise ValueError(
            "a run is identified by its config: name model.attention as a preset instead of "
            "passing an AttentionSpec"
        )
    if not is_own_preset(attention):
        return {}
    spec = resolve_spec(attention)
    parts = (spec.value, *map(_spelled_out, (*spec.normalisation_steps, spec.phi)))
    return {OWN_PRESET: fingerprint({"spec": [*parts, spec.output, spec.gain]})[:12]}


def without_own_preset(tree: Mapping[str, Any], attention: str) -> dict[str, Any]:
    """Return the rest of a run's tree; a ValueError if the preset is not what it was then."""
    if OWN_PRESET in tree and tree[OWN_PRESET] != own_preset(attention).get(OWN_PRESET):
        raise ValueError(
            f"the preset {attention!r} is not the one that this run was trained with: its spec has "
            "changed since; give the new one another name, and load the plug-in with the old one"
        )
    return {name: value for name, value in tree.items() if name != OWN_PRESET}


def _spelled_out(part: Any) -> str:
    if not callable(part):
        return repr(part)
    if isinstance(part, functools.partial):
        bound = (*part.args, *sorted(part.keywords.items()))
    elif inspect.ismethod(part):
        bound = (part.__self__,)
    elif inspect.isroutine(part):
        cells = getattr(part, "__closure__", None) or ()
        bound = tuple(cell.cell_contents for cell in cells)
    elif " at 0x" in repr(part):
        bound = tuple(sorted(vars(part).items()))
    else:
        bound = (repr(part),)
    known = part.func if isinstance(part, functools.partial) else part
    kind = known if inspect.isroutine(known) else type(known)
    return "\n".join([_source(kind), *(_spelled_out(one) for one in bound)])


def _source(kind: Any) -> str:
    """Return what is written there; of PyTorch, which may be written anew, the name."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name.startswith("torch."):
        return name
    try:
        text = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):  # of C
        return name
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a lambda in the midst of a line
        return text
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


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
