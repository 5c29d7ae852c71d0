"""Linear layers of a population whose weight gradients fill a GPU.

The gradient of a small weight is a product of few rows and columns with a long sum, over all tokens
of a batch. A GPU computes a product in tiles, and a tile takes its whole sum by itself: with a few
tiles a member most of the chip has nothing to do. Here the sum is cut into parts, which are one
batched product, and the parts are added up.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hyla._compiler_tag import tag_compiled_code
from hyla.attention.kernels.gradients import under_torch_func_grad
from hyla.attention.precision import in_autocast_dtype

tag_compiled_code()
TILE = 64
"""Rows and columns that a multiprocessor is taken to compute at a time."""
TILES_WANTED = 512
"""So many tiles keep every multiprocessor busy: some for each of an H200's 132."""
SHORTEST_SUM = 512
"""Tokens; below that, starting and adding up a part costs more than it saves."""


class StackedLinear(nn.Linear):
    """`nn.Linear`, the same numbers but for rounding; made for `vmap` over members."""

    def forward(self, input: Tensor) -> Tensor:
        """Return what `nn.Linear` does."""
        tokens = math.prod(input.shape[:-1])
        # Members only divide the tiles that are missing: what is whole for one is so for several.
        whole = parts_of_sum(1, tokens, self.out_features, self.in_features) == 1
        if whole or not torch.is_grad_enabled() or under_torch_func_grad():
            return super().forward(input)
        x, weight = in_autocast_dtype(input), in_autocast_dtype(self.weight)
        y = _product(x.reshape(1, tokens, self.in_features), weight.unsqueeze(0))
        y = y.reshape(*input.shape[:-1], self.out_features)
        return y if self.bias is None else y + in_autocast_dtype(self.bias)


def with_stacked_linear_layers(model: nn.Module) -> None:
    """Let the linear layers of `model` compute as `StackedLinear`; parameters and names stay."""
    for layer in model.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = StackedLinear


def parts_of_sum(members: int, tokens: int, rows: int, columns: int) -> int:
    """Return into how many parts to cut the sum over tokens of each member's weight gradient.

    A power of two that divides it: as many as give the wanted tiles, and none too short.
    """
    tiles = members * -(-rows // TILE) * -(-columns // TILE)
    parts = 1
    while (
        2 * parts * tiles <= TILES_WANTED
        and tokens % (2 * parts) == 0
        and tokens // (2 * parts) >= SHORTEST_SUM
    ):
        parts *= 2
    return parts


def weight_gradient(
    x: Float[Tensor, "P N I"], upstream: Float[Tensor, "P N O"], parts: int
) -> Float[Tensor, "P O I"]:
    """Return Σ over tokens of upstreamᵀ x for each member, the sum in `parts`."""
    members, tokens = x.shape[:2]
    if parts == 1:
        return torch.bmm(upstream.mT, x)
    cut = (members * parts, tokens // parts, -1)
    return torch.bmm(upstream.reshape(cut).mT, x.reshape(cut)).unflatten(0, (-1, parts)).sum(1)


# An operator, as `vmap` then hands its gradient the members, and `torch.compile` traces that.
@torch.library.custom_op("hyla::stacked_product", mutates_args=())
def _product(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply tokens [P, N, I] by each member's weight [P, O, I]."""
    return torch.bmm(x, weight.mT)


@_product.register_fake
def _(x, weight):
    return x.new_empty(*x.shape[:2], weight.shape[1])


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _differentiate(ctx, upstream):
    x, weight = ctx.saved_tensors
    dx = torch.bmm(upstream, weight) if ctx.needs_input_grad[0] else None
    return dx, weight_gradient(x, upstream, parts_of_sum(*x.shape[:2], *weight.shape[1:]))


_product.register_autograd(_differentiate, setup_context=_save)


@_product.register_vmap
def _(info, in_dims, x, weight):
    folded = (
        (y.expand(info.batch_size, *y.shape) if mapped is None else y.movedim(mapped, 0))
        for y, mapped in zip((x, weight), in_dims, strict=True)
    )
    y = _product(*(y.flatten(0, 1) for y in folded))
    return y.unflatten(0, (info.batch_size, -1)), 0
