"""PyTorch's own `nn.MultiheadAttention`: the adapter that reads its codes, and changes them.

The layer gives its weights if it is asked for them; the code of softmax attention is just that.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hyla._hooks import hooks_removed
from hyla.latents.capture import Inputs, run
from hyla.latents.hypernetworks import ValueNetworks
from hyla.latents.observe import (
    CallOrder,
    Observer,
    Site,
    UnsupportedModelError,
    codes_at,
    named_arguments,
)


@contextmanager
def observing(model: nn.Module, observer: Observer) -> Iterator[None]:
    """Show every call of a layer to the observer while the context lasts."""
    order = CallOrder()
    asked: list[tuple[bool, bool]] = []

    def before(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = _arguments(layer, args, kwargs)
        asked.append((given.get("need_weights", True), given.get("average_attn_weights", True)))
        return (), given | {"need_weights": True, "average_attn_weights": False}

    def after(layer: Any, args: Any, given: dict[str, Any], out: Any) -> Any:
        result, code = out
        batch_last = not layer.batch_first and given["query"].ndim == 3
        x = given["query"].transpose(0, 1) if batch_last else given["query"]
        code = code[None] if code.ndim == 3 else code  # without a batch
        x = x[None] if x.ndim == 2 else x
        site = order.site("self" if given["key"] is given["query"] else "cross")
        if (edit := observer.edit(site)) is not None:
            code = edit(code)
            value = given["value"].transpose(0, 1) if batch_last else given["value"]
            changed = _attended(layer, code, value[None] if value.ndim == 2 else value)
            changed = changed.transpose(0, 1) if batch_last else changed
            result = changed.reshape(result.shape)
        pairs = observer.pairs(site, *code.shape[2:])
        if pairs is not None:
            observer.receive(site, codes_at(code, pairs), x)
        wanted, averaged = asked.pop()
        shown = code.mean(dim=1) if averaged else code
        shown = shown if out[1].ndim == 4 else shown[0]
        return result, shown if wanted else None

    layers = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    for layer in layers:
        if layer.bias_k is not None or layer.add_zero_attn:
            raise UnsupportedModelError(
                "an nn.MultiheadAttention with add_bias_kv or add_zero_attn attends to keys that "
                "are no positions: its codes cannot be told apart by pairs"
            )
    hooks = [model.register_forward_pre_hook(order.restart, prepend=True)]
    hooks += [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in layers]
    # Prepended: of two that observe, the inner one asked last and takes its codes first.
    last_first = {"with_kwargs": True, "prepend": True}
    hooks += [layer.register_forward_hook(after, **last_first) for layer in layers]
    with hooks_removed(hooks), _without_shortcuts():
        yield


def value_networks(model: nn.Module, inputs: Inputs) -> dict[Site, ValueNetworks]:
    """Return the hypernetwork of every layer, by its projections."""
    found: dict[Site, ValueNetworks] = {}
    order = CallOrder()

    def read(layer: Any, args: Any, kwargs: Any, out: Any) -> None:
        given = named_arguments(layer, args, kwargs)
        found[order.site("self" if given["key"] is given["query"] else "cross")] = _networks(layer)

    layers = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    hooks = [
        layer.register_forward_pre_hook(
            lambda *call: ((), _arguments(*call)), with_kwargs=True, prepend=True
        )
        for layer in layers
    ]
    hooks += [layer.register_forward_hook(read, with_kwargs=True) for layer in layers]
    with hooks_removed(hooks), _without_shortcuts():
        run(model, inputs)
    return found


def _arguments(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return what a layer was called with, by name; called alone, a query attends to itself."""
    given = inspect.signature(layer.forward).bind_partial(*args, **kwargs).arguments
    return {"key": given["query"], "value": given["query"]} | given


def _networks(layer: nn.MultiheadAttention) -> ValueNetworks:
    heads = (layer.num_heads, -1)
    joint, bias = layer.in_proj_weight, layer.in_proj_bias
    w_value = layer.v_proj_weight if joint is None else joint[-layer.embed_dim :]
    b_value = None if bias is None else bias[-layer.embed_dim :].detach().unflatten(0, heads)
    return ValueNetworks(
        w_value=w_value.detach().unflatten(0, heads),
        b_value=b_value,
        w_out=layer.out_proj.weight.detach().unflatten(1, heads).transpose(0, 1),
        b_out=None if layer.out_proj.bias is None else layer.out_proj.bias.detach(),
    )


def _attended(
    layer: nn.MultiheadAttention, code: Float[Tensor, "B H Tq Tk"], value: Float[Tensor, "B Tk E"]
) -> Float[Tensor, "B Tq E"]:
    """Return what the layer makes of another code."""
    networks = _networks(layer)
    values = torch.einsum("bke,hde->bhkd", value, networks.w_value)
    if networks.b_value is not None:
        values = values + networks.b_value[:, None]
    return layer.out_proj(torch.einsum("bhqk,bhkd->bqhd", code, values).flatten(2))


@contextmanager
def _without_shortcuts() -> Iterator[None]:
    """Keep PyTorch's encoder layers from computing around their attention layer."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
