"""The layer's own ways to show and change its code: with masks, under vmap, compiled."""

import pytest
import torch
from torch.func import functional_call
from torch.utils._pytree import tree_map

from attention_inputs import FAMILY
from hyla.nn import MultiHeadAttention

LISTED = [(-1, -1), (-1, 0), (2, 1)]
PAIRS = torch.tensor(LISTED)


def layer(attention: str = "hyla", **options) -> MultiHeadAttention:
    return MultiHeadAttention(8, 4, attention=attention, **options).eval()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("attention", sorted(FAMILY))
def test_codes_of_pairs_are_picked_from_the_code_of_all(attention, causal, masked):
    attend, x = layer(attention), torch.randn(2, 5, 8)
    options = {
        "causal": causal,
        "bias": torch.randn(1, 4, 5, 5),
        "mask": torch.rand(2, 1, 5, 5) > 0.3 if masked else None,
    }
    out, code = attend(x, **options, return_code=True)
    same, codes = attend(x, **options, return_code=PAIRS)
    torch.testing.assert_close(codes, code[:, :, PAIRS[:, 0], PAIRS[:, 1]].transpose(1, 2))
    assert torch.equal(same, out)


def test_fewer_queries_than_keys():
    attend, x = layer("softmax"), torch.randn(2, 5, 8)
    _, full = attend(x, causal=True, return_code=PAIRS[:2])
    _, last = attend(x[:, -1:], x, causal=True, return_code=PAIRS[:2])
    torch.testing.assert_close(last, full)


def test_dropout_is_in_the_code():
    attend, x = layer(dropout=0.5).train(), torch.randn(2, 5, 8)
    noise = torch.rand(5, 5)
    _, code = attend(x, dropout_noise=noise, return_code=True)
    _, codes = attend(x, dropout_noise=noise, return_code=PAIRS)
    torch.testing.assert_close(codes, code[:, :, PAIRS[:, 0], PAIRS[:, 1]].transpose(1, 2))


@pytest.mark.parametrize("pairs", [PAIRS, LISTED], ids=["tensor", "list"])
def test_the_edited_code_is_returned(pairs):
    attend, x = layer(), torch.randn(2, 5, 8)
    _, code = attend(x, return_code=True, edit_code=lambda code: 2 * code)
    _, codes = attend(x, return_code=pairs, edit_code=lambda code: 2 * code)
    _, own = attend(x, return_code=True)
    torch.testing.assert_close(code, 2 * own)
    torch.testing.assert_close(codes, code[:, :, PAIRS[:, 0], PAIRS[:, 1]].transpose(1, 2))


def test_half_precision():
    attend, x = layer(), torch.randn(2, 5, 8)
    want, codes = attend(x, return_code=PAIRS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, half = attend(x, return_code=PAIRS)
        edited = attend(x, edit_code=lambda code: code)
    assert half.dtype == out.dtype == edited.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), codes, atol=0.1, rtol=0.1)
    torch.testing.assert_close(edited.float(), want, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("options", [{"return_code": PAIRS}, {"edit_code": torch.neg}])
def test_under_vmap(options):
    networks, x = [layer(), layer()], torch.randn(2, 3, 5, 8)
    stacked = {
        name: torch.stack([dict(n.named_parameters())[name] for n in networks])
        for name, _ in networks[0].named_parameters()
    }
    together = torch.vmap(lambda p, x: functional_call(networks[0], p, (x,), options))(stacked, x)
    for i, network in enumerate(networks):
        of_network = tree_map(lambda tensor, i=i: tensor[i], together)
        torch.testing.assert_close(of_network, network(x[i], **options))


@pytest.mark.integration
@pytest.mark.parametrize(
    "options", [{"return_code": PAIRS}, {"return_code": LISTED}, {"edit_code": torch.neg}]
)
def test_compiled_without_a_break(options):
    attend, x = layer(), torch.randn(2, 5, 8)
    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, **options), attend(x, **options))
