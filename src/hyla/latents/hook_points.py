"""Modules that codes, values and outputs pass through, for libraries that hook modules by name.

A fused kernel never forms the code, and a hook sees what a module returns. With `add_hook_points`,
every `hyla.MultiHeadAttention` in a model has three modules more, and computes by the equations:

    hook_code    [B, H, Tq, Tk]   the latent code of every pair
    hook_value   [B, Tk, H, Dv]   W_value x of every key: what value networks are made of
    hook_output  [B, Tq, H, Dv]   the sum over the keys, before W_out

What a hook puts in the place of their results is what the layer goes on with. docs/inspection.md
has the table of all names.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from torch import Tensor, nn

from hyla.latents.observe import UnsupportedModelError, in_turn, named_arguments
from hyla.nn import MultiHeadAttention

CODE, VALUE, OUTPUT = "hook_code", "hook_value", "hook_output"
HOOK_POINTS = (CODE, VALUE, OUTPUT)

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def add_hook_points(
    model: AnyModule, make_point: Callable[[], nn.Module] = nn.Identity
) -> AnyModule:
    """Give each attention layer of hyla in `model` its hook points, in place; return the model.

    `make_point` makes one; a library may have a class of its own, which takes the place of plain
    ones. What is there already stays otherwise.
    """
    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    if not layers:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no hyla.nn.MultiHeadAttention layer to hook; of a model "
            "of transformers, hyla.latents.record_codes reads the codes without"
        )
    for layer in layers:
        new = not hasattr(layer, CODE)
        for name in HOOK_POINTS:
            if new or type(getattr(layer, name)) is nn.Identity:
                layer.add_module(name, make_point())
        if not new:
            continue
        layer.joint_projection = False  # it would pass by the values' own projection
        layer.register_forward_pre_hook(_with_code, with_kwargs=True)
        # Partial functions: a copy of the model then has hooks of its own layers.
        layer.v_proj.register_forward_hook(partial(_after_projection, layer))
        layer.out_proj.register_forward_pre_hook(partial(_before_projection, layer))
    return model


def _with_code(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = named_arguments(layer, args, kwargs)
    return args, kwargs | {"edit_code": in_turn(given.get("edit_code"), getattr(layer, CODE))}


def _after_projection(
    layer: MultiHeadAttention, projection: nn.Module, args: Any, values: Tensor
) -> Tensor:
    return _by_head(getattr(layer, VALUE), values, layer.num_key_heads)


def _before_projection(layer: MultiHeadAttention, projection: nn.Module, args: Any) -> Tensor:
    return _by_head(getattr(layer, OUTPUT), args[0], layer.num_heads)


def _by_head(point: nn.Module, tokens: Tensor, heads: int) -> Tensor:
    return point(tokens.unflatten(-1, (heads, -1))).flatten(-2)
