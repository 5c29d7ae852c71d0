"""Proof that the attention of a model is the one that it was told to use.

A model that does not use transformers' attention interface takes any name and goes on with its own
attention, without a word; and some models use it in one part and not in another. So the first
forward pass of a model is watched: the function has to be called, and no module may attend by
itself that a registered name was meant for.
"""

import functools
import re
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedConfig, PreTrainedModel

from hyla.integrations.transformers.masks import FlagsSeen, forget_flags, is_causal_without_mask

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]

registered: set[str] = set()  # names of `attn_implementation` that are ours

# Where a model that has not been judged yet keeps the hooks that wait for it, whether it is known
# as a part of another model (parts may have no attention at all), and of one with the same config.
_HANDLES = "_hyla_attention_hooks"
_IS_PART = "_hyla_is_part"
_SHARES_CONFIG = "_hyla_shares_config"

_SOFTMAX = {torch.softmax, Tensor.softmax, F.softmax, torch.special.softmax}
# PyTorch's own modules come here too: they take no shortcuts while functions are watched.
_ATTENTION = {F.scaled_dot_product_attention, F.multi_head_attention_forward}
_NAME_OF_ATTENTION = re.compile("attention|attn|multihead", re.IGNORECASE)


class InterfaceIgnoredError(ValueError):
    """A model was given the name of an attention function and attends by something else."""


class _Watch:
    """Whether a registered function was called since somebody last asked.

    Written and never read inside a model, so that compiled code neither guards on it nor breaks.
    """

    called = False


_watch = _Watch()


def watched(function: AttentionFunction) -> AttentionFunction:
    """Return the attention function, leaving word of each call.

    Where it gets no mask, it is told whether that means causality.
    """

    @functools.wraps(function)
    def call(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        *,
        is_causal: bool | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None]:
        _watch.called = True
        if not torch.compiler.is_compiling() and _current.run is not None:
            _current.run.callers.add(module)
            _current.run.flags.see(module, query, key, attention_mask, is_causal)
        if attention_mask is None:
            is_causal = is_causal_without_mask(module, is_causal)
        return function(module, query, key, value, attention_mask, is_causal=is_causal, **more)

    return call


_CODE_OF_OURS = watched(lambda module: (module, None)).__code__


class _Pass(TorchFunctionMode):
    """A forward pass that is watched, of a model and the models inside it."""

    def __init__(self, outermost: PreTrainedModel, caller: FrameType):
        super().__init__()
        self.outermost = outermost
        self.caller = caller  # on the stack for as long as the pass lasts
        self.models: list[PreTrainedModel] = []
        self.unfinished = 0
        self.callers: set[nn.Module] = set()
        self.attending: dict[nn.Module, str] = {}  # by themselves, and the name meant for them
        self.flags = FlagsSeen()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Look at who calls what attention is made of."""
        if not torch.compiler.is_compiling() and (func in _SOFTMAX or func in _ATTENTION):
            self._look_at_caller(func)
        return func(*args, **(kwargs or {}))

    def _look_at_caller(self, func: Any) -> None:
        attending = None
        for frame in _frames():
            if frame.f_code is _CODE_OF_OURS:
                return
            module = frame.f_locals.get("self")
            if not isinstance(module, nn.Module) or isinstance(module, nn.Softmax):
                continue
            if attending is None:
                # Routers of experts use a softmax as well, so that the name has to tell.
                if func in _SOFTMAX and not _NAME_OF_ATTENTION.search(type(module).__name__):
                    return
                attending = module
            config = getattr(module, "config", None)
            if isinstance(config, PreTrainedConfig):  # the innermost: its name is the one meant
                if config._attn_implementation in registered:
                    self.attending[attending] = config._attn_implementation
                return


class _Current(threading.local):
    """The pass that is watched in this thread, if there is one."""

    run: _Pass | None = None


_current = _Current()


def expect_calls(model: PreTrainedModel) -> None:
    """Let the model's first forward pass fail if attention in it is not by a registered name."""
    for whole in _modules_on_stack():
        if isinstance(whole, PreTrainedModel) and whole is not model:
            _mark_part(model, whole)  # made by another model, or renamed with it
    forget_flags(model.config)
    if not hasattr(model, _HANDLES):
        before = model.register_forward_pre_hook(_before_forward)
        after = model.register_forward_hook(_after_forward, always_call=True)
        setattr(model, _HANDLES, (before, after))


def _mark_part(part: PreTrainedModel, whole: PreTrainedModel) -> None:
    setattr(part, _IS_PART, True)
    if part.config is whole.config:
        setattr(part, _SHARES_CONFIG, True)


def _before_forward(model: Any, args: Any) -> None:
    if torch.compiler.is_compiling():
        return
    run = _current.run
    if run is not None and not any(frame is run.caller for frame in _frames()):
        run.__exit__(None, None, None)  # was interrupted by Ctrl-C, past all hooks
        run = None
    if run is None:
        run = _current.run = _Pass(model, sys._getframe(1))
        _watch.called = False
        run.__enter__()
    run.models.append(model)
    run.unfinished += 1


def _after_forward(model: Any, args: Any, output: Any) -> None:
    run = _current.run
    if torch.compiler.is_compiling() or run is None:
        return
    run.unfinished -= 1
    if run.unfinished:
        return  # the outermost model judges
    _current.run = None
    run.__exit__(None, None, None)
    if output is not None:  # without one, the pass failed and its own error is on the way
        _judge(run)


def _judge(done: _Pass) -> None:
    model = done.outermost
    name = model.config._attn_implementation
    # Some compute weights by themselves, leave them unused, and call.
    attending = {x: name for x, name in done.attending.items() if x not in done.callers}
    if attending:
        raise _partly_ignored(model, attending)
    called = done.callers or _watch.called  # the latter by compiled parts
    if name in registered and not called and not getattr(model, _IS_PART, False):
        raise ignored(model, name)
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and part is not model:
            _mark_part(part, model)
    # An encoder by itself says nothing of a decoder that has the same config.
    if not getattr(model, _SHARES_CONFIG, False):
        done.flags.conclude()
    for judged in done.models:
        for handle in judged.__dict__.pop(_HANDLES, ()):
            handle.remove()


def _frames() -> Iterator[FrameType]:
    """Yield the frames that we are in, from the inside out."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _modules_on_stack() -> Iterator[nn.Module]:
    """Yield the modules in whose methods we are."""
    for frame in _frames():
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module):
            yield module


def ignored(model: PreTrainedModel, name: str) -> InterfaceIgnoredError:
    """Return the error for a model that never calls the function of that name."""
    return InterfaceIgnoredError(
        f"{type(model).__name__} does not call attn_implementation={name!r}: it has no attention, "
        "or attention that does not use transformers' attention interface, so the name would have "
        f"no effect. Choose an architecture that uses it (Llama, Qwen, GPT-2, ...){_parts(model)}."
    )


def _partly_ignored(
    model: PreTrainedModel, attending: dict[nn.Module, str]
) -> InterfaceIgnoredError:
    where = {module: path for path, module in model.named_modules()}
    paths: dict[str, list[str]] = {}
    for module in attending:
        paths.setdefault(type(module).__name__, []).append(where.get(module, "?"))
    found = "; ".join(f"{kind} ({', '.join(x[:3])})" for kind, x in paths.items())
    return InterfaceIgnoredError(
        f"{type(model).__name__} attends only in part by attn_implementation="
        f"{next(iter(attending.values()))!r}: {found} attends by itself, without transformers' "
        "attention interface. Choose an architecture that uses it throughout (Llama, Qwen, GPT-2, "
        f"...){_parts(model)}."
    )


def _parts(model: PreTrainedModel) -> str:
    """Return how to name the parts of a model that has some."""
    parts = ", ".join(f"{part!r}: ..." for part in model.config.sub_configs)
    return f", or name the parts that are to change: attn_implementation={{{parts}}}" * bool(parts)
