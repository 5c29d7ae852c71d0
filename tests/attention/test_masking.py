"""What is masked is not there: padding, causality, rows with nothing to attend to."""

import pytest
import torch

from attention_inputs import FAMILY, operands
from hyla.attention import AttentionSpec, attention

every_preset = pytest.mark.parametrize("name", FAMILY)

REAL = {
    "left": [False, False, False, True, True, True, True],
    "right": [True, True, True, True, False, False, False],
    "interior": [True, True, False, False, True, False, True],
}


@pytest.mark.parametrize("side", REAL)
@every_preset
def test_content_of_padding_never_matters(name, side):
    real = torch.tensor(REAL[side])
    q, k, v, options = operands(name, queries=7)
    bias = torch.randn(3, 7, 7)
    garbage = torch.where(real[:, None, None], 0.0, 1e4 * torch.randn(2, 7, 3, 4))
    options |= {"mask": real[None, None, None, :], "bias": bias, "return_code": True}

    out, code = attention(q, k, v, **options)
    again, code_again = attention(q + garbage, k + garbage, v - garbage, **options)
    assert torch.equal(out[:, real], again[:, real])
    assert torch.equal(code[:, :, real], code_again[:, :, real])
    assert (code_again[..., ~real] == 0).all()


@pytest.mark.parametrize("side", REAL)
@every_preset
def test_real_positions_see_what_they_would_see_without_the_padding(name, side):
    real = torch.tensor(REAL[side])
    q, k, v, options = operands(name, queries=7, dtype=torch.float64)
    padded = attention(q, k, v, mask=real[None, None, None, :], **options)
    short = attention(q[:, real], k[:, real], v[:, real], **options)
    torch.testing.assert_close(padded[:, real], short)


@every_preset
def test_no_gradient_flows_to_padding(name):
    real = torch.tensor(REAL["interior"])
    q, k, v, options = operands(name, queries=7, requires_grad=True)
    out = attention(q, k, v, mask=real[None, None, None, :], **options)
    out[:, real].square().sum().backward()
    for x in (q, k, v):
        assert (x.grad[:, ~real] == 0).all()
        assert x.grad[:, real].abs().sum() > 0
    assert k.grad.isfinite().all()


@every_preset
def test_a_row_without_keys_gives_zero_and_finite_gradients(name):
    q, k, v, options = operands(name, requires_grad=True)
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2] = False
    out, code = attention(q, k, v, mask=mask, return_code=True, **options)
    out.square().sum().backward()
    assert (out[:, 2] == 0).all()
    assert (code[:, :, 2] == 0).all()
    assert (q.grad[:, 2] == 0).all()
    for x in (q, k, v):
        assert x.grad.isfinite().all()
        assert x.grad.abs().sum() > 0


@every_preset
def test_everything_masked(name):
    q, k, v, options = operands(name, requires_grad=True)
    out = attention(q, k, v, mask=torch.tensor(False), **options)
    out.sum().backward()
    assert (out == 0).all()
    assert not any(x.grad.any() for x in (q, k, v))


@every_preset
def test_causal_by_gradients(name):
    q, k, v, options = operands(name, queries=4, requires_grad=True)
    out = attention(q, k, v, causal=True, **options)
    for query in range(4):
        gradients = torch.autograd.grad(out[:, query].square().sum(), (q, k, v), retain_graph=True)
        for_q, for_k, for_v = (g.abs().sum(dim=(0, 2, 3)) for g in gradients)
        assert (for_q[:query] == 0).all()
        assert (for_q[query + 1 :] == 0).all()
        assert (for_k[query + 1 :] == 0).all()
        assert (for_v[query + 1 :] == 0).all()
        assert (for_v[: query + 1] > 0).any()


def test_causal_with_a_mask_is_both():
    q, k, v, options = operands("hyla")
    mask = torch.rand(2, 1, 5, 5) > 0.4
    both = mask & torch.ones(5, 5, dtype=torch.bool).tril()
    want = attention(q, k, v, mask=both, **options)
    torch.testing.assert_close(attention(q, k, v, mask=mask, causal=True, **options), want)


@pytest.mark.parametrize(("queries", "keys"), [(2, 5), (5, 2), (1, 4)])
def test_causal_counts_from_the_end_when_lengths_differ(queries, keys):
    q, k, v, options = operands("linear", queries=queries, keys=keys)
    _, code = attention(q, k, v, causal=True, return_code=True, **options)
    seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    assert torch.equal(code[0, 0] != 0, seen)


@every_preset
def test_cross_attention_of_other_length_and_value_size(name):
    q, k, v, options = operands(name, queries=3, keys=6, size=2, value_size=5)
    out, code = attention(q, k, v, return_code=True, **options)
    assert out.shape == (2, 3, 3, 5)
    assert code.shape == (2, 3, 3, 6)
    alone = torch.cat([attention(q[:, [i]], k, v, **options) for i in range(3)], dim=1)
    torch.testing.assert_close(out, alone)


@every_preset
def test_one_token_and_one_head(name):
    q, k, v, options = operands(name, queries=1, heads=1, requires_grad=True)
    out, code = attention(q, k, v, causal=True, return_code=True, **options)
    out.square().sum().backward()
    assert torch.isfinite(out).all()
    assert q.grad.isfinite().all()
    if "softmax" in name and name != "hyla_plus_softmax":
        assert (code == 1).all()


@pytest.mark.parametrize("empty", [{"batch": 0}, {"queries": 0, "keys": 3}, {"keys": 0}])
@every_preset
def test_nothing_in_nothing_out(name, empty):
    q, k, v, options = operands(name, requires_grad=True, **empty)
    out = attention(q, k, v, **options)
    assert out.shape == (*q.shape[:3], 4)
    assert (out == 0).all()
    out.sum().backward()
    assert q.grad.shape == q.shape


@pytest.mark.parametrize("name", sorted(FAMILY))
def test_not_even_a_nan_leaves_the_padding(name):
    q, k, v, options = operands(name, queries=5)
    real = torch.tensor([True, True, False, True, False])
    options["mask"] = real[None, None, None]
    want = attention(q, k, v, **options)
    hole = torch.where(real, 0.0, float("nan"))[:, None, None]
    torch.testing.assert_close(attention(q, k + hole, v + hole, **options), want, rtol=0, atol=0)


@pytest.mark.parametrize("rows", [1, 5], ids=["chunks", "whole"])
@every_preset
def test_not_even_a_nan_comes_from_a_later_token(name, rows, monkeypatch):
    monkeypatch.setattr("hyla.attention.api.queries_per_chunk", lambda *_: rows)
    q, k, v, options = operands(name, requires_grad=True)
    want = attention(q, k, v, causal=True, **options)[:, :3]
    (wanted,) = torch.autograd.grad(want.square().sum(), q)
    hole = torch.tensor([0.0, 0.0, 0.0, float("nan"), 0.0])[:, None, None]
    for to_k, to_v in ((hole, hole), (hole, 0.0), (0.0, hole)):
        out = attention(q, k + to_k, v + to_v, causal=True, **options)
        torch.testing.assert_close(out[:, :3], want, rtol=0, atol=0)
        assert out[:, 3:].isnan().all()  # who sees it is told
        (gradient,) = torch.autograd.grad(out[:, :3].square().sum(), q)
        torch.testing.assert_close(gradient[:, :3], wanted[:, :3], rtol=0, atol=0)


@pytest.mark.parametrize("causal", [False, True])
@every_preset
def test_a_bias_of_minus_infinity_masks_the_pair(name, causal):
    q, k, v, options = operands(name, requires_grad=True)
    mask = torch.rand(2, 3, 5, 5) > 0.4
    mask[:, :, 2] = False  # a row without any key
    finite = torch.randn(2, 3, 5, 5)
    bias = finite.masked_fill(~mask, -torch.inf).requires_grad_()
    options |= {"causal": causal, "return_code": True}
    want, wanted_code = attention(q, k, v, bias=finite, mask=mask, **options)
    out, code = attention(q, k, v, bias=bias, **options)
    torch.testing.assert_close((out, code), (want, wanted_code), rtol=0, atol=0)
    wanted = torch.autograd.grad(want.square().sum(), (q, k, v))
    *gradients, of_bias = torch.autograd.grad(out.square().sum(), (q, k, v, bias))
    torch.testing.assert_close(tuple(gradients), wanted, rtol=0, atol=0)
    assert of_bias.isfinite().all()
    assert (of_bias[~mask] == 0).all()
    pairs = [(0, 0), (2, 1), (4, 3)]
    options["return_code"] = pairs
    of_pairs = attention(q, k, v, bias=bias, **options)[1]
    torch.testing.assert_close(of_pairs, torch.stack([code[:, :, i, j] for i, j in pairs], 1))


@pytest.mark.parametrize(
    "function",
    [
        lambda scores, mask, eps: scores.softmax(dim=-1),
        lambda scores, mask, eps: scores / (scores.norm(dim=-3, keepdim=True) + eps),
        lambda scores, mask, eps: scores - scores.amax(dim=-1, keepdim=True),
    ],
    ids=["softmax", "unit length", "maximum"],
)
@pytest.mark.parametrize("before", [(), ("rms_head",)], ids=["alone", "after RMSHead"])
def test_a_normalisation_of_ones_own_that_ignores_the_mask(function, before):
    spec = AttentionSpec(normalisation=(*before, function), value="linear")
    q, k, v, _ = operands("hyla", requires_grad=True)
    out = attention(q, k, v, attention=spec, causal=True)
    for tokens in range(1, 6):
        seen = [x[:, :tokens] for x in (q, k, v)]
        alone = attention(*seen, attention=spec, causal=True)
        torch.testing.assert_close(out[:, :tokens], alone)
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2] = False
    out = attention(q, k, v, attention=spec, mask=mask)
    assert (out[:, 2] == 0).all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k, v)))
