"""Members that differ in their attention, in one population.

Nothing but the sums over keys knows which member of the family a model has: its parameters, and all
that is computed around attention, are those of the others. So three models of HYLA, three of
softmax and three of linear attention fill a GPU as nine of one do, where three alone do not.

An operator stands where a layer sums over its keys. Under `vmap` it finds the queries, keys and
values of all members side by side, and gives each method its own.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from hyla._compiler_tag import tag_compiled_code
from hyla.attention import AttentionSpec, DistanceBias, attention
from hyla.attention.spec import is_own_preset, resolve_spec
from hyla.nn import MultiHeadAttention, Transformer, TransformerConfig

tag_compiled_code()
MIXED_OPTIONS: dict[str, Any] = {
    # With vectors, what torch 2.13 makes of the backward pass writes beyond a buffer. The numbers
    # are right, but the heap is corrupt, and the process ends sooner or later: seen in
    # test_mixing.py's test of compiled code.
    "cpp.simdlen": 0
}
"""For the compiler where it writes C++: on a CPU."""


class MixedAttention(MultiHeadAttention):
    """`MultiHeadAttention`, made for `vmap` over members that have different ones."""

    methods: str
    """Attentions and how many members in a row have each, as in "hyla 3, softmax 3"."""

    def _sums(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        bias = options["bias"]
        assert bias is None or isinstance(bias, DistanceBias)
        for other in ("mask", "code_multiplier", "value_weight"):
            assert options.get(other) is None, other  # tasks have none; see `why_not_mixed`
        table = None if bias is None else bias.table
        return _sums_of_members(q, k, v, table, self.methods, options["causal"], self.backend)


def with_mixed_attention(model: Transformer, attentions: Sequence[str | AttentionSpec]) -> None:
    """Let each member of a population attend by its own of the `attentions`; parameters stay."""
    for each in attentions:
        if reason := why_not_mixed(replace(model.config, attention=each)):
            raise ValueError(f"{each} has to train among its like: {reason}")
    methods = [f"{name} {len(list(members))}" for name, members in groupby(attentions)]
    for layer in model.modules():
        if isinstance(layer, MultiHeadAttention):
            layer.__class__ = MixedAttention
        if isinstance(layer, MixedAttention):
            layer.methods = ", ".join(methods)


def why_not_mixed(model: TransformerConfig) -> str | None:
    """Say what keeps a model from training beside models with another attention, if anything does.

    What a preset of somebody's own computes may change under its name, and compiled code, which is
    kept by names, would not notice.
    """
    if not isinstance(model.attention, str) or is_own_preset(model.attention):
        return "its attention is not a preset of hyla"
    if resolve_spec(model.attention).value == "deep":
        return "its value network has a weight of its own"
    if model.attention_dropout:
        return "it has attention dropout"
    return None


@torch.library.custom_op("hyla::sums_of_members", mutates_args=())
def _sums_of_members(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    distances: Tensor | None,
    methods: str,
    causal: bool,
    backend: str,
) -> Tensor:
    """Attend as each member does; `distances` is the table of a `DistanceBias`."""
    raise RuntimeError("which member attends is known under vmap over all of them alone")


@_sums_of_members.register_vmap
def _(info, in_dims, q, k, v, distances, methods, causal, backend):
    names, counts = zip(*(method.split(" ") for method in methods.split(", ")), strict=True)
    counts = [int(count) for count in counts]

    def of_methods(x: Tensor, mapped: int | None) -> Sequence[Tensor]:
        stacked = x.expand(info.batch_size, *x.shape) if mapped is None else x.movedim(mapped, 0)
        return stacked.split(counts)

    operands = [of_methods(x, mapped) for x, mapped in zip((q, k, v), in_dims[:3], strict=True)]
    biases = [None] * len(names)
    if distances is not None:
        biases = of_methods(distances, in_dims[3])
    sums = []
    for name, *own, table in zip(names, *operands, biases, strict=True):
        members_and_sequences = own[0].shape[:2]
        if table is not None:  # each member's [1, H, distances], once for each of its sequences
            table = table.expand(*members_and_sequences, -1, -1)
        out = attention(
            *(x.flatten(0, 1) for x in own),
            attention=name,
            bias=None if table is None else DistanceBias(table.flatten(0, 1)),
            bias_masks=False,  # it is learned
            causal=causal,
            backend=backend,
        )
        sums.append(out.unflatten(0, members_and_sequences))
    return torch.cat(sums), 0
