"""Tiny random models of several architectures, built from their configs without a network."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

transformers.logging.set_verbosity_error()

VOCABULARY = 40
_SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32,
}
_GROUPED = _SIZES | {"num_key_value_heads": 2, "head_dim": 4}
_TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _llama():
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**_GROUPED, **_TOKENS, attention_bias=True)
    )


def _gpt2():
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=4, n_positions=32, vocab_size=VOCABULARY, **_TOKENS
    )
    return transformers.GPT2LMHeadModel(config)


def _qwen3():
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**_GROUPED, **_TOKENS))


def _gemma2():
    # A window shorter than the sequences, and capped scores.
    config = transformers.Gemma2Config(**_GROUPED, **_TOKENS, sliding_window=4)
    return transformers.Gemma2ForCausalLM(config)


def _bert():
    return transformers.BertModel(transformers.BertConfig(**_SIZES, pad_token_id=0))


def _t5():
    config = transformers.T5Config(
        d_model=16,
        d_kv=4,
        d_ff=24,
        num_layers=2,
        num_heads=4,
        vocab_size=VOCABULARY,
    )
    config.decoder_start_token_id = 0
    return transformers.T5Model(config)


def _bart():
    # Its decoder has fewer heads than its encoder.
    config = transformers.BartConfig(
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        vocab_size=VOCABULARY,
        max_position_embeddings=32,
        decoder_start_token_id=2,
        forced_eos_token_id=2,
        **_TOKENS,
    )
    return transformers.BartModel(config)


def _neox():
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**_SIZES, **_TOKENS))


def _phi3():
    config = transformers.Phi3Config(**_SIZES, **_TOKENS, num_key_value_heads=2)
    return transformers.Phi3ForCausalLM(config)


ARCHITECTURES: dict[str, Callable[[], transformers.PreTrainedModel]] = {
    "llama": _llama,
    "gpt2": _gpt2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "bert": _bert,
    "t5": _t5,
    "bart": _bart,
    "gpt_neox": _neox,
    "phi3": _phi3,
}


def tiny_pretrained(name: str) -> transformers.PreTrainedModel:
    model = ARCHITECTURES[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases begin at zero, where mistakes do not show
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.mul_(8)  # else all tokens look alike, and attention is uniform
    return model


def tiny_inputs(model: transformers.PreTrainedModel, length: int = 9) -> dict[str, Tensor]:
    inputs = {"input_ids": torch.randint(3, VOCABULARY, (2, length))}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(3, VOCABULARY, (2, 5))
    return inputs


def save_pretrained(name: str, folder: Path) -> Path:
    """Save a tiny model with a tokenizer of single words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<s>", "</s>", "<unk>", "the", "cat", "dog", "sat", "ran", "on", "mat", "."]
    words += [f"word{i}" for i in range(VOCABULARY - len(words))]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    fast.pad_token = "<pad>"
    fast.save_pretrained(folder)
    tiny_pretrained(name).save_pretrained(folder)
    return folder
