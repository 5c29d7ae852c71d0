"""The attention layer: projections around `hyla.attention.attention`."""

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from hyla._errors import check_positive
from hyla.attention import AttentionSpec, DistanceBias, attention, resolve_spec
from hyla.attention.api import attend_with_code
from hyla.attention.pairs import as_pairs
from hyla.attention.spec import name_of
from hyla.attention.validation import check_backend
from hyla.nn.cache import KeyValueCache
from hyla.nn.initialise import initialise_linear_, lecun_normal_
from hyla.nn.positions import RotaryTable, check_rotary, rotary


class MultiHeadAttention(nn.Module):
    """Multi-head attention of any member of the family, a drop-in for the usual layer.

    `qk_dim` and `v_dim` are totals over the heads and default to `embed_dim`. With `num_key_heads`,
    a divisor of `num_heads`, each head of the keys and values serves several of the queries
    (grouped-query attention), and projections and caches are smaller for it. The parameters and
    their names do not depend on the backend that computes.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_key_heads: int | None = None,
        qk_dim: int | None = None,
        v_dim: int | None = None,
        attention: str | AttentionSpec = "hyla",
        rotary: bool = False,
        dropout: float = 0.0,
        backend: str = "auto",
    ):
        super().__init__()
        # A width that was not given is the embedding's, and errors name it as such.
        widths = {
            "embed_dim" if width is None else name: embed_dim if width is None else width
            for name, width in (("qk_dim", qk_dim), ("v_dim", v_dim))
        }
        check_positive(**{"embed_dim": embed_dim, "num_heads": num_heads} | widths)
        check_heads(num_heads, **widths)
        num_key_heads = num_heads if num_key_heads is None else num_key_heads
        check_key_heads(num_heads, num_key_heads)
        qk_dim = embed_dim if qk_dim is None else qk_dim
        v_dim = embed_dim if v_dim is None else v_dim
        check_dropout(dropout=dropout)
        check_backend(backend)
        if rotary:
            check_rotary(qk_dim // num_heads)
        self.num_heads, self.num_key_heads = num_heads, num_key_heads
        self.spec = resolve_spec(attention)
        self.rotary = rotary
        self.dropout = dropout
        self.backend = backend
        # Set by `Transformer.for_long_sequences`: faster there, the same numbers.
        self.joint_projection = False
        self.rotary_table: RotaryTable | None = None
        self.q_proj = nn.Linear(embed_dim, qk_dim)
        self.k_proj = nn.Linear(embed_dim, qk_dim // num_heads * num_key_heads)
        self.v_proj = nn.Linear(embed_dim, v_dim // num_heads * num_key_heads)
        self.out_proj = nn.Linear(v_dim, embed_dim)
        self.value_weight = None
        if self.spec.value == "deep":
            size = v_dim // num_heads
            self.value_weight = nn.Parameter(torch.empty(num_heads, size, size))
        self.reset_parameters()
        self.register_state_dict_post_hook(_keep_name)
        self.register_load_state_dict_pre_hook(_warn_of_another)

    def extra_repr(self) -> str:
        """Return what `print` shows beside the projections."""
        shown = [f"attention={name_of(self.spec)!r}", f"num_heads={self.num_heads}"]
        shown += [f"num_key_heads={self.num_key_heads}"] * (self.num_key_heads != self.num_heads)
        shown += ["rotary=True"] * self.rotary
        shown += [f"dropout={self.dropout:g}"] * bool(self.dropout)
        return ", ".join(shown)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """LeCun normal weights, zero biases."""
        for layer in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            initialise_linear_(layer, generator)
        if self.value_weight is not None:
            lecun_normal_(self.value_weight, self.value_weight.shape[-1], generator)

    def forward(
        self,
        x: Float[Tensor, "B Tq E"],
        context: Float[Tensor, "B Tk E"] | None = None,
        *,
        bias: Tensor | DistanceBias | None = None,
        bias_masks: bool = True,
        mask: Tensor | None = None,
        causal: bool = False,
        cache: KeyValueCache | None = None,
        dropout_noise: Float[Tensor, "Tq Tk"] | None = None,
        return_code: bool | Int[Tensor, "P 2"] | Sequence[tuple[int, int]] = False,
        edit_code: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend from `x` to itself, or to `context`.

        `bias`, `bias_masks`, `mask` (True = attend) and `causal` are those of `attention`. With a
        `cache`, the keys and values are appended to it and attended to together with the earlier
        ones. Where there are fewer queries than keys, the last query is at the position of the last
        key.
        `dropout_noise` are the uniform numbers that attention dropout compares with its rate; the
        layer draws them itself if they are not given.

        With `return_code`, the latent code comes after the output: that of all pairs [B, H, Tq, Tk]
        or, given (query, key) pairs as a list of tuples or a tensor [P, 2], theirs alone [B, P, H].
        `edit_code` takes the code of all pairs and returns the one to be used instead; the layer
        then computes by the equations, whatever its backend.
        """
        source = x if context is None else context
        self._check(x, source)
        q, k, v = self._heads(*self._projected(x, source), cache=cache)
        options: dict[str, Any] = {
            "bias": bias,
            "bias_masks": bias_masks,
            "mask": mask,
            "causal": causal,
            **self._options(q, k, dropout_noise),
        }
        if edit_code is not None:
            return self._edited(q, k, v, edit_code, return_code, options)
        if return_code is False:
            return self.out_proj(self._sums(q, k, v, **options).flatten(-2))
        out, code = attention(q, k, v, **options, return_code=return_code)
        return self.out_proj(out.flatten(-2)), code

    def attend(
        self,
        q: Float[Tensor, "B Tq QK"],
        k: Float[Tensor, "B Tk K"],
        v: Float[Tensor, "B Tk KV"],
        *,
        dropout_noise: Float[Tensor, "Tq Tk"] | None = None,
        **options: Any,
    ) -> Float[Tensor, "B Tq V"]:
        """Return what `out_proj` would take, of queries, keys and values projected elsewhere.

        `options` are the bias, mask and causality of `forward`.
        """
        q, k, v = self._heads(q, k, v, cache=None)
        return self._sums(q, k, v, **options, **self._options(q, k, dropout_noise)).flatten(-2)

    def _sums(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Return the sums over keys of each query and head, with the options of `attention`."""
        return attention(q, k, v, **options)

    def _heads(
        self, q: Tensor, k: Tensor, v: Tensor, *, cache: KeyValueCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Divide projections among the heads, turn them by their positions, and join the cache."""
        start = cache.length if cache is not None else 0
        heads = (self.num_heads, self.num_key_heads, self.num_key_heads)
        q, k, v = (y.unflatten(-1, (n, -1)) for y, n in zip((q, k, v), heads, strict=True))
        if self.rotary:
            last, table = start + k.shape[1], self.rotary_table
            q = rotary(q, start=last - q.shape[1], table=table)
            k = rotary(k, start=start, table=table)
        if cache is not None:
            k, v = cache.append(k, v)
        return q, k, v

    def _options(self, q: Tensor, k: Tensor, dropout_noise: Tensor | None) -> dict[str, Any]:
        return {
            "attention": self.spec,
            "backend": self.backend,
            "value_weight": self.value_weight,
            "code_multiplier": self._dropout_multiplier(q, k, dropout_noise),
        }

    def _edited(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        edit_code: Callable[[Tensor], Tensor],
        return_code: bool | Tensor | Sequence[tuple[int, int]],
        options: dict[str, Any],
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend with what `edit_code` makes of the code."""
        _, code = attention(q, k, v, **options, return_code=True)
        code = edit_code(code.to(torch.promote_types(code.dtype, torch.float32)))
        seen = {name: options[name] for name in ("mask", "causal", "value_weight")}
        out = self.out_proj(attend_with_code(code, q, k, v, spec=self.spec, **seen).flatten(-2))
        if return_code is False:
            return out
        if not isinstance(return_code, bool):
            queries, keys = as_pairs(return_code).unbind(dim=1)
            code = code[:, :, queries, keys].transpose(1, 2)
        return out, code

    def _projected(self, x: Tensor, source: Tensor) -> tuple[Tensor, ...]:
        layers = (self.q_proj, self.k_proj, self.v_proj)
        # What somebody has put in a layer's place (an adapter) is more than its weight.
        plain = all(type(layer) is nn.Linear for layer in layers)
        if not self.joint_projection or not plain or source is not x:
            return layers[0](x), layers[1](source), layers[2](source)
        weight = torch.cat([layer.weight for layer in layers])
        bias = torch.cat([layer.bias for layer in layers])
        return F.linear(x, weight, bias).split([layer.out_features for layer in layers], dim=-1)

    def _check(self, x: Tensor, context: Tensor) -> None:
        for name, tensor in (("x", x), ("context", context)):
            if tensor.ndim != 3 or tensor.shape[-1] != self.q_proj.in_features:
                raise ValueError(
                    f"{name} must have shape [batch, tokens, {self.q_proj.in_features}], "
                    f"got {tuple(tensor.shape)}"
                )
        if context.shape[0] != x.shape[0]:
            raise ValueError(
                f"context holds {context.shape[0]} sequences and x {x.shape[0]}; they must agree"
            )

    def _dropout_multiplier(self, q: Tensor, k: Tensor, noise: Tensor | None) -> Tensor | None:
        """One decision per query-key pair, shared by the batch and the heads, as the authors do."""
        if not self.training or self.dropout == 0:
            return None
        if noise is None:
            noise = torch.rand(q.shape[1], k.shape[1], device=q.device)
        if tuple(noise.shape) != (q.shape[1], k.shape[1]):
            raise ValueError(
                f"dropout_noise must have shape [queries, keys] = {[q.shape[1], k.shape[1]]}, "
                f"got {tuple(noise.shape)}"
            )
        wide = torch.promote_types(q.dtype, torch.float32)  # 1 / (1 - rate) is no half's number
        return (noise >= self.dropout).to(wide) / (1 - self.dropout)

    def head_weights(self) -> tuple[Float[Tensor, "H Dv E"], Float[Tensor, "H E Dv"]]:
        """Return W_value and W_out by head, for `hyla.attention.hypernetwork`."""
        w_value = self.v_proj.weight.unflatten(0, (self.num_key_heads, -1))
        w_value = w_value.repeat_interleave(self.num_heads // self.num_key_heads, dim=0)
        w_out = self.out_proj.weight.unflatten(1, (self.num_heads, -1)).transpose(0, 1)
        return w_value, w_out


def _keep_name(layer: Any, state: Any, prefix: str, metadata: dict[str, Any]) -> None:
    """Keep the attention's name with the weights, where PyTorch keeps their version."""
    metadata["attention"] = name_of(layer.spec)


def _warn_of_another(
    layer: Any, state: Any, prefix: str, metadata: dict[str, Any], *_: Any
) -> None:
    """Warn where weights of another attention come, which have the same names and shapes."""
    theirs = metadata.get("attention")
    if theirs is None or _means(theirs, layer.spec):
        return
    # PyTorch has as many frames between here and whoever loads as modules lie in each other.
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals["__name__"].startswith("torch.nn.modules"):
        frame, level = frame.f_back, level + 1
    warnings.warn(
        f"{prefix[:-1] or 'this layer'} attends by {name_of(layer.spec)!r}, and its weights were "
        f"trained by {theirs!r}: they fit in shape and mean something else. Build the model with "
        f"attention={theirs!r}, or train it on.",
        stacklevel=level,
    )


def _means(name: str, spec: AttentionSpec) -> bool:
    """Whether a name that was kept stands for what a spec computes."""
    try:
        named = resolve_spec(name)
    except ValueError:  # fields of a spec without a name, or a name that is not registered here
        return name == name_of(spec)
    if spec.value == "linear":  # which ignores φ
        named, spec = (replace(each, phi="identity") for each in (named, spec))
    return named == spec


def check_heads(num_heads: int, **sizes: int) -> None:
    """Raise a ValueError for the first size that the heads cannot share equally."""
    for name, size in sizes.items():
        if size % num_heads:
            raise ValueError(
                f"{name}={size} does not divide into num_heads={num_heads} heads; "
                f"use a multiple such as {num_heads * max(1, round(size / num_heads))}"
            )


def check_key_heads(num_heads: int, num_key_heads: int) -> None:
    """Raise a ValueError where heads of keys and values do not serve as many queries' each."""
    check_positive(num_key_heads=num_key_heads)
    if num_heads % num_key_heads:
        raise ValueError(
            f"num_key_heads={num_key_heads} does not divide num_heads={num_heads}: each must "
            "serve as many heads"
        )


def check_dropout(**rates: float) -> None:
    """Raise a ValueError for the first rate that is not in [0, 1)."""
    for name, rate in rates.items():
        if not 0 <= rate < 1:
            raise ValueError(f"{name} must be in [0, 1), got {rate}")
