"""Fused HYLA beside PyTorch's fused softmax and beside compiled einsums, on one GPU.

Causal, bfloat16 unless a row says float32. Nothing is timed before output and gradients agree with
float64. Softmax is the fastest of PyTorch's fused kernels. `reference_ms` is the library's own
reference path: the rows that have it are what backend "auto" goes by
(`hyla.attention.kernels.choice`).
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from hyla.attention import attention, explain
from hyla.attention.reference import reference_attention
from hyla.attention.spec import PRESETS
from hyla.benchmarks.clock import microseconds, peak_mebibytes, time_both

# Products of 2 B T² H D operations, half of them masked: forward 3; backward 8 that are needed.
FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 3, 8
# A hidden unit within rounding of ReLU's kink may fall on either side, in millions one does now and
# then, and moves a gradient by about 1e-3: hence no less for float32.
ROUNDING = {"bfloat16": 2e-3, "float32": 2e-3}
LONGEST_EINSUM = 1024  # [B, T, T, D] has to fit
SOFTMAX = {
    "bfloat16": (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION),
    "float32": (SDPBackend.EFFICIENT_ATTENTION,),  # the others have no float32
}


@dataclass(frozen=True)
class Shape:
    """One workload."""

    B: int
    T: int
    H: int
    D: int
    dtype: str = "bfloat16"

    @property
    def operations(self) -> float:
        """Of one product over all visible pairs."""
        return self.B * self.T * self.T * self.H * self.D


COMPILED = [  # einsums take long to compile, so not everywhere
    Shape(8, 1024, 8, 64),
    Shape(8, 1024, 16, 64),
    Shape(8, 1024, 32, 64),
    Shape(8, 1024, 16, 128),
    Shape(8, 1024, 8, 64, "float32"),
]
HEADS = [*COMPILED, Shape(8, 1024, 4, 64), Shape(8, 1024, 32, 32)]
LENGTHS = [Shape(max(1, 8192 // T), T, 8, 64) for T in (256, 512, 2048, 4096, 8192, 16384, 32768)]
SHORT = [Shape(8, T, 8, 64, dtype) for dtype in ("bfloat16", "float32") for T in (8, 32, 128)]
DECODE = [Shape(8, T, 8, 64) for T in (1024, 4096, 16384, 32768)]


def measure(device: torch.device, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield a row per shape and pass; `seconds` is not asked for: a graph takes what it takes."""
    if device.type != "cuda":
        raise SystemExit("hyla bench attention measures GPU kernels: it needs a CUDA device")
    torch.manual_seed(0)
    for shape in (*HEADS, *LENGTHS, *SHORT):
        _check(replace(shape, B=2, T=min(shape.T, 200)))
        yield from _train_rows(shape)
    for shape in DECODE:
        yield _decode_row(shape)


_hyla: Callable[..., Tensor] = partial(attention, causal=True, backend="fused")
_reference: Callable[..., Tensor] = partial(attention, causal=True, backend="reference")


def _softmax(backend: SDPBackend) -> Callable[..., Tensor]:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)

    return run


def _einsums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute in the dtype of q throughout, as one would write it; compiled by the caller."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q * q.shape[-1] ** -0.5, k).tril()
    mean = scores.float().square().mean(1, keepdim=True)
    code = (scores * (mean + 1e-6).rsqrt()).to(q.dtype)
    hidden = torch.relu(torch.einsum("bhqk,bkhd->bqkd", code, v))
    return torch.einsum("bhqk,bqkd->bqhd", code, hidden)


def _draw(shape: Shape, *, heads_first: bool = False) -> list[Tensor]:
    B, T, H, D = shape.B, shape.T, shape.H, shape.D
    size = (B, H, T, D) if heads_first else (B, T, H, D)
    leaves = [torch.randn(size, device="cuda", dtype=getattr(torch, shape.dtype)) for _ in "qkv"]
    return [x.requires_grad_() for x in leaves]


def _check(shape: Shape) -> None:
    leaves = _draw(shape)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    mask = torch.ones(shape.T, shape.T, dtype=torch.bool, device="cuda").tril()
    options = {"spec": PRESETS["hyla"], "scale": shape.D**-0.5, "eps": 1e-6, "mask": mask}
    truth, ours = reference_attention(*exact, **options)[0], _hyla(*leaves)
    plain = [x.detach().requires_grad_() for x in leaves]
    theirs = _einsums(*plain)
    upstream = torch.randn_like(ours)
    results = [
        [x, *torch.autograd.grad(x, given, upstream.to(x.dtype))]
        for x, given in ((truth, exact), (ours, leaves), (theirs, plain))
    ]
    for name, want, mine, other in zip(("output", "dq", "dk", "dv"), *results, strict=True):
        error, allowed = ((x.double() - want).norm() / want.norm() for x in (mine, other))
        if not error <= 2 * allowed + ROUNDING[shape.dtype]:
            raise SystemExit(f"{shape}: {name} is off by {error:.1e}, einsums by {allowed:.1e}")


def _train_rows(shape: Shape) -> Iterator[dict[str, Any]]:
    leaves = _draw(shape)
    ours, memory = time_both(_hyla, leaves), peak_mebibytes(_hyla, leaves)
    softmax = [time_both(_softmax(x), _draw(shape, heads_first=True)) for x in SOFTMAX[shape.dtype]]
    einsums = None
    if shape in COMPILED:
        torch.compiler.reset()
        einsums = time_both(torch.compile(_einsums, dynamic=False), leaves)
    reference = time_both(_reference, leaves) if shape.T <= LONGEST_EINSUM else None
    # The backward may have no room on tensor cores where the forward has.
    paths = [
        explain(q, k, v, causal=True, backend="fused").path
        for q, k, v in ([leaf.detach() for leaf in leaves], leaves)
    ]
    products = (FORWARD_PRODUCTS, FORWARD_PRODUCTS + BACKWARD_PRODUCTS)
    for i, name in enumerate(("forward", "fwd+bwd")):
        best = min(times[i] for times in softmax)
        yield {
            **asdict(shape),
            "kernel": paths[i],
            "pass": name,
            "hyla_ms": ours[i] / 1e3,
            "softmax_ms": best / 1e3,
            "over_softmax": ours[i] / best,
            "einsums_ms": einsums[i] / 1e3 if einsums else None,
            "faster_than_einsums": einsums[i] / ours[i] if einsums else None,
            "reference_ms": reference[i] / 1e3 if reference else None,
            "tflops": products[i] * shape.operations / ours[i] / 1e6,
            "extra_mib": memory if i else None,
        }


def _decode_row(shape: Shape) -> dict[str, Any]:
    _, k, v = (x.detach() for x in _draw(shape))
    q = torch.randn(shape.B, 1, shape.H, shape.D, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        options = {"spec": PRESETS["hyla"], "scale": shape.D**-0.5, "eps": 1e-6}
        want = reference_attention(q.double(), k.double(), v.double(), **options)[0]
        error = (_hyla(q, k, v) - want).norm() / want.norm()
        if not error <= 2**-7:
            raise SystemExit(f"decoding {shape}: the output is off by {error:.1e}")
        ours = microseconds(lambda: _hyla(q, k, v))
        one, keys, values = (x.transpose(1, 2).contiguous() for x in (q, k, v))
        softmax = microseconds(lambda: F.scaled_dot_product_attention(one, keys, values))
    moved = 2 * k.numel() * k.element_size()
    return {
        **asdict(shape),
        "kernel": "decode",
        "pass": "decode",
        "hyla_ms": ours / 1e3,
        "softmax_ms": softmax / 1e3,
        "over_softmax": ours / softmax,
        "gb_per_s": moved / ours / 1e3,
    }
