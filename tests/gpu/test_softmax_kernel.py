"""A softmax code in the large-head kernels on a GPU, held to twice the error of einsums."""

import pytest
import torch
from kernel_checks import SCALE, captured, check, fused, normal, with_gradients

from hyla.attention import attention
from hyla.attention.kernels import softmax_rows

pytestmark = pytest.mark.gpu
SOFTMAX = {"normalisation": "softmax", "value": "hidden", "phi": "silu"}
RESIDUAL = "hyla_residual_minus_rmshead_plus_softmax.silu.rms4"
HALVES = [torch.bfloat16, torch.float16]
SOFTMAXES = ["softmax", "softmax+rms_head", "rms_head+softmax"]
every_order = pytest.mark.parametrize("normalisation", SOFTMAXES)


@pytest.mark.parametrize("tokens", [9, 17, 63, 128, 130])
@pytest.mark.parametrize("causal", [False, True])
@every_order
def test_every_length(tokens, causal, normalisation):
    torch.manual_seed(0)
    tensors = (normal(2, tokens, 8, 64, dtype=torch.bfloat16) for _ in "qkv")
    check(*tensors, causal=causal, **SOFTMAX | {"normalisation": normalisation})


@pytest.mark.parametrize(
    ("heads", "width"),
    [(3, 32), (4, 128), (8, 32), (8, 80), (16, 64), (5, 24), (32, 64), (12, 128)],
)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@every_order
def test_every_head_size(heads, width, dtype, normalisation):
    torch.manual_seed(1)
    tensors = (normal(2, 70, heads, width, dtype=dtype) for _ in "qkv")
    check(*tensors, causal=True, **SOFTMAX | {"normalisation": normalisation})


@pytest.mark.parametrize("phi", ["relu", "silu"])
@every_order
def test_as_in_a_language_model(phi, normalisation):
    torch.manual_seed(2)
    tensors = (normal(2, 512, 8, 64, dtype=torch.bfloat16) for _ in "qkv")
    check(*tensors, causal=True, **SOFTMAX | {"phi": phi, "normalisation": normalisation})


@every_order
def test_unequal_lengths(normalisation):
    torch.manual_seed(3)
    member = SOFTMAX | {"normalisation": normalisation}
    q, k, v = (normal(2, T, 8, 64, dtype=torch.bfloat16) for T in (33, 70, 70))
    check(q, k, v, **member)
    check(q[:, :1], k, v, causal=True, **member)
    check(q, k, v, causal=True, **member)


@pytest.mark.parametrize(("heads", "width"), [(8, 64), (32, 64)])
def test_padding_where_rms_head_comes_first(heads, width):
    torch.manual_seed(9)
    q, k, v = (normal(3, T, heads, width, dtype=torch.bfloat16) for T in (33, 70, 70))
    padding = torch.rand(3, 70, device="cuda") > 0.3
    padding[0] = False
    for causal in (True, False):
        check(q, k, v, padding=padding, causal=causal, **SOFTMAX | {"normalisation": SOFTMAXES[2]})


def test_strided_inputs():
    torch.manual_seed(4)
    q, k, v = normal(3, 40, 3, 8, 64, dtype=torch.bfloat16).unbind(2)
    check(q, k, v, causal=True, **SOFTMAX)
    heads_first = normal(3, 8, 40, 64, dtype=torch.bfloat16).transpose(1, 2)
    check(heads_first, k[:1].expand(3, -1, -1, -1), v, causal=True, **SOFTMAX)


def test_the_logarithms_of_the_sums():
    torch.manual_seed(5)
    q, k = (normal(2, 130, 8, 64, dtype=torch.bfloat16) for _ in "qk")
    scores = torch.einsum("bqhd,bkhd->bqhk", q.double() * SCALE, k.double())
    seen = torch.ones(130, 130, dtype=torch.bool, device="cuda").tril()[None, :, None]
    want = scores.masked_fill(~seen, -torch.inf).logsumexp(-1)
    got = softmax_rows.log_sums(q, k, causal=True, scale=SCALE)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-3)


@pytest.mark.parametrize("normalisation", ["softmax", "rms_head+softmax"])
def test_deterministic_runs_are_identical(normalisation):
    torch.manual_seed(6)
    tensors = tuple(normal(4, 300, 8, 64, dtype=torch.bfloat16) for _ in "qkv")
    upstream = torch.randn_like(tensors[0])
    options = {"causal": True, **SOFTMAX, "normalisation": normalisation}
    first, second, atomic = (
        with_gradients(
            *(fused, tensors, None, upstream, torch.bfloat16), deterministic=fixed, **options
        )
        for fixed in (True, True, False)
    )
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
    for mine, other in zip(atomic, first, strict=True):
        assert ((mine - other).norm() / other.norm()).item() < 2e-2


def test_beside_the_linear_value_network():
    torch.manual_seed(7)
    tensors = [normal(2, 512, 8, 64, dtype=torch.bfloat16) for _ in "qkv"]
    upstream = torch.randn_like(tensors[0])

    def run(backend, dtype):
        leaves = [x.to(dtype).requires_grad_() for x in tensors]
        output = attention(*leaves, attention=RESIDUAL, causal=True, backend=backend)
        return output, *torch.autograd.grad(output, leaves, upstream.to(dtype))

    truth = run("reference", torch.float64)
    for mine, exact in zip(run("fused", torch.bfloat16), truth, strict=True):
        assert ((mine - exact).norm() / exact.norm()).item() < 2e-2


def test_compiled_captured_and_under_autocast():
    torch.manual_seed(8)
    leaves = [normal(2, 64, 8, 64).requires_grad_() for _ in "qkv"]
    weight = normal(2, 64, 8, 64)  # the sum of squares of a normalised output is constant

    def layer(q, k, v):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            options = {"attention": RESIDUAL, "causal": True, "backend": "fused"}
            return attention(q.sin(), k, v, **options).float()

    def step(function):
        output = function(*leaves)
        gradients = torch.autograd.grad((output * weight).sum(), leaves)
        # Detached: a living graph would tie the leaves to this stream, and break the capture.
        return output.detach(), *gradients

    eager = step(layer)
    compiled = step(torch.compile(layer, fullgraph=True))

    graph, replayed = captured(lambda: step(layer))
    graph.replay()
    torch.cuda.synchronize()
    for results in (compiled, replayed):
        for mine, truth in zip(results, eager, strict=True):
            assert ((mine - truth).norm() / truth.norm()).item() < 2e-2
