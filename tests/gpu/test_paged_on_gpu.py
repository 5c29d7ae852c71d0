"""Decoding from a cache in pages on a GPU: what the contiguous cache gives."""

import pytest
import torch
from kernel_checks import captured

from hyla.attention import attention, paged_attention
from paged_cache import LENGTHS, ROOM, draw, exact

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("heads", "groups", "width", "page", "dtype", "name"),
    [
        (8, 8, 64, 4, torch.bfloat16, "hyla.silu"),
        (8, 2, 64, 8, torch.float16, "hyla.silu"),
        (8, 1, 64, 5, torch.float32, "hyla_minus_rmshead"),
        (12, 3, 80, 1, torch.bfloat16, "hyla.expected2"),
        (32, 8, 128, 20, torch.bfloat16, "hyla.rms4"),
    ],
    ids=str,
)
def test_output(heads, groups, width, page, dtype, name):
    paged, contiguous = draw(heads, groups, width, page=page, dtype=dtype, device="cuda")
    got = paged_attention(*paged, attention=name, backend="fused")
    want = exact(contiguous, attention=name)
    unit = {torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    assert (got.double() - want).norm() / want.norm() < unit
    one = slice(3, 4)  # a full one, so that the contiguous cache needs no padding
    alone = attention(*(x[one] for x in contiguous), attention=name, backend="fused")
    assert (got[one].double() - alone.double()).norm() / alone.double().norm() < unit


@pytest.mark.parametrize("page", [16, 64])
def test_a_long_cache(page):
    torch.manual_seed(0)
    lengths = torch.tensor([4000, 0, 1, 3999], device="cuda", dtype=torch.int32)
    per_sequence = -(-4000 // page)
    table = torch.randperm(4 * per_sequence, device="cuda").view(4, -1).int()
    k, v = torch.randn(2, table.numel(), page, 8, 64, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(4, 1, 8, 64, device="cuda", dtype=torch.bfloat16)
    got = paged_attention(q, k, v, table, lengths, backend="fused")
    for i, length in enumerate(lengths.tolist()):
        own = [x[table[i].long()].flatten(0, 1)[None, :length].double() for x in (k, v)]
        want = attention(q[i : i + 1].double(), *own, backend="reference")
        assert (got[i] - want).norm() <= 2**-8 * want.norm()


@pytest.mark.parametrize("wrong", ["page", "negative page", "length", "negative length"])
def test_nothing_is_read_outside_of_the_cache(wrong):
    (q, k, v, table, lengths), _ = draw(dtype=torch.bfloat16, device="cuda")
    right = paged_attention(q, k, v, table, lengths, backend="fused")
    if "page" in wrong:
        table[0, 7] = -(10**6) if "negative" in wrong else len(k)
    else:
        lengths[0] = -1 if "negative" in wrong else ROOM + 1
    got = paged_attention(q, k, v, table, lengths, backend="fused")
    assert got[0].isnan().all()
    assert torch.equal(got[1:], right[1:])


def test_captured_with_lengths_that_grow():
    (q, k, v, table, lengths), contiguous = draw(dtype=torch.bfloat16, device="cuda")
    final = lengths.clone()
    lengths -= (lengths > 0).int()
    graph, got = captured(lambda: paged_attention(q, k, v, table, lengths, backend="fused"))
    lengths.copy_(final)
    graph.replay()
    torch.cuda.synchronize()
    want = exact(contiguous)
    assert len(got) == len(LENGTHS)
    assert (got.double() - want).norm() / want.norm() < 2**-8
