"""Transformer blocks that compute around attention by the kernels of this folder."""

from typing import Any

import torch
from torch import Tensor, nn

from hyla.attention.kernels.gradients import under_torch_func_grad
from hyla.attention.precision import in_autocast_dtype
from hyla.nn import Transformer, TransformerConfig
from hyla.nn.feed_forward import GeluMlp
from hyla.nn.transformer import Block, last_queries
from hyla.training.population.blocks.kernel import why_not_here
from hyla.training.population.blocks.ops import finish, lay_out, project
from hyla.training.population.blocks.sizes import EMBED, HIDDEN, PRECISIONS, WIDTHS


class FusedBlock(Block):
    """`Block`, the same numbers but for rounding; made for `vmap` over members."""

    def forward(
        self, x: Tensor, *, last: int | None, **options: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return what `Block` does; what is not trained with takes its path."""
        if options["cache"] is not None or options["details"] or not _differentiated():
            return super().forward(x, last=last, **options)
        layer, mlp = self.attention, self.feed_forward
        assert isinstance(mlp, GeluMlp)
        x = in_autocast_dtype(x)
        before = _parameters(self.attention_norm, layer.q_proj, layer.k_proj, layer.v_proj)
        after = _parameters(layer.out_proj, self.feed_forward_norm, mlp.up, mlp.down)
        weights = lay_out([p.detach() for p in (*before, *after)], x.dtype)
        projected = project(_tokens(x), weights[0], before)
        stand_in, q, k, v = (y.view(*x.shape[:2], -1) for y in projected)
        mask, noise = options["mask"], options["dropout_noise"]
        if last is not None:  # the others' queries are computed for nothing: a sixth of the kernel
            x, stand_in, q = (y[:, -last:] for y in (x, stand_in, q))
            mask, noise = (last_queries(pairs, last) for pairs in (mask, noise))
        bias = None
        if self.relative_bias is not None:
            bias = self.relative_bias.by_distance(q.shape[1], k.shape[1])
        attended = layer.attend(
            q, k, v, bias=bias, bias_masks=False, mask=mask, causal=self.causal, dropout_noise=noise
        )
        tokens = (_tokens(y) for y in (x, stand_in, attended))
        y, _ = finish(*tokens, weights[1], after)
        return y.view_as(x), None, None


def with_fused_blocks(model: Transformer, device: torch.device, precision: str) -> None:
    """Let the blocks of `model` compute as `FusedBlock`; parameters and names stay.

    Raises ValueError where they cannot.
    """
    reason = why_not_fused(model.config, device, precision)
    if reason is not None:
        raise ValueError(f"blocks cannot be fused: {reason}")
    for block in model.blocks:
        block.__class__ = FusedBlock


def why_not_fused(config: TransformerConfig, device: torch.device, precision: str) -> str | None:
    """Say what keeps the blocks of a model from being fused, if anything does."""
    return why_not_run(device, precision) or why_not_shaped(config)


def why_not_run(device: torch.device, precision: str) -> str | None:
    """Say what is in the way of any fused block, whatever the model is."""
    if precision not in PRECISIONS:
        return f"the precision is {precision!r}, and the kernels know {' and '.join(PRECISIONS)}"
    return why_not_here(device)


def why_not_shaped(config: TransformerConfig) -> str | None:
    """Say what of a model the kernels are not made for, wherever it is trained."""
    if config.feed_forward != "gelu":
        return f"the feed-forward network is {config.feed_forward!r}, and the kernels know 'gelu'"
    if config.key_heads != config.num_heads:
        return "heads share keys and values, and the kernels project some for every head"
    known = {"embed_dim": (EMBED,), "qk_dim": WIDTHS, "v_dim": WIDTHS, "mlp_dim": HIDDEN}
    for name, sizes in known.items():
        size = config.width_factor * getattr(config, name)
        if size not in sizes:
            return f"{name} is {size}, and the kernels take {' or '.join(map(str, sizes))}"
    return None


def _differentiated() -> bool:
    """Say whether a backward pass through operators follows; evaluation takes the plain path."""
    return torch.is_grad_enabled() and not under_torch_func_grad()


def _tokens(x: Tensor) -> Tensor:
    """Return the tokens of one member [1, N, E], as the operators want them."""
    return x.reshape(1, -1, x.shape[-1])


def _parameters(*modules: nn.Module) -> list[Tensor]:
    """Return weights and biases of one member [1, ...]."""
    return [p.unsqueeze(0) for module in modules for p in (module.weight, module.bias)]  # type: ignore[union-attr]
