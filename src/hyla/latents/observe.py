"""Being there when a model attends: every analysis of codes stands on `observing`.

A model's attention layers are those of hyla, wherever in a PyTorch module they sit, or those of a
library that there is an adapter for (`adapters`). An observer says at each call which codes it
wants to see, and may hand in a function that changes the code before it is used.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hyla._hooks import hooks_removed
from hyla.attention.pairs import as_pairs
from hyla.latents.adapters import adapter_of
from hyla.nn import MultiHeadAttention

CodeEdit: TypeAlias = Callable[[Float[Tensor, "B H Tq Tk"]], Float[Tensor, "B H Tq Tk"]]


class UnsupportedModelError(ValueError):
    """The codes of this model cannot be had; the message says why."""


class Site(NamedTuple):
    """An attention layer of a model."""

    kind: str
    """self, or in an encoder-decoder: encoder, decoder, cross."""
    layer: int
    """Counted from 0 among the layers of its kind, in the order in which they are called."""


class Observer:
    """Sees nothing and changes nothing; subclasses do."""

    def pairs(self, site: Site, num_queries: int, num_keys: int) -> Int[Tensor, "P 2"] | None:
        """Which (query, key) pairs' codes to hand to `receive`; None for none."""
        return None

    def receive(
        self, site: Site, codes: Float[Tensor, "B P H"], x: Float[Tensor, "B Tq E"]
    ) -> None:
        """Take the codes of the pairs, and what the layer read at all queries."""

    def edit(self, site: Site) -> CodeEdit | None:
        """Return a function that changes the code of the layer; None leaves it alone."""
        return None


class CallOrder:
    """Numbers the attention layers of each kind in the order of their calls."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()

    def restart(self, *_: Any) -> None:
        """Begin a forward pass of the whole model."""
        self._calls.clear()

    def site(self, kind: str) -> Site:
        """Return the site of the layer that is called now."""
        self._calls[kind] += 1
        return Site(kind, self._calls[kind] - 1)


@contextmanager
def observing(model: nn.Module, observer: Observer) -> Iterator[None]:
    """Show every attention layer's calls to the observer while the context lasts."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if has_own_layers(model):
        observing_family = _observing_layers
    elif (adapter := adapter_of(model)) is not None:
        observing_family = adapter.observing
    else:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no attention layer whose code can be read: no "
            "hyla.nn.MultiHeadAttention, no nn.MultiheadAttention, and none of a transformers model"
        )
    # Compiled code would run without looking at hooks that were added after its compilation.
    with torch.compiler.set_stance("force_eager"), observing_family(model, observer):
        yield


def has_own_layers(model: nn.Module) -> bool:
    """Whether the model attends by layers of hyla, which show their codes themselves."""
    return any(isinstance(module, MultiHeadAttention) for module in model.modules())


def named_arguments(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a module's call by the names that its `forward` gives them.

    That of its class: other libraries put functions of their own into its place.
    """
    given = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
    return dict(list(given.items())[1:])


@contextmanager
def _observing_layers(model: nn.Module, observer: Observer) -> Iterator[None]:
    """Ask hyla's layers for codes through the arguments that they have for it."""
    order = CallOrder()
    calls: list[tuple[Site, Tensor | None, Any]] = []

    def before(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = named_arguments(layer, args, kwargs)
        x, context, cache = given["x"], given.get("context"), given.get("cache")
        site = order.site("cross" if _is_cross(x, context) else "self")
        keys = (x if context is None else context).shape[1] + (cache.length if cache else 0)
        pairs = observer.pairs(site, x.shape[1], keys)
        asked_by_caller = given.get("return_code", False)
        calls.append((site, pairs, asked_by_caller))
        if pairs is not None:
            # A caller who wants codes too gets them picked from all, as the observer does.
            kwargs |= {"return_code": pairs if asked_by_caller is False else True}
        if (edit := observer.edit(site)) is not None:
            kwargs |= {"edit_code": in_turn(given.get("edit_code"), edit)}
        return args, kwargs

    def after(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        site, pairs, asked_by_caller = calls.pop()
        if pairs is None:
            return out
        result, codes = out
        own = codes if asked_by_caller is False else codes_at(codes, pairs)
        observer.receive(site, own, named_arguments(layer, args, kwargs)["x"])
        if isinstance(asked_by_caller, bool):
            return out if asked_by_caller else result
        return result, codes_at(codes, as_pairs(asked_by_caller))

    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    hooks = [model.register_forward_pre_hook(order.restart)]
    hooks += [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in layers]
    # Prepended: of two that observe, the inner one asked last and takes its codes first.
    last_first = {"with_kwargs": True, "prepend": True}
    hooks += [layer.register_forward_hook(after, **last_first) for layer in layers]
    with hooks_removed(hooks):
        yield


def in_turn(first: CodeEdit | None, then: CodeEdit) -> CodeEdit:
    """Edit what an outer context, or the caller, has edited already."""
    return then if first is None else lambda code: then(first(code))


def codes_at(code: Float[Tensor, "B H Tq Tk"], pairs: Int[Tensor, "P 2"]) -> Float[Tensor, "B P H"]:
    """Pick the codes of pairs from the code of all."""
    return code[:, :, pairs[:, 0], pairs[:, 1]].transpose(1, 2)


def _is_cross(x: Tensor, context: Tensor | None) -> bool:
    """Whether keys come from elsewhere; queries that are a slice of their context attend to it."""
    if context is None:
        return False
    return x.untyped_storage().data_ptr() != context.untyped_storage().data_ptr()
