"""`verify`: whether a model attends as it should, in the words of its user."""

from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM, LlamaConfig, LongT5Config, T5Config  # noqa: E402

from hyla.attention import attention  # noqa: E402
from hyla.integrations.transformers import register, register_attention, verify  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def _registered():
    register()


def llama(name: str) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation=name)


@pytest.mark.parametrize("name", ["hyla", "linear", "softmax", "hyla_plus_softmax"])
def test_a_decoder_that_is_right(name):
    model = llama(name).train()
    result = verify(model)
    assert result.right
    assert {finding.verdict for finding in result.findings} == {"right"}
    assert str(result).startswith("LlamaForCausalLM: attends as it should\n")
    assert len(str(result).splitlines()) == 1 + len(result.findings)
    assert model.training  # and all else is as it was
    assert model.config._attn_implementation == name
    assert "eager" not in transformers.AttentionInterface._global_mapping


def test_sequence_to_sequence():
    config = T5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=4)
    model = transformers.T5ForConditionalGeneration._from_config(config, attn_implementation="hyla")
    result = verify(model)
    assert result.right
    asked = {finding.probe for finding in result.findings if finding.verdict == "right"}
    assert {"the future is not seen", "a cache changes nothing"} <= asked


def test_a_function_that_forgets_the_mask_is_found_out():
    def forgetful(module, query, key, value, attention_mask, **more):
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        return attention(*(x.transpose(1, 2) for x in (query, key, value))), None

    register_attention("forgetful", forgetful)
    result = verify(llama("forgetful"))
    wrong = {finding.probe for finding in result.findings if finding.verdict == "wrong"}
    assert {"the future is not seen", "padding on the left is not seen"} <= wrong
    assert "NOT RIGHT" in str(result)


def test_a_model_that_is_refused():
    config = LongT5Config(
        vocab_size=64, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=4, pad_token_id=0
    )
    model = transformers.LongT5ForConditionalGeneration._from_config(
        config, attn_implementation="hyla"
    )
    result = verify(model)
    assert not result.right
    assert [finding.verdict for finding in result.findings] == ["refused"]
    assert "LongT5LocalAttention" in str(result)


def test_inputs_of_ones_own():
    model = llama("hyla")
    tokens = torch.randint(64, (3, 12))
    assert verify(model, {"input_ids": tokens}).right


def test_a_model_without_our_attention_is_an_error():
    with pytest.raises(ValueError, match="attn_implementation='sdpa'; give it a registered name"):
        verify(llama("sdpa"))
