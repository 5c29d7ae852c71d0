"""What is fast without a kernel of ours, codes of single pairs, and packed sequences."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from attention_inputs import operands
from hyla.attention import attention, packed_attention


def wide(name, tokens=300, queries=None) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    T = {"q": queries or tokens, "k": tokens, "v": tokens}
    q, k, v = (torch.randn(2, T[x], 3, 32, generator=generator, dtype=torch.float64) for x in "qkv")
    return q, k, v, {"attention": name}


@pytest.mark.parametrize("name", ["softmax", "linear"])
@pytest.mark.parametrize(
    ("causal", "queries"), [(False, None), (True, None), (True, 1), (False, 7)]
)
def test_fused_paths_of_softmax_and_linear_agree_with_the_equations(name, causal, queries):
    q, k, v, options = wide(name, queries=queries)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    results = []
    for backend in ("fused", "reference"):
        out = attention(*leaves, causal=causal, backend=backend, **options)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["softmax", "linear"])
def test_fused_paths_refuse_what_they_would_get_wrong(name):
    q, k, v, options = wide(name, tokens=9, queries=4)
    others = "got torch.float64"  # else a kernel would take both
    with pytest.raises(ValueError, match=others):
        attention(q, k, v, causal=True, backend="fused", **options)
    with pytest.raises(ValueError, match=others):
        attention(q, k, v, bias=torch.zeros(4, 9).double(), backend="fused", **options)


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("name", ["softmax", "linear"])
def test_fused_paths_compile_for_any_length(name):
    def attend(q, k, v):
        return attention(q, k, v, attention=name, causal=True, backend="fused")

    torch.compiler.reset()
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="eager")
    for tokens in (9, 7):
        q, k, v, _ = wide(name, tokens=tokens)
        torch.testing.assert_close(compiled(q, k, v), attend(q, k, v))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, in jvp
@pytest.mark.parametrize("differentiated", ["q", "k", "v"])
def test_fused_softmax_leaves_forward_mode_to_the_equations(differentiated):
    q, k, v, options = wide("softmax", tokens=9)
    operands: dict[str, Any] = {"q": q, "k": k, "v": v}

    def attend(x):
        return attention(**(operands | options | {differentiated: x}), backend="fused")

    x = operands[differentiated]
    with pytest.raises(ValueError, match="no forward-mode derivative"):
        torch.func.jvp(attend, (x,), (x,))
    with forward_ad.dual_level(), pytest.raises(ValueError, match="no forward-mode derivative"):
        attend(forward_ad.make_dual(x, x))


@pytest.mark.parametrize("name", ["hyla", "softmax", "linear", "hyla_plus_softmax"])
def test_codes_of_chosen_pairs_are_those_of_all(name):
    q, k, v, options = operands(name)
    options |= {"causal": True, "bias": torch.randn(3, 5, 5)}
    pairs = torch.tensor([[0, 0], [4, 1], [-1, -2], [1, 4]])
    out, all_codes = attention(q, k, v, return_code=True, **options)
    same, codes = attention(q, k, v, return_code=pairs, **options)
    torch.testing.assert_close(same, out)
    torch.testing.assert_close(codes, all_codes[:, :, pairs[:, 0], pairs[:, 1]].transpose(1, 2))
    listed = [tuple(pair) for pair in pairs.tolist()]
    _, same_codes = attention(q, k, v, return_code=listed, **options)
    assert torch.equal(same_codes, codes)


def test_linear_attention_of_float16_keeps_its_range():
    q, k, v = (torch.full((1, 4096, 1, 32), x, dtype=torch.float16) for x in (1e-3, 8.0, 4.0))
    for causal in (False, True):
        out = attention(q, k, v, attention="linear", causal=causal, backend="fused")
        assert out.isfinite().all()


def test_linear_attention_leaves_no_trace_of_later_tokens():
    q, k, v, options = wide("linear", tokens=256)
    before = attention(q, k, v, causal=True, backend="fused", **options)
    k[:, -1], v[:, -1] = float("inf"), 1e30
    after = attention(q, k, v, causal=True, backend="fused", **options)
    assert torch.equal(before[:, :128], after[:, :128])


@pytest.mark.parametrize(("batch", "tokens"), [(0, 5), (2, 0), (0, 0)])
def test_linear_attention_of_nothing(batch, tokens):
    q = torch.zeros(batch, tokens, 2, 32)
    assert attention(q, q, q, attention="linear", causal=True, backend="fused").shape == q.shape


@pytest.mark.parametrize(
    "pairs",
    [
        *(torch.zeros(3, 3).long(), torch.zeros(2, 2)),
        *([], [(0, 0, 0)], [(0, 0), (1,)], [(0.5, 1)], [(True, True)], "self", None, 1),
    ],
    ids=str,
)
def test_pairs_are_checked(pairs):
    q, k, v, options = operands("hyla")
    with pytest.raises(ValueError, match=r"return_code must be True, False or .* \[P, 2\], got"):
        attention(q, k, v, return_code=pairs, **options)


@pytest.mark.parametrize("pairs", [[(4, -5), (0, 5)], torch.tensor([[4, -5], [0, 5]])], ids=str)
def test_pairs_that_do_not_exist_are_named(pairs):
    q, k, v, options = operands("hyla")
    with pytest.raises(ValueError, match=r"the pair \(0, 5\), but there are 5 queries and 5 keys"):
        attention(q, k, v, return_code=pairs, **options)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_are_computed_one_by_one(causal, dtype):
    q, k, v = (torch.randn(11, 3, 4) for _ in "qkv")
    out = packed_attention(q, k, v, torch.tensor([0, 4, 4, 11], dtype=dtype), causal=causal)
    for a, b in ((0, 4), (4, 11)):
        alone = attention(*(x[None, a:b] for x in (q, k, v)), causal=causal)
        torch.testing.assert_close(out[a:b], alone[0])


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        (torch.tensor([0, 4, 10]), "rise from 0 to the number of tokens, 11"),
        (torch.tensor([0, 9, 4, 11]), "rise from 0"),
        (torch.tensor([0.0, 11.0]), "integer starts"),
        (torch.tensor(11), "integer starts"),
        ([0, 11], "integer starts"),
    ],
)
def test_packed_sequences_are_checked(starts, message):
    q = torch.randn(11, 3, 4)
    with pytest.raises(ValueError, match=message):
        packed_attention(q, q, q, starts)
    with pytest.raises(ValueError, match="a sequence has 11 tokens"):
        packed_attention(q, q, q, torch.tensor([0, 11]), max_seqlen=8)
    with pytest.raises(ValueError, match="no deep value network"):
        packed_attention(q, q, q, torch.tensor([0, 11]), attention="hyla_deep")
    with pytest.raises(ValueError, match="tokens of all sequences"):
        packed_attention(q[None], q, q, torch.tensor([0, 11]))


def test_nested_tensors_are_sent_to_packed_attention():
    sequences = [torch.randn(length, 2, 4) for length in (3, 5)]
    nested: Any = torch.nested.nested_tensor(sequences, layout=torch.jagged)
    with pytest.raises(ValueError, match=r"^q is a nested tensor; .*packed_attention"):
        attention(nested, nested, nested)
    values = nested.values()
    out = packed_attention(values, values, values, nested.offsets())
    want = [attention(*3 * [one[None]])[0] for one in sequences]
    torch.testing.assert_close(out, torch.cat(want))
