"""Backend "auto" on a CPU: PyTorch's fused operations where they win, else the equations."""

import pytest
import torch
from torch.autograd import forward_ad

from attention_inputs import operands
from hyla.attention import AttentionSpec, api, attention
from hyla.attention.linear import MIN_TOKENS_ON_CPU

FEW, MANY = 70, MIN_TOKENS_ON_CPU
TOKENS = {"softmax": FEW, "linear": MANY}


@pytest.fixture
def taken(monkeypatch):
    """Say of each call that looked for something fused whether there was something."""
    looked, look = [], api.try_fused

    def watched(*args, **kwargs):
        result = look(*args, **kwargs)
        looked.append(isinstance(result, torch.Tensor))
        return result

    monkeypatch.setattr(api, "try_fused", watched)
    return looked


def plain(name, **changes):
    sizes = {"batch": 1, "queries": TOKENS[name], "heads": 2, "size": 32, "value_size": 32}
    return operands(name, **(sizes | changes))


@pytest.mark.parametrize("name", ["softmax", "linear"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_fused_path_is_taken_without_gradients(name, causal, taken):
    q, k, v, options = plain(name)
    out = attention(q, k, v, causal=causal, **options)
    assert taken == [True]
    assert torch.equal(out, attention(q, k, v, causal=causal, backend="fused", **options))
    want = attention(q, k, v, causal=causal, backend="reference", **options)
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)


def test_one_query_of_softmax_attention_takes_it(taken):
    q, k, v, options = plain("softmax", queries=1, keys=9)
    out = attention(q, k, v, causal=True, **options)
    torch.testing.assert_close(out, attention(q, k, v, backend="reference", **options))
    assert taken == [True]


@pytest.mark.parametrize(
    ("name", "sizes", "arguments"),
    [
        pytest.param("softmax", {"size": 16, "value_size": 16}, {}, id="small-heads"),
        pytest.param("softmax", {"value_size": 16}, {}, id="narrow-values"),
        pytest.param("softmax", {"dtype": torch.float64}, {}, id="float64"),
        pytest.param("softmax", {"dtype": torch.bfloat16}, {}, id="bfloat16"),
        pytest.param("softmax", {}, {"bias": torch.randn(FEW, FEW)}, id="bias"),
        pytest.param("softmax", {}, {"mask": torch.ones(FEW).bool()}, id="mask"),
        pytest.param("softmax", {}, {"code_multiplier": torch.ones(FEW, FEW)}, id="dropout"),
        pytest.param("softmax", {"queries": 4, "keys": 9}, {"causal": True}, id="last-queries"),
        pytest.param("softmax", {"requires_grad": True}, {}, id="gradients"),
        pytest.param("linear", {"requires_grad": True}, {}, id="linear-gradients"),
        pytest.param("linear", {"queries": MANY - 1}, {}, id="few-tokens"),
        pytest.param("linear", {"queries": 1, "keys": MANY}, {}, id="one-query"),
        pytest.param("linear", {"size": 16}, {}, id="linear-small-heads"),
        pytest.param("linear", {}, {"mask": torch.ones(MANY).bool()}, id="linear-mask"),
    ],
)
def test_everything_else_is_computed_by_the_equations(name, sizes, arguments, taken):
    q, k, v, options = plain(name, **sizes)
    out = attention(q, k, v, **options, **arguments)  # and without the warning of a GPU
    assert True not in taken
    assert torch.equal(out, attention(q, k, v, backend="reference", **options, **arguments))


def test_autocast_keeps_the_equations(taken):
    q, k, v, options = plain("softmax")
    with torch.autocast("cpu", torch.bfloat16):
        attention(q, k, v, **options)
    assert taken == []


def test_normalisations_that_cannot_be_looked_up():
    class Own:
        __hash__ = None  # as that of any dataclass that is not frozen

        def __call__(self, scores, mask, eps):
            return scores

    q, k, v, options = plain("softmax")
    options["attention"] = AttentionSpec(normalisation=Own(), value="linear")
    assert attention(q, k, v, **options).isfinite().all()


def test_second_derivatives():
    q, k, v, options = plain("softmax", queries=5, requires_grad=True)

    def twice(backend):
        out = attention(q, k, v, causal=True, backend=backend, **options)
        (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        return torch.autograd.grad(first.square().sum(), q)

    assert torch.equal(*twice("auto"), *twice("reference"))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, in jvp
def test_forward_mode():
    q, k, v, options = plain("softmax", queries=5)

    def tangents(backend):
        def attend(x):
            return attention(x, k, v, backend=backend, **options)

        with forward_ad.dual_level():
            dual = forward_ad.unpack_dual(attend(forward_ad.make_dual(q, k))).tangent
        return dual, torch.func.jvp(attend, (q,), (k,))[1]

    for got, want in zip(tangents("auto"), tangents("reference"), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("name", ["softmax", "linear"])
def test_populations_keep_their_numbers(name, taken):
    q, k, v, options = plain(name, batch=2)
    members = [x.unflatten(0, (2, 1)) for x in (q, k, v)]

    def results(backend):
        def attend(q, k, v):
            return attention(q, k, v, causal=True, backend=backend, **options)

        def loss(q, k, v):
            return attend(q, k, v).square().sum()

        gradients = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*members)
        return torch.vmap(attend)(*members), *gradients

    got = results("auto")
    assert taken == []
    assert all(map(torch.equal, got, results("reference")))


@pytest.mark.parametrize("name", ["softmax", "linear"])
@pytest.mark.parametrize("which", [True, [(-1, 0), (3, 2)]], ids=["all", "pairs"])
def test_reading_codes_changes_neither_output_nor_codes(name, which, taken):
    q, k, v, options = plain(name)
    options["causal"] = True
    out, codes = attention(q, k, v, return_code=which, **options)
    assert taken == [True]
    assert torch.equal(out, attention(q, k, v, **options))
    _, want = attention(q, k, v, return_code=which, backend="reference", **options)
    torch.testing.assert_close(codes, want)


class Attend(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return attention(q, k, v, causal=True, **self.options)


# torch's own, when its compiler is first imported.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@torch.no_grad()
def test_exported_programs_hold_the_equations():
    q, k, v, options = plain("softmax")
    tokens = torch.export.Dim("tokens", min=2, max=128)
    shapes = {name: {1: tokens} for name in "qkv"}
    program = torch.export.export(Attend(**options), (q, k, v), dynamic_shapes=shapes)
    assert "scaled_dot_product" not in program.graph_module.code
    torch.testing.assert_close(program.module()(q, k, v), Attend(**options)(q, k, v))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ["softmax", "linear"])
def test_fused_paths_compile_for_any_length(name):
    torch.compiler.reset()
    module = Attend(attention=name, backend="fused")
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="eager")
    for length in (9, 7):
        q, k, v, _ = plain(name, queries=length)
        torch.testing.assert_close(compiled(q, k, v), module(q, k, v))
