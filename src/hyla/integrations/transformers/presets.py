"""The presets of Table A1 as attention functions of transformers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from hyla.attention import PRESETS, RECOMMENDED, AttentionSpec, attention, resolve_spec
from hyla.integrations.transformers.arguments import (
    in_our_layout,
    read_pairs,
    refuse_unsupported,
)
from hyla.integrations.transformers.interface import register_attention, register_on_request
from hyla.integrations.transformers.proof import AttentionFunction

registered_specs: dict[str, AttentionSpec] = {}
"""What each name of `register` computes: whoever looks at a model's codes asks for it."""


def register(specs: Mapping[str, AttentionSpec] | None = None) -> None:
    """Make members of the attention family available as `attn_implementation`.

    Without `specs` all presets that need no parameters of their own: "hyla", "linear", "softmax"
    and so on (`hyla.PRESETS`, without "hyla_deep"), and `hyla.RECOMMENDED`. Names that say what
    differs from a preset ("hyla.rms4", "hyla.silu") need not be registered: they are when a model
    is given one. Calling it again does no harm.

    >>> from transformers import AutoModelForCausalLM, LlamaConfig  # doctest: +SKIP
    >>> register()  # doctest: +SKIP
    >>> model = AutoModelForCausalLM.from_config(
    ...     LlamaConfig(), attn_implementation="hyla"
    ... )  # doctest: +SKIP
    """
    if specs is None:
        specs = {name: spec for name, spec in PRESETS.items() if spec.value != "deep"}
        specs[RECOMMENDED] = resolve_spec(RECOMMENDED)
    for name, spec in specs.items():
        register_attention(name, attention_function(name, spec))
        registered_specs[name] = spec
    register_on_request(_register_named)


def _register_named(name: str) -> None:
    """Register what a name says that begins with a preset's; a ValueError if it says nothing."""
    if name not in registered_specs and name.partition(".")[0] in PRESETS:
        register({name: resolve_spec(name)})


def attention_function(name: str, spec: AttentionSpec) -> AttentionFunction:
    """Return `spec` as a function of transformers' attention interface."""
    if spec.value == "deep":
        raise ValueError(
            f"{name!r}: the deep value network has weights of its own, and models of transformers "
            "have no place for them; use hyla.nn.MultiHeadAttention"
        )

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        dropout: float = 0.0,
        scaling: float | None = None,
        softcap: float | None = None,
        is_causal: bool | None = None,
        position_bias: Tensor | None = None,
        sliding_window: int | None = None,
        output_attentions: bool | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None]:
        refuse_unsupported(name, more)
        pairs = read_pairs(
            module,
            query,
            key,
            attention_mask,
            is_causal=is_causal,
            position_bias=position_bias,
            sliding_window=sliding_window,
        )
        q, k, v = in_our_layout(query, key, value, pairs)
        result = attention(
            q,
            k,
            v,
            attention=spec if softcap is None else capped(spec, softcap),
            bias=pairs.bias,
            mask=pairs.mask,
            causal=pairs.causal,
            scale=scaling,
            code_multiplier=_dropout(q, k, dropout),
            return_code=bool(output_attentions),
        )
        out, code = result if isinstance(result, tuple) else (result, None)
        return out.contiguous(), code

    if spec != PRESETS["softmax"]:
        return attend

    def attend_by_softmax(
        module: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        refuse_unsupported(name, kwargs)
        if kwargs.get("softcap") is not None or kwargs.get("output_attentions"):
            return attend(module, *args, **kwargs)
        return sdpa_attention_forward(module, *args, **kwargs)  # PyTorch's fused attention

    return attend_by_softmax


@dataclass(frozen=True)
class Softcap:
    """A normalisation that bends scores into (-cap, cap), as Gemma 2 does before its softmax."""

    cap: float
    identity_at_start = True  # caps are tens, and scores about 1

    def __call__(self, scores: Tensor, mask: Tensor | None, eps: float) -> Tensor:
        """Return cap · tanh(scores / cap)."""
        return self.cap * torch.tanh(scores / self.cap)


def capped(spec: AttentionSpec, softcap: float) -> AttentionSpec:
    """Return `spec` with its scores capped before anything else."""
    return replace(spec, normalisation=(Softcap(softcap), *spec.normalisation_steps))


def _dropout(query: Tensor, key: Tensor, rate: float) -> Tensor | None:
    """One decision for each pair and head, as the models' own attention does."""
    if rate == 0:
        return None
    (B, Tq, H, _), Tk = query.shape, key.shape[1]
    wide = torch.promote_types(query.dtype, torch.float32)  # 1 / (1 - rate) is no half's number
    return F.dropout(query.new_ones(B, H, Tq, Tk, dtype=wide), rate)
