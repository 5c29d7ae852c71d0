"""Decoding from a cache in pages: what the contiguous cache gives, on every path."""

import pytest
import torch

from hyla.attention import paged_attention
from hyla.attention.kernels import decode
from hyla.attention.kernels.call import Call
from hyla.attention.kernels.formula import Formula
from hyla.attention.kernels.ops import fused_attention
from hyla.attention.kernels.packing import Paging
from kernel_host import needs_host_build, on_the_host
from paged_cache import CASES, ROOM, check, draw, exact


@pytest.fixture
def host(builds, monkeypatch):
    on_the_host(monkeypatch, builds, decode)


@pytest.mark.parametrize("name", ["hyla", "softmax", "linear", "hyla_residual", "hyla.expected2"])
def test_the_reference_path(name):
    paged, contiguous = draw(4, 2, 6, dtype=torch.float64)
    got = paged_attention(*paged, attention=name)
    torch.testing.assert_close(got, exact(contiguous, attention=name))
    assert (got[1] == 0).all()


def test_gradients_reach_the_pages():
    (q, k, v, table, lengths), _ = draw(4, 2, 6)
    k = k.requires_grad_()
    paged_attention(q, k, v, table, lengths).sum().backward()
    assert k.grad is not None
    assert k.grad[table[0, 0]].any()


@needs_host_build
@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernel(case):
    check(*case, device="cpu", single_unit=2**-20)


@needs_host_build
@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("wrong", ["page", "negative page", "length", "negative length"])
def test_the_kernel_reads_nothing_outside_of_the_cache(wrong):
    (q, k, v, table, lengths), _ = draw()
    formula = Formula(
        normalisation="rms_head", value="hidden", phi="relu", scale=0.1, eps=1e-6, causal=False
    )

    def run():
        return fused_attention("decode", Call(q, k, v, formula=formula, paging=paging))

    paging = Paging(table, lengths)
    right = run()
    if "page" in wrong:
        table[0, 7] = -(10**6) if "negative" in wrong else len(k)
    else:
        lengths[0] = -1 if "negative" in wrong else ROOM + 1
    got = run()
    assert got[0].isnan().all()
    assert torch.equal(got[1:], right[1:])


@needs_host_build
@pytest.mark.usefixtures("host")
def test_what_the_kernel_refuses():
    paged, _ = draw()
    with pytest.raises(ValueError, match="normalisation"):
        paged_attention(*paged, attention="softmax", backend="fused")
    q, k, v, table, lengths = paged
    formula = Formula(
        normalisation="none", value="hidden", phi="relu", scale=0.1, eps=1e-6, causal=False
    )
    call = Call(q, k, v, formula=formula, paging=Paging(table, lengths))
    with pytest.raises(ValueError, match="only the decoding kernel"):
        fused_attention("large_head", call)


@needs_host_build
@pytest.mark.usefixtures("host")
def test_compiled():
    paged, _ = draw()

    def run(*x):
        return paged_attention(*x, backend="fused")

    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*paged), run(*paged))


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("gives sequence 0 page 43", {"table": lambda x: x.index_fill(1, torch.tensor([2]), 43)}),
        ("gives sequence 0 page -1", {"table": lambda x: -torch.ones_like(x)}),
        ("sequence 0 has a length of 41", {"lengths": lambda x: x + 4}),
        ("sequence 1 has a length of -1", {"lengths": lambda x: x - 1}),
        (r"table must be int32 \[sequences, pages\]", {"table": lambda x: x.float()}),
        ("for 4 sequences", {"table": lambda x: x[:3]}),
        ("lengths must be int32", {"lengths": lambda x: x[:, None]}),
        ("lengths is on meta", {"lengths": lambda x: x.to("meta")}),
        ("table must be an int32 tensor .*, got list", {"table": lambda x: x.tolist()}),
        ("lengths must be an int32 tensor .*, got list", {"lengths": lambda x: x.tolist()}),
        ("q must be", {"q": lambda x: x.expand(-1, 2, -1, -1)}),
        ("k must be", {"k": lambda x: x[0]}),
        ("none of them 0", {"v": lambda x: x[:0]}),
        ("same pages", {"v": lambda x: x[:-1]}),
        ("does not fit q", {"k": lambda x: x[:, :, :3], "v": lambda x: x[:, :, :3]}),
    ],
)
def test_wrong_arguments_are_named(message, change):
    names = ("q", "k", "v", "table", "lengths")
    given = dict(zip(names, draw(8, 8, 6)[0], strict=True))
    given |= {name: make(given[name]) for name, make in change.items()}
    with pytest.raises(ValueError, match=message):
        paged_attention(**given)


def test_a_deep_value_network_is_refused():
    with pytest.raises(ValueError, match="deep"):
        paged_attention(*draw(4, 2, 6)[0], attention="hyla_deep")
