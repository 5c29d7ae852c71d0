"""Masks of models that write them in ways of their own, under "hyla"."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM, LlamaConfig, NllbMoeConfig  # noqa: E402

from hyla.attention import PRESETS, attention  # noqa: E402
from hyla.integrations.transformers import register, register_attention  # noqa: E402
from hyla.integrations.transformers.arguments import read_pairs  # noqa: E402
from hyla.integrations.transformers.presets import attention_function  # noqa: E402

LENGTH = 6
CAUSAL = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
MASKED_BY = [-100.0, -1e3, -1e4, torch.finfo(torch.float16).min, -1e9, -3.4e38, float("-inf")]


@pytest.fixture(scope="module", autouse=True)
def _registered():
    register()


OPERANDS = torch.randn(3, 2, 4, LENGTH, 8, generator=torch.Generator().manual_seed(0)).unbind(0)
MODULE = nn.Module()
HYLA = attention_function("hyla", PRESETS["hyla"])


def attend(mask: Tensor | None, **more) -> Tensor:
    return HYLA(MODULE, *OPERANDS, mask, **more)[0]


@pytest.mark.parametrize("value", MASKED_BY)
@torch.no_grad()
def test_what_everybody_means_as_masked_is_masked(value):
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=64, num_attention_heads=4, **sizes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="hyla").eval()
    tokens = torch.randint(64, (2, LENGTH))
    added = torch.zeros(2, 1, LENGTH, LENGTH).masked_fill(~CAUSAL, value)
    torch.testing.assert_close(model(tokens, attention_mask=added).logits, model(tokens).logits)


def test_a_mask_on_top_of_a_bias_as_in_swin():
    bias = torch.randn(1, 4, LENGTH, LENGTH)
    added = bias + torch.zeros_like(bias).masked_fill(~CAUSAL, -100)
    expected = attend(CAUSAL, position_bias=bias)
    torch.testing.assert_close(attend(added), expected)


def test_a_bias_alone_stays_a_bias():
    bias = -torch.arange(LENGTH).float().view(1, 1, 1, LENGTH)  # as ALiBi's
    everything = torch.ones_like(CAUSAL)
    torch.testing.assert_close(attend(bias), attend(everything, position_bias=bias))
    assert not torch.allclose(attend(bias), attend(everything))


def test_one_constant_for_all_that_attend_is_no_bias():
    added = torch.ones(CAUSAL.shape).masked_fill(~CAUSAL, -1e9)  # EoMT's
    torch.testing.assert_close(attend(added), attend(CAUSAL))


def test_causality_in_numbers_reaches_the_kernels_as_such():
    added = torch.zeros(CAUSAL.shape).masked_fill(~CAUSAL, -1e4)
    q = torch.randn(1, 4, LENGTH, 8)
    for _ in range(2):  # the second time from memory
        pairs = read_pairs(nn.Module(), q, q, added, is_causal=None)
        assert pairs.causal
        assert pairs.bias is None
        assert pairs.mask is not None
        assert pairs.mask.shape == (1, 1, 1, LENGTH)
    added[..., 0] = -1e4
    assert not read_pairs(nn.Module(), q, q, added, is_causal=None).mask[..., 0].any()


def test_what_may_be_a_bias_or_a_mask_is_refused():
    slopes = -torch.arange(60.0).view(1, 1, 1, 60)
    q = torch.randn(1, 4, 60, 8)
    with pytest.raises(ValueError, match="between -70 and -30, which can be biases"):
        read_pairs(nn.Module(), q, q, slopes, is_causal=None)
    # By themselves, biases are biases whatever their size.
    read_pairs(nn.Module(), q, q, None, is_causal=False, position_bias=slopes)


def test_ones_and_zeros_are_refused_as_numbers():
    with pytest.raises(ValueError, match="zeros and ones is added to scores and would mask noth"):
        attend(CAUSAL.float())
    with pytest.raises(ValueError, match=r"mask of torch\.int64 can mean 1 = attend or a number"):
        attend(CAUSAL.long())


def test_additive_masks_compile():
    added = torch.zeros(CAUSAL.shape).masked_fill(~CAUSAL, -100)
    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(added), attend(added))


@torch.no_grad()
@pytest.mark.parametrize("generates_first", [False, True])
def test_causality_does_not_hang_on_a_flag_that_is_wrong(generates_first):
    torch.manual_seed(0)
    config = NllbMoeConfig(
        vocab_size=64,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        num_experts=2,
        expert_capacity=64,
    )
    model = transformers.NllbMoeForConditionalGeneration._from_config(
        config, attn_implementation="hyla"
    ).eval()
    tokens = torch.randint(3, 64, (2, LENGTH))
    changed = torch.cat((tokens[:, :-1], (tokens[:, -1:] + 1) % 64), dim=1)
    if generates_first:  # one query at a time: nothing that it could see ahead of itself
        model.generate(tokens, max_new_tokens=2)
    for _ in range(2):
        first, second = (model(tokens, decoder_input_ids=x).logits for x in (tokens, changed))
        torch.testing.assert_close(first[:, :-1], second[:, :-1], rtol=0, atol=0)


@torch.no_grad()
def test_masks_are_spelled_out_until_flags_have_proven_true():
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config = LlamaConfig(vocab_size=64, num_attention_heads=4, **sizes)
    seen = []

    def spy(module, query, key, value, attention_mask, *, is_causal, **more):
        seen.append((attention_mask is None, is_causal))
        out = attention(*(x.transpose(1, 2) for x in (query, key, value)), causal=True)
        return out, None

    register_attention("spy", spy)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="spy").eval()
    tokens = torch.randint(64, (1, LENGTH))
    for _ in range(2):
        model(tokens, use_cache=False)
    assert seen == [(False, None), (True, True)]
    seen.clear()
    model.set_attn_implementation("eager")
    model.model.layers[0].self_attn.is_causal = False  # it no longer tells the truth
    model.set_attn_implementation("spy")
    for _ in range(2):
        model(tokens, use_cache=False)
    assert [missing for missing, _ in seen] == [False, False]
