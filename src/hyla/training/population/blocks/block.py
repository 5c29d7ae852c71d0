"""Transformer blocks that compute around attention by the kernels of this folder."""

import functools
import importlib.util
from typing import Any

import torch
from torch import Tensor, nn

from hyla.attention.kernels.gradients import under_torch_func_grad
from hyla.attention.precision import in_autocast_dtype
from hyla.nn import Transformer
from hyla.nn.feed_forward import GeluMlp
from hyla.nn.transformer import Block, last_queries

WIDEST = 128
"""Channels of a token whose products and sums a program keeps in registers."""


class FusedBlock(Block):
    """`Block`, the same numbers but for rounding; made for `vmap` over members."""

    def forward(
        self, x: Tensor, *, last: int | None, **options: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return what `Block` does; what is not trained with takes its path."""
        if options["cache"] is not None or options["details"] or not _differentiated():
            return super().forward(x, last=last, **options)
        # Imported here, as most machines have no Triton and take no fused block.
        from hyla.training.population.blocks.ops import finish, project

        layer, mlp = self.attention, self.feed_forward
        assert isinstance(mlp, GeluMlp)
        x = in_autocast_dtype(x)
        batch, keys = x.shape[:2]
        parts = (self.attention_norm, layer.q_proj, layer.k_proj, layer.v_proj)
        q, k, v = (y.view(batch, keys, -1) for y in project(_tokens(x), _parameters(*parts)))
        mask, noise = options["mask"], options["dropout_noise"]
        if last is not None:  # the others' queries are computed for nothing: a sixth of the kernel
            x, q = x[:, -last:], q[:, -last:]
            mask, noise = (last_queries(pairs, last) for pairs in (mask, noise))
        bias = None if self.relative_bias is None else self.relative_bias(x.shape[1], keys)
        attended = layer.attend(
            q, k, v, bias=bias, bias_masks=False, mask=mask, causal=self.causal, dropout_noise=noise
        )
        parts = (layer.out_proj, self.feed_forward_norm, mlp.up, mlp.down)
        _, y = finish(_tokens(x), _tokens(attended), _parameters(*parts))
        return y.view_as(x), None, None


def with_fused_blocks(model: Transformer) -> None:
    """Let the blocks of `model` compute as `FusedBlock`; parameters and names stay.

    Raises ValueError where they cannot.
    """
    reason = why_not_fused(model)
    if reason is not None:
        raise ValueError(f"blocks cannot be fused: {reason}")
    for block in model.blocks:
        block.__class__ = FusedBlock


def why_not_fused(model: Transformer) -> str | None:
    """Say what keeps the blocks of `model` from being fused, if anything does."""
    if not _has_triton():
        return "Triton is not installed"
    config = model.config
    if config.feed_forward != "gelu":
        return f"the feed-forward network is {config.feed_forward!r}, and the kernels know 'gelu'"
    sizes = {
        name: config.width_factor * getattr(config, name)
        for name in ("embed_dim", "qk_dim", "v_dim", "mlp_dim")
    }
    for name, size in sizes.items():
        if size < 16 or size & (size - 1):
            return f"{name} is {size}, and the kernels take powers of two from 16 on"
    if sizes["embed_dim"] > WIDEST or max(sizes["qk_dim"], sizes["v_dim"]) > WIDEST // 2:
        return (
            f"embed_dim is {sizes['embed_dim']}, qk_dim {sizes['qk_dim']} and v_dim "
            f"{sizes['v_dim']}; the kernels keep {WIDEST}, {WIDEST // 2} and {WIDEST // 2} in "
            "registers"
        )
    return None


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _differentiated() -> bool:
    """Say whether a backward pass through operators follows; evaluation takes the plain path."""
    return torch.is_grad_enabled() and not under_torch_func_grad()


def _tokens(x: Tensor) -> Tensor:
    """Return the tokens of one member [1, N, E], as the operators want them."""
    return x.reshape(1, -1, x.shape[-1])


def _parameters(*modules: nn.Module) -> list[Tensor]:
    """Return weights and biases of one member [1, ...]."""
    return [p.unsqueeze(0) for module in modules for p in (module.weight, module.bias)]  # type: ignore[union-attr]
