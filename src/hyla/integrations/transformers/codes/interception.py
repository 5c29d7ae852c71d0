"""Hugging Face models: being called in the place of their attention function.

transformers lets a model's layers call an attention function by name (`AttentionInterface`). The
one registered here computes what the model's own eager function computes, or the member of the
attention family that the model was told to use (`ours`), and shows it. A mask
function has to be registered under the same name (`AttentionMaskInterface`): without it, models
make no mask at all, and causality silently disappears.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel, masking_utils
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hyla._hooks import hooks_removed
from hyla.integrations.transformers.codes.ours import attend_by, attend_with_code
from hyla.integrations.transformers.presets import registered_specs
from hyla.latents.observe import (
    CallOrder,
    Observer,
    Site,
    UnsupportedModelError,
    codes_at,
    named_arguments,
)

_NAME = "hyla_latents"
# What the layers of different architectures call the sequence that cross-attention reads.
_SOURCES = ("key_value_states", "encoder_hidden_states")


class AttentionCall(NamedTuple):
    """One call of one attention layer."""

    site: Site
    module: nn.Module
    x: Float[Tensor, "B Tq E"]
    """What the queries are computed from."""
    source: Float[Tensor, "B Tk E"]
    """What the keys and values are computed from."""
    code: Float[Tensor, "B H Tq Tk"]
    value: Float[Tensor, "B Hkv Tk D"]


Handler: TypeAlias = Callable[[AttentionCall], Tensor | None]
"""Looks at a call; may return a code to be used instead of the call's."""


# The attention function knows the layer that calls it, and finds the interception by it.
_INTERCEPTED: dict[nn.Module, "_Interception"] = {}


@contextmanager
def observing(model: nn.Module, observer: Observer) -> Iterator[None]:
    """Show the calls of a transformers model's attention layers to an observer."""

    def handle(call: AttentionCall) -> Tensor | None:
        edit = observer.edit(call.site)
        code = call.code if edit is None else edit(call.code)
        # Not the lengths of what was read: with a cache there are more keys than that.
        pairs = observer.pairs(call.site, *call.code.shape[2:])
        if pairs is not None:
            observer.receive(call.site, codes_at(code, pairs), call.x)
        return None if edit is None else code

    with intercepted(model, handle):
        yield


@contextmanager
def intercepted(model: nn.Module, handler: Handler) -> Iterator[None]:
    """Show the attention calls of a transformers model, or of one inside `model`, to `handler`.

    On leaving, raises an `UnsupportedModelError` if the model ran without calling the attention
    function: some architectures compute attention on their own.
    """
    pretrained = _pretrained_part(model)
    if pretrained in _INTERCEPTED:  # within another context: codes go from handler to handler
        handlers = _INTERCEPTED[pretrained].handlers
        handlers.append(handler)
        try:
            yield
        finally:
            handlers.remove(handler)
        return
    # The function of the mask belongs to it: see above.
    AttentionInterface.register(_NAME, _attend)
    eager_mask = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["eager"]
    masking_utils.AttentionMaskInterface.register(_NAME, eager_mask)
    interception = _Interception(pretrained, handler)
    layers = list(pretrained.modules())
    hooks = [pretrained.register_forward_pre_hook(interception.begin)]
    hooks += [m.register_forward_pre_hook(interception.enter, with_kwargs=True) for m in layers]
    hooks += [m.register_forward_hook(interception.leave, always_call=True) for m in layers]
    with hooks_removed(hooks), _attention_implementation(pretrained, _NAME) as names:
        interception.names = names
        _INTERCEPTED.update(dict.fromkeys(layers, interception))
        try:
            yield
        finally:
            for layer in layers:
                del _INTERCEPTED[layer]
    if interception.forward_passes and not interception.calls:
        raise UnsupportedModelError(
            f"{type(pretrained).__name__} computes attention without transformers' "
            "AttentionInterface, so its codes cannot be had. Architectures that use the interface, "
            "such as Llama, GPT-2, Qwen, Gemma, BERT, T5 and BART, can be looked at."
        )


class _Interception:
    """A model whose attention calls are shown to handlers."""

    def __init__(self, model: Any, handler: Handler):
        self.handlers = [handler]
        self.forward_passes = 0
        self.calls = 0
        self.names: dict[int, str | None] = {}
        """By the id of a config, what its model's layers would call if nobody looked."""
        self._order = CallOrder()
        self._running: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._has_decoder = bool(model.config.is_encoder_decoder)
        self._encoder = set(model.get_encoder().modules()) if self._has_decoder else set()

    def begin(self, *_: Any) -> None:
        """Before the model runs."""
        self.forward_passes += 1
        self._order.restart()

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before any module runs: keep what it is given, for it may turn out to attend."""
        self._running[module] = args, kwargs

    def leave(self, module: nn.Module, *_: Any) -> None:
        """After any module has run."""
        self._running.pop(module, None)

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        """Compute as the model's eager attention does, with the code that the handlers leave."""
        self.calls += 1
        tensors = (module, query, key, value, mask)
        name = self.names.get(id(getattr(module, "config", None)))
        if name not in registered_specs:
            out, code = _eager_function(module)(*tensors, **options)
        else:
            out, code = attend_by(name, *tensors, **options)
        given = named_arguments(module, *self._running[module])
        x = given["hidden_states"]
        source = next((given[name] for name in _SOURCES if given.get(name) is not None), None)
        call = AttentionCall(
            site=self._order.site(self._kind(module, is_cross=source is not None)),
            module=module,
            x=x,
            source=x if source is None else source,
            code=code,
            value=value,
        )
        for handler in self.handlers:
            edited = handler(call)
            if edited is not None:
                call = call._replace(code=edited)
        if call.code is code:
            return out, code
        if name not in registered_specs:
            return _attended(call.code, value), call.code
        return attend_with_code(name, call.code, *tensors, **options), call.code

    def _kind(self, module: nn.Module, *, is_cross: bool) -> str:
        if is_cross:
            return "cross"
        if not self._has_decoder:
            return "self"
        return "encoder" if module in self._encoder else "decoder"


def _attended(
    code: Float[Tensor, "B H Tq Tk"], value: Float[Tensor, "B Hkv Tk D"]
) -> Float[Tensor, "B Tq H D"]:
    value = value.repeat_interleave(code.shape[1] // value.shape[1], dim=1)
    return torch.einsum("bhqk,bhkd->bqhd", code.to(value.dtype), value).contiguous()


def _attend(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    return _INTERCEPTED[module].attend(module, *args, **kwargs)


@contextmanager
def _attention_implementation(model: nn.Module, name: str) -> Iterator[dict[int, str | None]]:
    """Let the model's layers, and those of models inside it, call the function of this name.

    Yields what they called before, by the id of their config.
    """
    configs: list[Any] = [m.config for m in model.modules() if hasattr(m, "config")]
    configs = list({id(config): config for config in configs}.values())
    # A config's setter reaches the configs inside it: the outer ones come first here, too.
    before = [config._attn_implementation for config in configs]
    for implementation in set(before):
        _refuse_foreign(implementation, model)
    try:
        for config in configs:
            config._attn_implementation = name
        yield {id(config): old for config, old in zip(configs, before, strict=True)}
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation = implementation


def _refuse_foreign(implementation: str | None, model: nn.Module) -> None:
    """Refuse attention of neither transformers nor hyla: nobody here could compute its code."""
    if implementation in ALL_ATTENTION_FUNCTIONS and implementation not in registered_specs:
        function = ALL_ATTENTION_FUNCTIONS[implementation]
        function = getattr(function, "func", function)  # of a functools.partial
        if not function.__module__.startswith("transformers."):
            raise UnsupportedModelError(
                f"{type(model).__name__} attends by {implementation!r}, whose codes it does not "
                "show. If that is softmax attention, choose set_attn_implementation('eager'); the "
                "names of hyla.integrations.transformers.register() show their codes."
            )


def _eager_function(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the attention function that stands beside the layer's class in transformers."""
    for base in type(module).__mro__:
        function = getattr(sys.modules.get(base.__module__), "eager_attention_forward", None)
        if function is not None:
            return function
    raise UnsupportedModelError(
        f"{type(module).__name__} has no eager attention function, so its code is never computed"
    )


def _pretrained_part(model: nn.Module) -> Any:
    """Return the transformers model itself; wrappers, such as those of adapters, have it inside."""
    return next(module for module in model.modules() if isinstance(module, PreTrainedModel))
