"""Libraries whose models can be looked at, beside hyla's own layers.

An adapter is a module that is named here and imported when a model of its library comes: nothing
in `hyla.latents` knows the library, or needs it to be installed.
"""

from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from torch import nn

if TYPE_CHECKING:
    from hyla.latents.hypernetworks import ValueNetworks
    from hyla.latents.observe import Observer, Site


class ModelUnavailableError(ValueError):
    """There is no such model, here or within reach; the message says what to do."""


@runtime_checkable
class Adapter(Protocol):
    """What the module of an adapter has to define."""

    def observing(self, model: nn.Module, observer: "Observer") -> AbstractContextManager[None]:
        """Show every attention layer's calls to the observer while the context lasts."""
        ...

    def value_networks(self, model: nn.Module, inputs: Any) -> "dict[Site, ValueNetworks]":
        """Return the hypernetwork of every attention layer; see `hyla.latents.value_networks`."""
        ...


# The last is asked first: a bridge has a model of transformers inside, and attends by itself.
_ADAPTERS = {
    "MultiheadAttention": "hyla.latents.torch_layers",
    "PreTrainedModel": "hyla.integrations.transformers.codes",
    "TransformerBridge": "hyla.integrations.transformer_lens",
}


def register_adapter(base: str, module: str) -> None:
    """Let the module read models that derive from a class named `base`, or have one inside.

    It comes before those that were registered earlier, hyla's own among them.
    """
    _ADAPTERS.pop(base, None)
    _ADAPTERS[base] = module


def adapter_of(model: nn.Module) -> Adapter | None:
    """Return what reads this model; None if nothing is registered for it."""
    bases = {base.__qualname__ for part in model.modules() for base in type(part).__mro__}
    for base, module in reversed(_ADAPTERS.items()):
        if base in bases:
            return cast(Adapter, import_module(module))
    return None
