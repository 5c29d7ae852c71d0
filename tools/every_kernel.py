"""Run each kind of fused attention once, at odd lengths: what compute-sanitizer looks at.

    PYTHONPATH=src compute-sanitizer --tool memcheck python tools/every_kernel.py

and with racecheck and initcheck. Nothing is compared: whether the numbers are right is for the
tests to say, and most of what the sanitizer then reads would be PyTorch's own kernels. Biases are
in `python -m hyla.doctor`; packed sequences and sums in a fixed order are in neither.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from hyla.attention import attention
from hyla.benchmarks.attention import CASES, Case, decoder_of, leaves_of

TOKENS = 131  # edges are where a kernel goes wrong first
CACHED = 128  # whole pages
MORE = (
    *(Case(2, TOKENS, H, D, "float32") for H, D in ((16, 4), (8, 2))),
    Case(2, TOKENS, 16, 4, "float32", attention="softmax"),
    Case(2, TOKENS, 16, 4, "float32", attention="hyla_plus_softmax_last"),
    Case(2, TOKENS, 16, 4),
    Case(2, TOKENS, 8, 64, "float16"),
    Case(2, TOKENS, 8, 64, attention="linear"),
    Case(2, TOKENS, 8, 64, attention="hyla_residual.rms4"),
    Case(2, TOKENS, 32, 64, attention="linear_rmshead"),
)


def cases() -> Iterator[Case]:
    """Yield what the benchmark of attention times, each kind once and small, and some more."""
    small = (replace(case, B=2, T=CACHED if case.decoding else TOKENS) for case in CASES)
    yield from dict.fromkeys((*small, *MORE))


def run(case: Case) -> None:
    """Call the kernel, with its backward unless it decodes."""
    leaves = leaves_of(case)
    if case.decoding:
        q, k, v = (x.detach() for x in leaves)
        decoder_of(case, q[:, :1].contiguous(), k, v)()
        return
    out = attention(*leaves, backend="fused", **case.options())
    torch.autograd.grad(out, leaves, torch.randn_like(out))


def main() -> None:
    """Run all, and say which came through."""
    for case in cases():
        run(case)
        torch.cuda.synchronize()
        print(case, flush=True)


if __name__ == "__main__":
    main()
