"""Which fused kernel takes which kind of attention on this machine, and if none, why."""

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from hyla.attention.kernels import nvrtc
from hyla.attention.kernels.call import Call
from hyla.attention.kernels.choice import choose_kernel, why_refused
from hyla.attention.kernels.cpu import compiler
from hyla.attention.kernels.formula import Formula
from hyla.attention.spec import resolve_spec


@dataclass(frozen=True)
class Case:
    """A member of the family at a shape that one of the kernels is made for."""

    name: str
    heads: int
    size: int
    queries: int
    keys: int
    dtype: torch.dtype
    _: KW_ONLY
    causal: bool = False
    bias: bool = False
    gradients: bool = True
    attention: str = "hyla"

    def operands(self, device: torch.device) -> tuple[list[Tensor], Tensor | None]:
        """Draw q, k, v and the bias, the same on every device."""
        draw = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            # Rounded before it is moved: the kernel and what it is held to see the same numbers.
            x = torch.randn(*shape, generator=draw).to(self.dtype).to(device)
            return x.requires_grad_(self.gradients)

        q, k, v = (
            normal(2, tokens, self.heads, self.size)
            for tokens in (self.queries, self.keys, self.keys)
        )
        bias = normal(1, self.heads, self.queries, self.keys) if self.bias else None
        return [q, k, v], bias


# Odd lengths: edges are where a kernel goes wrong first.
_SHORT, _LONG = (37, 37), (131, 131)
_FLOAT32, _BFLOAT16 = torch.float32, torch.bfloat16
# Its rows are summed by passes of their own. Smooth: of two million hidden units some are so near
# to ReLU's kink that a rounding decides about their gradient.
_LAST = "hyla_plus_softmax_last.silu"
CASES = (
    Case("SRAVEN: 16 heads of 4, float32", 16, 4, *_SHORT, _FLOAT32, bias=True),
    Case("fuzzy logic: 8 heads of 2, float32", 8, 2, *_SHORT, _FLOAT32, bias=True),
    Case("language: 8 heads of 64, bfloat16", 8, 64, *_LONG, _BFLOAT16, causal=True),
    Case("language: 8 heads of 64, float32", 8, 64, *_LONG, _FLOAT32, causal=True),
    Case("softmax last: 8 heads of 64, bfloat16", 8, 64, *_LONG, _BFLOAT16, attention=_LAST),
    Case("softmax last: 8 heads of 64, float32", 8, 64, *_LONG, _FLOAT32, attention=_LAST),
    Case("decoding: 8 heads of 64, bfloat16", 8, 64, 1, 131, _BFLOAT16, gradients=False),
)


@dataclass(frozen=True, kw_only=True)
class KernelFinding:
    """The kernel that runs a case, or the reason why none does."""

    case: str
    kernel: str | None
    reason: str


def kernel_findings(device: torch.device) -> Iterator[KernelFinding]:
    """Say for each case which kernel `attention` can take on `device`."""
    for case in CASES:
        kernel, reason = find_kernel(case, device)
        yield KernelFinding(case=case.name, kernel=kernel, reason=reason)


def find_kernel(case: Case, device: torch.device) -> tuple[str | None, str]:
    """Return the kernel for a case, and if there is none, why."""
    (q, k, v), bias = case.operands(device)
    spec = resolve_spec(case.attention)
    formula = Formula(
        normalisation="+".join(map(str, spec.normalisation_steps)),
        value=spec.value,
        phi=str(spec.phi),
        scale=1 / math.sqrt(case.size),
        eps=1e-6,
        causal=case.causal,
    )
    call = Call(q, k, v, formula=formula, bias=bias)
    kernel, reason = choose_kernel(call)
    unavailable = nvrtc.why_unavailable()
    if kernel is not None or unavailable is None:
        return kernel, reason
    lacking = compiler.why_unavailable()
    if lacking is not None and why_refused("small_head_cpu", call) == lacking:
        unavailable += f" (on a CPU: {lacking})"
    return None, unavailable
