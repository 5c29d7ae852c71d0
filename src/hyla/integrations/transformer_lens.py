"""TransformerLens on models of hyla: `run_with_cache` and `run_with_hooks`, codes included.

>>> from hyla.integrations.transformer_lens import HookedModel  # doctest: +SKIP
>>> hooked = HookedModel(model)  # doctest: +SKIP
>>> logits, cache = hooked.run_with_cache(inputs)  # doctest: +SKIP
>>> cache["blocks.0.attention.hook_code"]  # doctest: +SKIP
"""

from typing import Any

from torch import nn

from hyla._errors import install_command
from hyla.latents.hook_points import add_hook_points

try:
    from transformer_lens import HookedRootModule  # pyright: ignore[reportMissingImports]
    from transformer_lens.hook_points import HookPoint  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(
        f"hyla.integrations.transformer_lens needs it: {install_command('inspection')}"
    ) from error


class HookedModel(HookedRootModule):
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
