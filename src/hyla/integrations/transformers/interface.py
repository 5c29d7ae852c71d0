"""Attention functions under a name of `attn_implementation`, and proof that models call them.

transformers looks a name up in two places, one for attention and one for masks. Registered in the
first alone, a name would attend without any mask: causality vanishes silently. And a model that
does not use the interface takes any name and goes on with its own attention, just as silently.
So `register_attention` fills both places, and a first forward pass without any call fails.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hyla._errors import install_command

try:
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
    from transformers.masking_utils import sdpa_mask
except ImportError as error:
    raise ImportError(
        f"hyla.integrations.transformers needs transformers: {install_command('transformers')}"
    ) from error

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]


class InterfaceIgnoredError(ValueError):
    """A model was given the name of an attention function and never called it."""


class _Watch:
    """Whether a registered function was called since somebody last asked.

    Written and never read inside a model, so that compiled code neither guards on it nor breaks.
    """

    called = False


_watch = _Watch()
_outer_calls: list[bool] = []  # `_watch.called` of the forward passes around the current one
_registered: set[str] = set()

# transformers does not save a model's name, but applies the one that it finds in config.json.
_SAVED_NAME = "attn_implementation"
# Where a model that has not called yet keeps the hooks that wait for it.
_HANDLES = "_hyla_attention_hooks"


def register_attention(name: str, function: AttentionFunction) -> None:
    """Make `attn_implementation=name` call `function`, in every model that uses the interface.

    `function(module, query, key, value, attention_mask, *, dropout, scaling, **more)` gets queries
    [B, H, Q, D], and keys and values [B, Hkv, K, D] as they are before a grouped query's heads are
    repeated. The mask is boolean, True = attend, or None where `is_causal` (or nothing) says it
    all. It returns the output [B, Q, H, Dv] and weights or None.

    A model that was given the name and does not call the function raises `InterfaceIgnoredError`
    in its first forward pass. The name is written to the model's config.json, from which
    transformers applies it again on loading.
    """

    @functools.wraps(function)
    def watched(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        _watch.called = True
        return function(module, *args, **kwargs)

    AttentionInterface.register(name, watched)
    AttentionMaskInterface.register(name, sdpa_mask)
    if not _registered:
        _follow_names()
    _registered.add(name)


def _follow_names() -> None:
    """See every name that a model is given.

    transformers has no hook for that; this method is where each model, at its creation and at
    `set_attn_implementation`, has its name checked.
    """
    check = PreTrainedModel.get_correct_attn_implementation

    @functools.wraps(check)
    def checked(self: PreTrainedModel, *args: Any, **kwargs: Any) -> str:
        name, model = check(self, *args, **kwargs), self
        if name in _registered:
            if not _may_use_interface(model):
                raise _ignored(model, name)
            setattr(model.config, _SAVED_NAME, name)
            _expect_calls(model)
        elif getattr(model.config, _SAVED_NAME, None) in _registered:
            delattr(model.config, _SAVED_NAME)
        return name

    PreTrainedModel.get_correct_attn_implementation = checked


def _expect_calls(model: PreTrainedModel) -> None:
    """Let the model's first forward pass fail if no registered function was called in it."""
    if not hasattr(model, _HANDLES):
        before = model.register_forward_pre_hook(_before_forward)
        after = model.register_forward_hook(_after_forward, always_call=True)
        setattr(model, _HANDLES, (before, after))


def _before_forward(model: Any, args: Any) -> None:
    if not torch.compiler.is_compiling():
        _outer_calls.append(_watch.called)
        _watch.called = False


def _after_forward(model: Any, args: Any, output: Any) -> None:
    if torch.compiler.is_compiling():
        return
    called, around = _watch.called, _outer_calls.pop()
    _watch.called = called or around
    name = model.config._attn_implementation
    if called or name not in _registered:
        for handle in getattr(model, _HANDLES):
            handle.remove()
        delattr(model, _HANDLES)
    # Without an output, the pass failed and its own error is on the way; and inside a larger model
    # a part may have no attention at all.
    elif output is not None and not _outer_calls:
        raise _ignored(model, name)


def _may_use_interface(model: PreTrainedModel) -> bool:
    """Whether there is hope: False where the model's own source never speaks of the interface.

    Only the call itself proves anything; but those that cannot call are better told at once.
    """
    if model._can_set_attn_implementation():
        return True
    try:
        source = inspect.getsource(sys.modules[type(model).__module__])
    except (OSError, TypeError, KeyError):  # defined in a notebook
        return True
    return "ALL_ATTENTION_FUNCTIONS" in source


def _ignored(model: PreTrainedModel, name: str) -> InterfaceIgnoredError:
    return InterfaceIgnoredError(
        f"{type(model).__name__} does not call attn_implementation={name!r}: its attention does "
        "not use transformers' attention interface, so the name would have no effect. Choose an "
        "architecture that does (Llama, Qwen, Gemma, GPT-2, ...)."
    )
