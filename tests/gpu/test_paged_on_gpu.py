"""Decoding from a cache in pages on a GPU: what the contiguous cache gives."""

import pytest
import torch
from kernel_checks import captured

from hyla.attention import attention, paged_attention
from paged_cache import CASES, LENGTHS, ROOM, check, draw, exact

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", CASES, ids=str)
def test_output(case):
    check(*case, device="cuda", single_unit=1e-5)


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
