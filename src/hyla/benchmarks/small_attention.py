"""The fused small-head attention beside compiled and eager einsums, on one GPU.

Nothing is timed before the output and every gradient have been checked. Times are medians of
replayed CUDA graphs, so they hold no launch overhead of Python's.
"""

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from hyla.attention.kernels.call import Call
from hyla.attention.kernels.formula import Formula
from hyla.attention.kernels.ops import fused_attention
from hyla.attention.reference import reference_attention
from hyla.attention.spec import AttentionSpec
from hyla.benchmarks.cases import Row, check_gpu, measured
from hyla.benchmarks.clock import time_both

EPS = 1e-6
SPEC = AttentionSpec(normalisation="rms_head", value="hidden", phi="relu")
# Multiply-adds per (query, key, head, d): three products forward; five recomputed or needed by
# both gradient passes, one more for dQ and two more for dK and dV.
FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 3, 6 + 7


@dataclass(frozen=True)
class Shape:
    """One workload: `models` populations of `batch` sequences, each with a bias of its own."""

    name: str
    models: int
    batch: int
    T: int
    H: int
    D: int
    biased: bool = True

    @property
    def pairs(self) -> int:
        """Query-key pairs times heads times head size."""
        return self.models * self.batch * self.T**2 * self.H * self.D


SHAPES = [
    Shape("SRAVEN x12", 12, 128, 36, 16, 4),
    Shape("SRAVEN x12, no bias", 12, 128, 36, 16, 4, biased=False),
    Shape("SRAVEN", 1, 128, 36, 16, 4),
    Shape("width 4", 1, 128, 36, 64, 4),
    Shape("fuzzy x12", 12, 128, 32, 8, 2),
]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def draw(shape: Shape, dtype: torch.dtype) -> list[Tensor]:
    """Return q, k, v and, where the shape has one, the bias, as leaves."""
    size = (shape.models * shape.batch, shape.T, shape.H, shape.D)
    leaves = [torch.randn(size, device="cuda").to(dtype) for _ in "qkv"]
    if shape.biased:
        leaves.append(torch.randn(shape.models, shape.H, shape.T, shape.T, device="cuda"))
    return [leaf.requires_grad_() for leaf in leaves]


def fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Run the kernel."""
    scale = q.shape[-1] ** -0.5
    formula = Formula(
        normalisation="rms_head", value="hidden", phi="relu", scale=scale, eps=EPS, causal=False
    )
    return fused_attention("small_head", Call(q, k, v, formula=formula, bias=bias))


def einsum(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Run the reference, which materialises the code."""
    if bias is not None:
        bias = bias.repeat_interleave(q.shape[0] // bias.shape[0], dim=0).to(q.dtype)
    scale = q.shape[-1] ** -0.5
    return reference_attention(q, k, v, spec=SPEC, scale=scale, eps=EPS, bias=bias)[0]


# ------------------------------------------------------------------ the gate


def check(shape: Shape, dtype: torch.dtype) -> None:
    """Raise unless output and gradients are as close to float64 as torch's, up to a factor of 2."""
    small = Shape(shape.name, min(shape.models, 2), 16, shape.T, shape.H, shape.D, shape.biased)
    leaves = draw(small, dtype)
    upstream = torch.randn_like(leaves[0])

    def results(function, to: torch.dtype) -> list[Tensor]:
        inputs = [leaf.detach().to(to).requires_grad_() for leaf in leaves]
        output = function(*inputs)
        return [output, *torch.autograd.grad(output, inputs, upstream.to(to))]

    floor = 1e-5 if dtype == torch.float32 else 1e-2
    exact, plain, ours = (
        results(einsum, torch.float64),
        results(einsum, dtype),
        results(fused, dtype),
    )
    names = ("output", "dq", "dk", "dv", "dbias")
    for name, truth, theirs, mine in zip(names, exact, plain, ours, strict=False):
        error = (mine.double() - truth).abs().max().item()
        allowed = 2 * (theirs.double() - truth).abs().max().item()
        allowed += floor * truth.abs().max().item()
        if not error <= allowed:
            raise RuntimeError(
                f"{shape.name} {dtype}: {name} is off by {error:.2e} > {allowed:.2e}"
            )


# ------------------------------------------------------------------ the table


def measure(device: torch.device, seconds: float) -> Iterator[Row]:
    """Yield a row per shape, dtype and pass; `seconds` is not asked for."""
    check_gpu("small-attention", device)
    torch.manual_seed(0)
    yield from measured(itertools.product(SHAPES, DTYPES), _rows, _described)


def _described(case: tuple[Shape, str]) -> Row:
    shape, dtype = case
    return {**asdict(shape), "dtype": dtype}


def _rows(case: tuple[Shape, str]) -> Iterator[Row]:
    shape, dtype = case[0], DTYPES[case[1]]
    check(shape, dtype)
    leaves = draw(shape, dtype)
    torch.compiler.reset()  # or the limit on recompilations would turn it into eager
    compiled = torch.compile(einsum, dynamic=False)
    ours, theirs, eager = (time_both(f, leaves) for f in (fused, compiled, einsum))
    products = (FORWARD_PRODUCTS, FORWARD_PRODUCTS + BACKWARD_PRODUCTS)
    for i, name in enumerate(("forward", "fwd+bwd")):
        yield _described(case) | {
            "pass": name,
            "fused_us": ours[i],
            "compiled_us": theirs[i],
            "eager_us": eager[i],
            "over_compiled": theirs[i] / ours[i],
            "gflops": 2 * products[i] * shape.pairs / ours[i] / 1e3,
        }
