"""TransformerLens and hyla: its hooks on our models, and the codes of its own for `hyla.latents`.

>>> from hyla.integrations.transformer_lens import HookedModel  # doctest: +SKIP
>>> hooked = HookedModel(model)  # doctest: +SKIP
>>> logits, cache = hooked.run_with_cache(inputs)  # doctest: +SKIP
>>> cache["blocks.0.attention.hook_code"]  # doctest: +SKIP
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from hyla._hooks import hooks_removed
from hyla._optional import needed
from hyla.latents.hook_points import add_hook_points
from hyla.latents.hypernetworks import ValueNetworks
from hyla.latents.observe import (
    Observer,
    Site,
    UnsupportedModelError,
    codes_at,
)

with needed("inspection", "hyla.integrations.transformer_lens needs it"):
    from transformer_lens import HookedRootModule  # pyright: ignore[reportMissingImports]
    from transformer_lens.hook_points import HookPoint  # pyright: ignore[reportMissingImports]


class HookedModel(HookedRootModule):  # pyright: ignore[reportGeneralTypeIssues]
    """A model with layers of hyla, whose hook points TransformerLens knows by their names.

    The names are those of `model`: what it calls `blocks` is `blocks` here. The model is changed
    (`add_hook_points`), not copied, and may be called by itself as ever.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        add_hook_points(model, HookPoint)
        for name, part in model.named_children():
            self.add_module(name, part)
        for name, parameter in model.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        self._call = model.forward  # not the model: it would be a part, and change the names
        self.setup()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        return self._call(*args, **kwargs)


@contextmanager
def observing(model: nn.Module, observer: Observer) -> Iterator[None]:
    """Show what a `TransformerBridge` calls patterns, which are its codes, to an observer."""
    read: dict[Site, Tensor] = {}

    def keep(site: Site) -> Any:
        return lambda point, args, x: read.update({site: x})

    def show(site: Site) -> Any:
        def hook(point: nn.Module, args: Any, code: Tensor) -> Tensor:
            if (edit := observer.edit(site)) is not None:
                code = edit(code)
            pairs = observer.pairs(site, *code.shape[2:])
            if pairs is not None:
                observer.receive(site, codes_at(code, pairs), read[site])
            return code

        return hook

    layers: Any = [block.attn for block in model.blocks]  # pyright: ignore
    hooks = [
        point.register_forward_hook(look(Site("self", number)))
        for number, layer in enumerate(layers)
        for point, look in ((layer.hook_in, keep), (layer.hook_pattern, show))
    ]
    with hooks_removed(hooks):
        yield


def value_networks(model: nn.Module, inputs: Any) -> dict[Site, ValueNetworks]:
    """Refuse: its weights are those of the model inside."""
    raise UnsupportedModelError(
        f"{type(model).__name__} has no value networks of its own: load the same model by "
        "transformers and ask for its"
    )
