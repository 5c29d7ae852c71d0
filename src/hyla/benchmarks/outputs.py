"""What the family's third axis costs in the fused kernels: each output beside the plain one.

    python -m hyla.benchmarks.outputs [--only TEXT] [--out outputs-cuda.json]

Causal and bfloat16 for large heads; for SRAVEN's small ones float32, a bias, and the batches of
twelve models at once. Softmax is PyTorch's fused attention. Nothing is timed before output and
gradients agree with float64. Rows have names such as "large heads, hyla.rms4".
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hyla.attention import attention
from hyla.benchmarks.attention import LONGEST_CHECKED, check
from hyla.benchmarks.cases import Row, check_gpu, check_rows, chosen, measured
from hyla.benchmarks.clock import microseconds, time_both
from hyla.benchmarks.command_line import add_only, parser_of, record

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
DECODING = Workload(
    "decoding, 8 × 4,096", (8, 4096, 8, 64), torch.bfloat16, False, False, ("hyla",)
)


@dataclass(frozen=True)
class Case:
    """A member of the family with an output, at a workload."""

    workload: Workload
    member: str
    output: str

    def __str__(self) -> str:
        return f"{self.workload.name}, {self.attention}"

    @property
    def attention(self) -> str:
        """The name of both."""
        return f"{self.member}.{self.output}"


CASES = [
    Case(workload, member, output)
    for workload in (LARGE, SMALL, DECODING)
    for member in workload.members
    for output in OUTPUTS
]


def measure(device: torch.device, seconds: float, *, only: Sequence[str] = ()) -> Iterator[Row]:
    """Yield a row per member and output; `seconds` is not asked for."""
    cases = chosen(CASES, only)
    check_gpu("outputs", device)
    torch.manual_seed(0)
    yield from measured(cases, lambda case: [_described(case) | _figures(case)], _described)


def _described(case: Case) -> Row:
    return {"workload": case.workload.name, "attention": case.attention}


def _figures(case: Case) -> Row:
    if case.workload is DECODING:
        return _decoding(case)
    times, plain = (_times(case.workload, f"{case.member}.{x}") for x in (case.output, "plain"))
    softmax = _softmax_times(case.workload)
    return {
        "forward_ms": times[0] / 1e3,
        "fwd+bwd_ms": times[1] / 1e3,
        "forward_over_plain": times[0] / plain[0],
        "fwd+bwd_over_plain": times[1] / plain[1],
        "forward_over_softmax": times[0] / softmax[0] if softmax else None,
        "fwd+bwd_over_softmax": times[1] / softmax[1] if softmax else None,
    }


def _draw(workload: Workload, **smaller: int) -> list[Tensor]:
    size = tuple((dict(zip("BTHD", workload.shape, strict=True)) | smaller).values())
    return [torch.randn(size, device="cuda", dtype=workload.dtype).requires_grad_() for _ in "qkv"]


@functools.cache  # of the plain output, which all others stand beside
def _times(workload: Workload, name: str) -> tuple[float, float]:
    def options(tokens: int) -> dict[str, Any]:
        given = {"attention": name, "causal": workload.causal}
        return given | {"bias": workload.bias(tokens), "bias_masks": False}

    tokens = min(workload.shape[1], LONGEST_CHECKED)
    check(lambda: _draw(workload, B=2, T=tokens), options(tokens))
    whole = options(workload.shape[1])
    return time_both(lambda *x: attention(*x, backend="fused", **whole), _draw(workload))


@functools.cache
def _softmax_times(workload: Workload) -> tuple[float, float] | None:
    if workload.biased:  # no fused attention of PyTorch's takes heads of four
        return None
    leaves = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in _draw(workload)]
    return time_both(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=workload.causal), leaves
    )


def _decoding(case: Case) -> Row:
    q, k, v = (x.detach() for x in _draw(case.workload))
    q = q[:, :1].contiguous()
    with torch.no_grad():
        want = attention(q.double(), k.double(), v.double(), attention=case.attention)
        error = (attention(q, k, v, attention=case.attention, backend="fused") - want).norm()
        if not error <= 2**-7 * want.norm():
            raise RuntimeError("the output is off")
        times = [
            microseconds(lambda name=name: attention(q, k, v, attention=name, backend="fused"))
            for name in (f"{case.member}.plain", case.attention)
        ]
    return {"forward_ms": times[1] / 1e3, "forward_over_plain": times[1] / times[0]}


def main() -> None:
    """Measure, print and write on a machine that has torch, and not the command's packages."""
    parser = parser_of("outputs", __doc__)
    add_only(parser)
    given = parser.parse_args()
    check_rows(record(measure, given.device, given.seconds, given.out, only=given.only))


if __name__ == "__main__":
    main()
