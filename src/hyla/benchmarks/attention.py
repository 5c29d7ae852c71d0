"""Fused HYLA beside PyTorch's fused softmax and beside compiled einsums, on one GPU.

    python -m hyla.benchmarks.attention [--only TEXT] [--out attention-cuda.json]

Causal. Nothing is timed before output and gradients agree with float64. Softmax is the fastest of
PyTorch's fused kernels at the same shape, without padding and dropout. `reference_ms` is the
library's own reference path: the rows that have it are what backend "auto" goes by
(`hyla.attention.kernels.choice`). Rows have names such as "hyla 8x1024 8x64 bfloat16": attention,
B x T, H x D, dtype, and what else there is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends import cuda
from torch.nn.attention import SDPBackend, sdpa_kernel

from hyla.attention import attention, explain, paged_attention
from hyla.attention.groups import for_every_head
from hyla.attention.paths.chunking import and_causal
from hyla.attention.reference import value_network
from hyla.attention.spec import resolve_spec
from hyla.benchmarks.cases import Row, check_gpu, check_rows, chosen, measured
from hyla.benchmarks.clock import microseconds, peak_mebibytes, time_both
from hyla.benchmarks.command_line import add_only, parser_of, record

# Products of 2 B T² H D operations, half of them masked: forward 3; backward 8 that are needed.
FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 3, 8
# A hidden unit within rounding of ReLU's kink may fall on either side, in millions one does now and
# then, and moves a gradient by about 1e-3: hence no less for float32.
ROUNDING = 2e-3
LONGEST_REFERENCE = 1024  # it takes a second a call beyond
LONGEST_CHECKED = 200
DRAWS = 5
DROPOUT = 0.1
SOFTMAX = {
    "bfloat16": (
        (SDPBackend.FLASH_ATTENTION, cuda.can_use_flash_attention),
        (SDPBackend.CUDNN_ATTENTION, cuda.can_use_cudnn_attention),
    ),
    # The others have no float32.
    "float32": ((SDPBackend.EFFICIENT_ATTENTION, cuda.can_use_efficient_attention),),
}


@dataclass(frozen=True)
class Case:
    """One workload."""

    B: int
    T: int
    H: int
    D: int
    dtype: str = "bfloat16"
    _: KW_ONLY
    attention: str = "hyla"
    key_heads: int = 0
    """That groups of heads share; 0: each has its own."""
    padding: bool = False
    dropout: bool = False
    decoding: bool = False
    page: int = 0
    """Tokens of a page of the cache; 0: it is contiguous."""

    def __str__(self) -> str:
        shape = f"{self.B}x{self.T} {self.H}x{self.D}"
        marks = {
            f"{self.key_heads} key heads": self.key_heads,
            "padding": self.padding,
            "dropout": self.dropout,
            "decoding": self.decoding,
            f"pages of {self.page}": self.page,
        }
        marked = [mark for mark, there in marks.items() if there]
        return " ".join([self.attention, shape, self.dtype, *marked])

    @property
    def operations(self) -> float:
        """Of one product over all visible pairs."""
        return self.B * self.T * self.T * self.H * self.D

    def options(self) -> dict[str, Any]:
        """Return the arguments of `attention` beside q, k and v."""
        mask = multiplier = None
        if self.padding:  # at the right, of up to a quarter
            lengths = torch.linspace(0.75 * self.T, self.T, self.B, device="cuda").long()
            mask = (torch.arange(self.T, device="cuda") < lengths[:, None])[:, None, None]
        if self.dropout:  # of one draw for all sequences, as the layer's
            kept = torch.rand(self.T, self.T, device="cuda") >= DROPOUT
            multiplier = kept.float() / (1 - DROPOUT)
        options = {"attention": self.attention, "causal": True}
        return options | {"mask": mask, "code_multiplier": multiplier}


SOFTMAX_CODES = ("hyla_minus_rmshead_plus_softmax", "hyla_plus_softmax", "hyla_plus_softmax_last")
COMPILED = [Case(8, 1024, 8, 64, dtype) for dtype in ("bfloat16", "float32")]  # 30 seconds each
HEADS = [
    Case(8, 1024, H, D)
    for H, D in ((4, 64), (16, 64), (8, 32), (32, 32), (8, 128), (32, 64), (16, 128), (32, 128))
]
LENGTHS = [Case(max(1, 8192 // T), T, 8, 64) for T in (256, 512, 2048, 4096, 8192, 16384, 32768)]
SHORT = [Case(8, T, 8, 64, dtype) for dtype in ("bfloat16", "float32") for T in (8, 32, 128)]
FAMILY = [
    *(
        Case(8, 1024, 8, 64, attention=name)
        for name in (*SOFTMAX_CODES, "linear_rmshead", "hyla.silu", "hyla.expected2", "hyla.rms4")
    ),
    Case(8, 1024, 16, 64, attention=SOFTMAX_CODES[0]),
    Case(1, 32768, 8, 64, attention=SOFTMAX_CODES[0]),
    Case(8, 1024, 8, 64, key_heads=2),
]
# What takes kernels with a speed of their own, at a short length, too: "auto" goes by the nearest.
OF_THEIR_OWN = [
    case
    for T in (128, 1024)
    for case in (
        *(Case(8, T, 8, 64, "float32", attention=name) for name in SOFTMAX_CODES),
        *(Case(8, T, 8, 64, attention=name, padding=True) for name in SOFTMAX_CODES),
        # One kernel computes them all: at each shape all are timed, and the least gain counts.
        *(
            Case(8, T, 8, 64, dtype, attention=name, dropout=True)
            for dtype in ("bfloat16", "float32")
            for name in ("hyla", *SOFTMAX_CODES)
        ),
    )
]
DECODE = [
    *(Case(8, T, 8, 64, decoding=True) for T in (1024, 4096, 16384, 32768)),
    *(Case(8, T, 8, 64, decoding=True, page=page) for T in (4096, 16384) for page in (16, 64)),
    *(Case(8, 4096, 8, 64, decoding=True, key_heads=2, page=page) for page in (0, 16)),
]
CASES = [*COMPILED, *HEADS, *LENGTHS, *SHORT, *FAMILY, *OF_THEIR_OWN, *DECODE]


def measure(device: torch.device, seconds: float, *, only: Sequence[str] = ()) -> Iterator[Row]:
    """Yield a row per case and pass; `seconds` is not asked for: a graph takes what it takes."""
    cases = chosen(CASES, only)
    check_gpu("attention", device)
    torch.manual_seed(0)
    yield from measured(cases, _rows, asdict)


def _rows(case: Case) -> Iterator[Row]:
    if case.decoding:
        yield _decode_row(case)
        return
    small = replace(case, B=2, T=min(case.T, LONGEST_CHECKED))
    check(lambda: leaves_of(small), small.options())
    yield from _train_rows(case)


def _by(backend: str, options: dict[str, Any]) -> Callable[..., Tensor]:
    return lambda q, k, v: attention(q, k, v, backend=backend, **options)


def _softmax(backend: SDPBackend) -> Callable[..., Tensor]:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return _attend(q, k, v)

    return run


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    shared = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=shared)


def _einsums(options: dict[str, Any]) -> Callable[..., Tensor]:
    """Compute in the dtype of q throughout, as one would write it; compiled by the caller."""
    spec, bias = resolve_spec(options["attention"]), options.get("bias")
    mask, multiplier = options.get("mask"), options.get("code_multiplier")

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (for_every_head(x, q.shape[2]) for x in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q * q.shape[-1] ** -0.5, k)
        if bias is not None:
            scores = scores + bias.to(q.dtype)
        seen = and_causal(mask, q, k, 0) if options["causal"] else mask
        code = spec.normalise(scores.float(), seen, 1e-6)
        if multiplier is not None:
            code = code * multiplier
        return value_network(code.to(q.dtype), v, spec=spec, mask=seen)

    return run


def check(draw: Callable[[], list[Tensor]], options: dict[str, Any]) -> None:
    """Raise unless the kernels are at least half as near to float64 as einsums in their dtype.

    In the median over several draws of q, k and v, and in none much farther: a single hidden unit
    that rounding puts on the other side of ReLU's kink, in one of the first rows of a softmax,
    multiplies either's error. `options` are those of `attention`.
    """
    drawn = [_errors(draw(), options) for _ in range(DRAWS)]
    for name, *pairs in zip(("output", "dq", "dk", "dv"), *drawn, strict=True):
        ours, theirs = zip(*pairs, strict=True)
        once = all(error <= 10 * max(theirs) + ROUNDING for error in ours)  # NaN is not
        if not (once and median(ours) <= 2 * median(theirs) + ROUNDING):
            raise RuntimeError(
                f"{options['attention']}: {name} is off by {', '.join(f'{x:.1e}' for x in ours)}, "
                f"einsums by {', '.join(f'{x:.1e}' for x in theirs)}"
            )


def _errors(leaves: list[Tensor], options: dict[str, Any]) -> list[tuple[float, float]]:
    """Return how far the kernels and einsums are from float64: output and each gradient."""
    exact = [x.detach().double().requires_grad_() for x in leaves]
    plain = [x.detach().requires_grad_() for x in leaves]
    truth = _by("reference", options)(*exact)
    ours, theirs = _by("fused", options)(*leaves), _einsums(options)(*plain)
    upstream = torch.randn_like(ours)
    want, mine, other = (
        [x.detach(), *torch.autograd.grad(x, given, upstream.to(x.dtype))]
        for x, given in ((truth, exact), (ours, leaves), (theirs, plain))
    )
    return list(zip(_off(mine, want), _off(other, want), strict=True))


def _off(found: Sequence[Tensor], want: Sequence[Tensor]) -> list[float]:
    return [float((x - y).norm() / y.norm()) for x, y in zip(found, want, strict=True)]


def leaves_of(case: Case, *, heads_first: bool = False) -> list[Tensor]:
    """Draw q, k and v of a case, as [B, T, H, D] or as [B, H, T, D]."""
    leaves = []
    for heads in (case.H, *2 * [case.key_heads or case.H]):
        size = (case.B, case.T, heads, case.D)
        x = torch.randn(size, device="cuda", dtype=getattr(torch, case.dtype))
        x = x.transpose(1, 2).contiguous() if heads_first else x
        leaves.append(x.requires_grad_())
    return leaves


def _train_rows(case: Case) -> Iterator[Row]:
    leaves, options = leaves_of(case), case.options()
    fused = _by("fused", options)
    ours, memory = time_both(fused, leaves), peak_mebibytes(fused, leaves)
    softmax = _softmax_times(case)
    einsums = reference = None
    if case in COMPILED:
        torch.compiler.reset()
        einsums = time_both(torch.compile(_einsums(options), dynamic=False), leaves)
    if case.T <= LONGEST_REFERENCE:
        reference = time_both(_by("reference", options), leaves)
    # The backward may have no room on tensor cores where the forward has.
    paths = [
        explain(q, k, v, backend="fused", **options).path
        for q, k, v in ([leaf.detach() for leaf in leaves], leaves)
    ]
    products = (FORWARD_PRODUCTS, FORWARD_PRODUCTS + BACKWARD_PRODUCTS)
    for i, name in enumerate(("forward", "fwd+bwd")):
        yield {
            **asdict(case),
            "kernel": paths[i],
            "pass": name,
            "hyla_ms": ours[i] / 1e3,
            "softmax_ms": softmax[i] / 1e3,
            "over_softmax": ours[i] / softmax[i],
            "einsums_ms": einsums[i] / 1e3 if einsums else None,
            "faster_than_einsums": einsums[i] / ours[i] if einsums else None,
            "reference_ms": reference[i] / 1e3 if reference else None,
            "tflops": products[i] * case.operations / ours[i] / 1e6,
            "extra_mib": memory if i else None,
        }


def _softmax_times(case: Case) -> list[float]:
    """Return the microseconds of both passes, each by the backend that is fastest."""
    q, k, v = leaves_of(case, heads_first=True)
    asked = cuda.SDPAParams(q, k, v, None, 0.0, True, bool(case.key_heads))
    usable = [backend for backend, can_use in SOFTMAX[case.dtype] if can_use(asked)]
    found = [time_both(_softmax(backend), [q, k, v]) for backend in usable]
    return [min(times) for times in zip(*found, strict=True)]


def _decode_row(case: Case) -> Row:
    q, k, v = (x.detach() for x in leaves_of(case))
    q = q[:, :1].contiguous()
    one, keys, values = (x.transpose(1, 2).contiguous() for x in (q, k, v))

    run, contiguous = (decoder_of(c, q, k, v) for c in (case, replace(case, page=0)))
    with torch.no_grad():
        want = attention(*(x.double() for x in (q, k, v)), backend="reference")
        error = (run() - want).norm() / want.norm()
        if not error <= 2**-7:
            raise RuntimeError(f"the output is off by {error:.1e}")
        ours, softmax = microseconds(run), microseconds(lambda: _attend(one, keys, values))
        beside = microseconds(contiguous) if case.page else None
    moved = 2 * k.numel() * k.element_size()
    return {
        **asdict(case),
        "kernel": "decode",
        "pass": "decode",
        "hyla_ms": ours / 1e3,
        "softmax_ms": softmax / 1e3,
        "over_softmax": ours / softmax,
        "over_contiguous": ours / beside if beside else None,
        "gb_per_s": moved / ours / 1e3,
    }


def decoder_of(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor]:
    """Return what decodes from this cache, or from the same in pages that lie in any order."""
    if not case.page:
        return lambda: attention(q, k, v, backend="fused")
    table = torch.randperm(case.B * case.T // case.page, device="cuda")
    in_order = [x.view(len(table), case.page, *x.shape[2:]) for x in (k, v)]
    keys, values = (torch.empty_like(x).index_copy_(0, table, x) for x in in_order)
    pages = table.view(case.B, -1).int()
    lengths = torch.full((case.B,), case.T, device="cuda", dtype=torch.int32)
    return lambda: paged_attention(q, keys, values, pages, lengths, backend="fused")


def main() -> None:
    """Measure, print and write on a machine that has torch, and not the command's packages."""
    parser = parser_of("attention", __doc__)
    add_only(parser)
    given = parser.parse_args()
    check_rows(record(measure, given.device, given.seconds, given.out, only=given.only))


if __name__ == "__main__":
    main()
