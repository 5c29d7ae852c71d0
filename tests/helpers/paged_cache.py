"""Sequences of different lengths in a cache of pages, and as they would lie one beside another."""

import torch

from hyla.attention import attention, paged_attention

LENGTHS = [37, 0, 5, 40]
ROOM = 40
CASES = [
    (8, 8, 64, 4, torch.bfloat16, "hyla.silu"),
    (8, 2, 64, 8, torch.float16, "hyla.silu"),
    (8, 1, 64, 5, torch.float32, "hyla_minus_rmshead"),
    (12, 3, 80, 1, torch.bfloat16, "hyla.expected2"),
    (32, 8, 128, 20, torch.bfloat16, "hyla.rms4"),
]
"""Heads, groups of them, their width, tokens of a page, dtype, attention."""


def draw(H=8, G=8, D=64, *, page=4, dtype=torch.float32, device="cpu"):
    """Return the arguments, and keys and values as they would lie in a contiguous cache."""
    generator = torch.Generator().manual_seed(0)
    per_sequence = ROOM // page
    total = len(LENGTHS) * per_sequence + 3
    q = torch.randn(len(LENGTHS), 1, H, D, generator=generator).to(dtype)
    k, v = torch.randn(2, total, page, G, D, generator=generator).to(dtype)
    pages = torch.randperm(total, generator=generator)[: len(LENGTHS) * per_sequence]
    table = pages.view(len(LENGTHS), -1).to(torch.int32)
    contiguous = [x[table.long()].flatten(1, 2) for x in (k, v)]
    for sequence, length in enumerate(LENGTHS):
        table[sequence, -(-length // page) :] = -1  # nobody may look there
        for x, whole in zip((k, v), contiguous, strict=True):
            if length % page:
                x[table[sequence, length // page], length % page :] = torch.nan
            whole[sequence, length:] = 0
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    paged, lying = (q, k, v, table, lengths), (q, *contiguous)
    return tuple(x.to(device) for x in paged), tuple(x.to(device) for x in lying)


def exact(contiguous, **options):
    mask = torch.arange(ROOM) < torch.tensor(LENGTHS)[:, None]
    double = [x.double() for x in contiguous]
    mask = mask[:, None, None].to(double[0].device)
    return attention(*double, mask=mask, backend="reference", **options)


def check(heads, groups, width, page, dtype, name, *, device, single_unit):
    """Hold the kernel to the equations, and to itself on a contiguous cache."""
    paged, contiguous = draw(heads, groups, width, page=page, dtype=dtype, device=device)
    got = paged_attention(*paged, attention=name, backend="fused")
    want = exact(contiguous, attention=name)
    unit = {torch.float32: single_unit, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    assert (got.double() - want).norm() / want.norm() < unit
    one = slice(3, 4)  # a full one, so that the contiguous cache needs no padding
    alone = attention(*(x[one] for x in contiguous), attention=name, backend="fused")
    assert (got[one].double() - alone.double()).norm() / alone.double().norm() < unit
