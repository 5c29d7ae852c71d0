"""What the family's third axis costs in the fused kernels: each output beside the plain one.

Causal and bfloat16 for large heads; for SRAVEN's small ones float32, a bias, and the batches of
twelve models at once. Softmax is PyTorch's fused attention. Nothing is timed before output and
gradients agree with float64.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hyla.attention import attention
from hyla.benchmarks.clock import microseconds, time_both

OUTPUTS = ("plain", "plain16", "expected", "rms4")


@dataclass(frozen=True)
class Workload:
    """One shape, and the members of the family that are timed at it."""

    name: str
    shape: tuple[int, int, int, int]  # B, T, H, D
    dtype: torch.dtype
    causal: bool
    biased: bool
    members: tuple[str, ...]

    def bias(self, tokens: int) -> Tensor | None:
        """Return one for all sequences, as relative positions give it."""
        H, T = self.shape[2], tokens
        return torch.randn(1, H, T, T, device="cuda") if self.biased else None


LARGE = Workload(
    "large heads",
    (8, 1024, 8, 64),
    torch.bfloat16,
    True,
    False,
    ("hyla", "hyla_minus_rmshead", "hyla_residual_minus_rmshead_plus_softmax"),
)
SMALL = Workload(
    "SRAVEN, twelve models",
    (12 * 128, 36, 16, 4),
    torch.float32,
    False,
    True,
    ("hyla", "hyla_residual_minus_rmshead", "hyla_residual_minus_rmshead_plus_softmax", "softmax"),
)
TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-3}
# The longer a sequence, the more hidden units lie within rounding of ReLU's kink.
LONGEST_CHECKED = 200


def measure(device: torch.device, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield a row per member and output; `seconds` is not asked for."""
    if device.type != "cuda":
        raise SystemExit("hyla bench outputs measures GPU kernels: it needs a CUDA device")
    torch.manual_seed(0)
    for workload in (LARGE, SMALL):
        softmax = _softmax_times(workload)
        for member in workload.members:
            plain = None
            for output in OUTPUTS:
                _check(workload, f"{member}.{output}")
                times = _times(workload, f"{member}.{output}")
                plain = plain or times
                yield {
                    "workload": workload.name,
                    "attention": f"{member}.{output}",
                    "forward_ms": times[0] / 1e3,
                    "fwd+bwd_ms": times[1] / 1e3,
                    "forward_over_plain": times[0] / plain[0],
                    "fwd+bwd_over_plain": times[1] / plain[1],
                    "forward_over_softmax": times[0] / softmax[0] if softmax else None,
                    "fwd+bwd_over_softmax": times[1] / softmax[1] if softmax else None,
                }
    for output in OUTPUTS:
        yield _decode_row(output)


def _draw(workload: Workload, **smaller: int) -> list[Tensor]:
    size = tuple((dict(zip("BTHD", workload.shape, strict=True)) | smaller).values())
    return [torch.randn(size, device="cuda", dtype=workload.dtype).requires_grad_() for _ in "qkv"]


def _times(workload: Workload, name: str) -> tuple[float, float]:
    bias = workload.bias(workload.shape[1])
    options = {"bias": bias, "bias_masks": False, "causal": workload.causal, "backend": "fused"}
    return time_both(lambda *x: attention(*x, attention=name, **options), _draw(workload))


def _softmax_times(workload: Workload) -> tuple[float, float] | None:
    if workload.biased:  # no fused attention of PyTorch's takes heads of four
        return None
    leaves = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in _draw(workload)]
    return time_both(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=workload.causal), leaves
    )


def _check(workload: Workload, name: str) -> None:
    tokens = min(workload.shape[1], LONGEST_CHECKED)
    leaves = _draw(workload, B=2, T=tokens)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    bias = workload.bias(tokens)
    results = []
    for given, backend in ((leaves, "fused"), (exact, "reference")):
        own = None if bias is None else bias.to(given[0].dtype)
        options = {"bias": own, "bias_masks": False, "causal": workload.causal, "backend": backend}
        out = attention(*given, attention=name, **options)
        torch.manual_seed(1)
        upstream = torch.randn(out.shape, device="cuda").to(out.dtype)
        results.append([out, *torch.autograd.grad(out, given, upstream)])
    for part, got, want in zip(("output", "dq", "dk", "dv"), *results, strict=True):
        error = (got.double() - want).norm() / want.norm()
        if not error <= TOLERANCE[workload.dtype]:
            raise SystemExit(f"{workload.name}, {name}: {part} is off by {error:.1e}")


def _decode_row(output: str) -> dict[str, Any]:
    k, v = (torch.randn(8, 4096, 8, 64, device="cuda", dtype=torch.bfloat16) for _ in "kv")
    q = torch.randn(8, 1, 8, 64, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        want = attention(q.double(), k.double(), v.double(), attention=f"hyla.{output}")
        error = (attention(q, k, v, attention=f"hyla.{output}", backend="fused") - want).norm()
        if not error <= TOLERANCE[q.dtype] * want.norm():
            raise SystemExit(f"decoding, {output}: the output is off")
        times = [
            microseconds(lambda name=name: attention(q, k, v, attention=name, backend="fused"))
            for name in ("hyla.plain", f"hyla.{output}")
        ]
    return {
        "workload": "decoding, 8 × 4,096",
        "attention": f"hyla.{output}",
        "forward_ms": times[1] / 1e3,
        "forward_over_plain": times[1] / times[0],
    }
