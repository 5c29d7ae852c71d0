"""Keys and values that groups of query heads share: as if they were repeated, on every path."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from grouped_heads import DECODING_CASES, KERNEL_CASES, SHAPES, SOFTMAX
from hyla.attention import PRESETS, attention, packed_attention
from hyla.attention.groups import for_every_head, summed_over_groups
from hyla.attention.kernels import decode, large_head, small_head
from hyla.attention.paths.softmax import fused_softmax_attention
from hyla.nn import KeyValueCache, MultiHeadAttention
from kernel_host import needs_host_build, on_the_host


def draw(H, G, D, *, B=2, Tq=9, Tk=9, Dv=None, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = ((B, Tq, H, D), (B, Tk, G, D), (B, Tk, G, Dv or D))
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in shapes]


def with_gradients(run, tensors, upstream=None) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = run(*leaves)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]


def repeated(run):
    return lambda q, k, v: run(q, *(for_every_head(x, q.shape[2]) for x in (k, v)))


def test_a_head_of_the_keys_serves_consecutive_heads():
    x = torch.arange(2.0)[None, None, :, None]
    assert for_every_head(x, 6).flatten().tolist() == [0, 0, 0, 1, 1, 1]
    assert for_every_head(x, 2) is x
    assert summed_over_groups(torch.ones(1, 1, 6, 1), 2).flatten().tolist() == [3, 3]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", PRESETS)
def test_every_member_by_the_equations(name, groups):
    tensors = draw(4, groups, 6, Tq=5, Dv=3)
    weight = torch.randn(4, 3, 3, dtype=torch.float64) if name == "hyla_deep" else None
    padding = torch.rand(2, 1, 1, 9, generator=torch.Generator().manual_seed(2)) > 0.3

    def run(q, k, v):
        options = {"attention": name, "value_weight": weight, "causal": True, "mask": padding}
        out, code = attention(q, k, v, **options, return_code=True)
        assert torch.equal(
            attention(q, k, v, **options, return_code=[(1, 2)])[1][:, 0], code[:, :, 1, 2]
        )
        return out

    torch.testing.assert_close(
        with_gradients(run, tensors), with_gradients(repeated(run), tensors), rtol=0, atol=1e-12
    )


def test_gradients_by_differences():
    leaves = [x.requires_grad_() for x in draw(4, 2, 3, Tq=3, Tk=4)]
    assert torch.autograd.gradcheck(
        lambda q, k, v: attention(q, k, v, attention="hyla.silu"), leaves
    )


@pytest.mark.parametrize("name", ["softmax", "linear", "linear.rms"])
@pytest.mark.parametrize("queries", [1, 9])
def test_members_without_a_kernel_of_ours(name, queries):
    tensors = draw(4, 2, 32, Tq=queries, dtype=torch.float32)

    def run(backend):
        return lambda *x: attention(*x, attention=name, causal=True, backend=backend)

    got, want = (with_gradients(run(backend), tensors) for backend in ("fused", "reference"))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_packed_sequences():
    q, k, v = (x[0] for x in draw(4, 2, 8, B=1))
    starts = torch.tensor([0, 4, 9])
    got = packed_attention(q, k, v, starts)
    repeated_k, repeated_v = (for_every_head(x[None], 4)[0] for x in (k, v))
    want = packed_attention(q, repeated_k, repeated_v, starts)
    torch.testing.assert_close(got, want)


# ------------------------------------------------------------------ the layer


def test_the_layer_is_one_whose_key_heads_are_equal():
    layer = MultiHeadAttention(24, 6, num_key_heads=2, rotary=True)
    assert layer.k_proj.weight.shape == layer.v_proj.weight.shape == (8, 24)
    assert "num_key_heads=2" in repr(layer)
    whole = MultiHeadAttention(24, 6, rotary=True)
    state = layer.state_dict()
    for name in ("k_proj", "v_proj"):
        for part in ("weight", "bias"):
            x = state[f"{name}.{part}"].unflatten(0, (2, 4))
            state[f"{name}.{part}"] = x.repeat_interleave(3, dim=0).flatten(0, 1)
    whole.load_state_dict(state)
    x = torch.randn(2, 5, 24)
    torch.testing.assert_close(layer(x, causal=True), whole(x, causal=True))
    for ours, theirs in zip(layer.head_weights(), whole.head_weights(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_cache_holds_the_shared_heads_alone():
    layer, cache = MultiHeadAttention(24, 6, num_key_heads=2), KeyValueCache(5)
    x = torch.randn(2, 5, 24)
    with torch.no_grad():
        steps = [layer(x[:, i : i + 1], causal=True, cache=cache) for i in range(5)]
        torch.testing.assert_close(torch.cat(steps, 1), layer(x, causal=True))
        keys, _ = cache.append(*[torch.zeros(2, 0, 2, 4)] * 2)
    assert keys.shape == (2, 5, 2, 4)


def test_key_heads_must_divide_the_heads():
    with pytest.raises(ValueError, match="num_key_heads=4 does not divide num_heads=6"):
        MultiHeadAttention(24, 6, num_key_heads=4)


# ------------------------------------------------------------------ the kernels


@pytest.fixture
def host(builds, monkeypatch):
    on_the_host(monkeypatch, builds, small_head, large_head, decode)


UNIT = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-20}


@needs_host_build
@pytest.mark.usefixtures("host")
@pytest.mark.parametrize((*SHAPES, "name"), KERNEL_CASES)
@pytest.mark.parametrize("deterministic", [False, True])
def test_kernels(heads, groups, width, dtype, name, deterministic):
    tensors = draw(heads, groups, width, Tq=19, Tk=19, dtype=dtype)

    def run(backend):
        return lambda *x: attention(*x, attention=name, causal=True, backend=backend)

    torch.use_deterministic_algorithms(deterministic)
    try:
        got = with_gradients(run("fused"), tensors)
    finally:
        torch.use_deterministic_algorithms(False)
    want = with_gradients(run("reference"), [x.double() for x in tensors])
    units = 8 if name == SOFTMAX else 4
    for ours, truth in zip(got, want, strict=True):
        error = (ours.double() - truth).norm() / truth.norm()
        assert error < units * UNIT[dtype]
        assert ours.shape == truth.shape


@needs_host_build
@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(SHAPES, DECODING_CASES)
def test_decoding(heads, groups, width, dtype):
    tensors = draw(heads, groups, width, Tq=1, Tk=70, dtype=dtype)
    got = attention(*tensors, backend="fused")
    want = attention(*(x.double() for x in tensors), backend="reference")
    assert (got.double() - want).norm() / want.norm() < UNIT[dtype]


@needs_host_build
@pytest.mark.usefixtures("host")
def test_vmap_and_compile():
    tensors = [torch.stack([x, x.flip(0)]) for x in draw(8, 2, 32, dtype=torch.bfloat16)]

    def run(q, k, v):
        return attention(q, k, v, backend="fused")

    together = torch.func.vmap(run)(*tensors)
    for i in range(2):
        torch.testing.assert_close(together[i], run(*(x[i] for x in tensors)))
    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    one = [x[0] for x in tensors]
    torch.testing.assert_close(with_gradients(compiled, one), with_gradients(run, one))


@pytest.mark.parametrize(
    ("dtype", "device", "heads"),
    [(torch.float32, "cuda", 8), (torch.bfloat16, "cuda", 2), (torch.float32, "cpu", 2)],
)
def test_keys_are_repeated_for_the_fused_softmax_that_would_not_share_them(
    dtype, device, heads, monkeypatch
):
    """By tensors that are on a GPU in name alone."""
    given = []

    def fused(q, k, v, *, enable_gqa, **options):
        given.append((k.shape[1], v.shape[1], enable_gqa))
        return torch.empty_like(q)

    monkeypatch.setattr(F, "scaled_dot_product_attention", fused)
    with FakeTensorMode():
        q, k = (torch.empty(1, 5, H, 32, dtype=dtype, device=device) for H in (8, 2))
        fused_softmax_attention(q, k, k, causal=True, scale=1.0)
    assert given == [(heads, heads, heads != 8)]
