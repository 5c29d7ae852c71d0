"""One call of a fused kernel, and what a kernel is to those who call it."""

from dataclasses import KW_ONLY, dataclass
from typing import Protocol

import torch
from torch import Tensor

from hyla.attention.kernels import ELSEWHERE, nvrtc
from hyla.attention.kernels.formula import Formula
from hyla.attention.kernels.packing import Packing, Paging

Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None]


@dataclass(frozen=True, eq=False)
class Call:
    """Attention of q [B, Tq, H, D] over k and v [B, Tk, G, D], where G divides H.

    `bias` is added to the scaled scores: [Bb, H, Tq, Tk], or for small heads by distance
    [Bb, H, Tq + Tk - 1] (`DistanceBias`); each run of B / Bb consecutive batch elements shares one.
    Without `bias_masks`, none is -inf. `padding` [B, Tk] is True where a key may be attended to.
    `multiplier` [Bm, Tq, Tk], a constant, multiplies the codes of a pair in all heads and is shared
    like a bias. With `packing`, B is 1 and the tokens are those of several sequences, which do not
    see each other. `row_factor` [Bf, Tq], float32 and a constant, scales the output of each query
    where the formula's output is "rows", and is shared like a bias; of packed sequences it is
    [1, tokens]. With `paging`, k and v are a cache of pages [pages, tokens of a page, G, D].
    Causality lets the last query see the last key, the one before it all but the last, and so on. A
    masked pair contributes nothing and receives no gradient.

    The gradient of a bias of pairs and, for large heads, of q are added up atomically unless
    `deterministic` (or torch's global setting) asks for sums in a fixed order; everything else
    always has one.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    _: KW_ONLY
    formula: Formula
    bias: Tensor | None = None
    bias_masks: bool = True
    padding: Tensor | None = None
    multiplier: Tensor | None = None
    packing: Packing | None = None
    paging: Paging | None = None
    row_factor: Tensor | None = None
    deterministic: bool = False

    @property
    def in_fixed_order(self) -> bool:
        """Whether all sums must have a fixed order."""
        return self.deterministic or torch.are_deterministic_algorithms_enabled()

    @property
    def may_mask(self) -> bool:
        """Whether a pair can be masked: by causality, padding or a bias."""
        by_bias = self.bias is not None and self.bias_masks
        return self.formula.causal or self.padding is not None or by_bias

    def with_operands(self, q: Tensor, k: Tensor, v: Tensor) -> "Call":
        """Return the call with these in the place of q, k and v."""
        if q is self.q and k is self.k and v is self.v:
            return self
        # Spelled out: on the way of every call, `dataclasses.replace` takes three times as long.
        return Call(
            *(q, k, v),
            formula=self.formula,
            bias=self.bias,
            bias_masks=self.bias_masks,
            padding=self.padding,
            multiplier=self.multiplier,
            packing=self.packing,
            paging=self.paging,
            row_factor=self.row_factor,
            deterministic=self.deterministic,
        )

    @property
    def heads_per_key_head(self) -> int:
        """Count the consecutive query heads that share one of the keys' and values' heads."""
        return self.q.shape[2] // self.k.shape[2]

    def sharing(self, x: Tensor | None) -> int:
        """Count the consecutive batch elements that share one of `x`, a bias or its like."""
        return 1 if x is None else max(1, len(self.q) // max(1, len(x)))

    def why_malformed(self) -> str | None:
        """Say which shapes do not fit each other, or return None if all do."""
        q, k, v, bias, padding = self.q, self.k, self.v, self.bias, self.padding
        if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
            return "q, k and v must be [B, T, H, D]"
        (batch, queries, heads, width), keys = q.shape, k.shape[1]
        groups, sequences = k.shape[2], batch if self.paging is not None else k.shape[0]
        fits = (sequences, k.shape[3]) == (batch, width) and groups > 0 and heads % groups == 0
        if k.shape != v.shape or not fits:
            return (
                "k and v must be [B, Tk, G, D] with the batch, heads (or a divisor G of them) and "
                "head size of q, got "
                f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
            )
        biases = ((heads, queries, keys), (heads, queries + keys - 1))
        if bias is not None and bias.shape[1:] not in biases:
            return f"bias must be [Bb, H, Tq, Tk] or [Bb, H, Tq + Tk - 1], got {tuple(bias.shape)}"
        if padding is not None and (padding.shape != (batch, keys) or padding.dtype != torch.bool):
            return (
                "padding must be a boolean [B, Tk], True where a key may be attended to, "
                f"got {padding.dtype} {tuple(padding.shape)}"
            )
        multiplier = self.multiplier
        if multiplier is not None and (
            multiplier.ndim != 3 or multiplier.shape[1:] != (queries, keys)
        ):
            return f"the code multiplier must be [Bm, Tq, Tk], got {tuple(multiplier.shape)}"
        for name, x in (("biases", bias), ("multipliers", multiplier)):
            if x is not None and batch and (x.shape[0] == 0 or batch % x.shape[0] != 0):
                return f"the {name} ({x.shape[0]}) must divide the batch ({batch})"
        return None

    def why_elsewhere(self, kinds: tuple[str, ...]) -> str | None:
        """Say why nothing can run where the tensors are, which takes a device of `kinds`."""
        given = (self.q, self.k, self.v, self.bias, self.padding, self.multiplier)
        if self.paging is not None:
            given += (self.paging.table, self.paging.lengths)
        devices = {x.device for x in given if x is not None}
        if len(devices) > 1 or self.q.device.type not in kinds:
            found = ", ".join(sorted(map(str, devices)))
            return f"{ELSEWHERE}, got {found}"
        return nvrtc.why_unavailable() if self.q.device.type == "cuda" else None


class Kernel(Protocol):
    """The host side of a kernel, a module of four functions; `ops` registers them with torch."""

    def why_unsupported(self, call: Call) -> str | None:
        """Say why the kernel cannot compute this, or return None if it can.

        Looks at shapes, dtypes, devices and names only, never at what the tensors hold.
        """
        ...

    def forward(self, call: Call, *, total_factor: Tensor | None, log_sum: Tensor | None) -> Tensor:
        """Return the output [B, Tq, H, D] of a call that is supported.

        `total_factor` [B, Tq] receives what it was multiplied by where that depends on the output
        itself, and `log_sum` [B, Tq, H], both float32, the logarithms of a softmax's sums.
        """
        ...

    def raw_upstream(
        self, call: Call, upstream: Tensor, y: Tensor | None, total_factor: Tensor | None
    ) -> tuple[Call, Tensor]:
        """Turn the gradient of the output into that of the raw one, as in `output_stage`."""
        ...

    def backward(
        self, call: Call, upstream: Tensor, *, log_sum: Tensor | None, bias_gradient: bool
    ) -> Gradients:
        """Return the gradients of q, k, v and, if `bias_gradient`, of the bias.

        `upstream` is the gradient of the raw output but for a constant gain (`raw_upstream`),
        `log_sum` what the forward left of a softmax.
        """
        ...
