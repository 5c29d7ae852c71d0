"""HYLA and its family as `attn_implementation` of transformers' models, on tiny configs."""

import copy
import functools
import gc
import inspect
import json
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")

from transformers import (  # noqa: E402
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    BloomConfig,
    CodeGenConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MptConfig,
    OPTConfig,
    Qwen2Config,
    Qwen3Config,
    T5Config,
)

from hyla.attention import PRESETS, AttentionSpec, attention, resolve_spec  # noqa: E402
from hyla.integrations.transformers import (  # noqa: E402
    InterfaceIgnoredError,
    interface,
    register,
)
from hyla.integrations.transformers.presets import (  # noqa: E402
    attention_function,
    registered_specs,
)

# Softmax through our own function: as a tuple it is not the preset that goes to PyTorch's kernels.
BY_EQUATION = "softmax_by_equation"
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED: dict[str, Any] = SIZES | {"num_key_value_heads": 2}
TYPES = ["sliding_attention", "full_attention"]
DECODERS = {
    "llama": lambda: LlamaConfig(**GROUPED),
    "qwen2": lambda: Qwen2Config(**GROUPED),
    "qwen3": lambda: Qwen3Config(**GROUPED, head_dim=8),
    "mistral": lambda: MistralConfig(**GROUPED, sliding_window=4),
    "gemma2": lambda: Gemma2Config(
        **GROUPED, head_dim=4, sliding_window=4, layer_types=TYPES, attn_logit_softcapping=0.5
    ),
    "gemma3": lambda: Gemma3TextConfig(**GROUPED, head_dim=4, sliding_window=4, layer_types=TYPES),
    "gpt2": lambda: GPT2Config(
        vocab_size=64, n_embd=16, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2
    ),
    "opt": lambda: OPTConfig(
        **{k: v for k, v in SIZES.items() if k != "intermediate_size"},
        ffn_dim=32,
        word_embed_proj_dim=16,
        max_position_embeddings=32,
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _registered():
    register()
    register({BY_EQUATION: AttentionSpec(normalisation=("softmax",), value="linear")})


def decoder(architecture: str, name: str) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(DECODERS[architecture](), attn_implementation=name)
    with torch.no_grad():  # the usual initialisation is so small that attention hardly matters
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.4)
    return model.eval()


def tokens(batch: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(3, 64, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", [BY_EQUATION, "softmax"])
@pytest.mark.parametrize("architecture", DECODERS)
@torch.no_grad()
def test_our_softmax_is_the_models_own(architecture, name):
    x = tokens()
    padding = torch.ones_like(x)
    padding[1, :3] = 0  # on the left
    expected = decoder(architecture, "eager")(x, attention_mask=padding).logits
    got = decoder(architecture, name)(x, attention_mask=padding).logits
    real = padding.bool()
    torch.testing.assert_close(got[real], expected[real], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [BY_EQUATION, "softmax"])
@pytest.mark.parametrize("given", ["no mask", "ones", "padding"])
@torch.no_grad()
def test_packed_sequences_are_what_they_are_to_the_models_own(name, given):
    x = tokens()
    mask = None if given == "no mask" else torch.ones_like(x)
    if given == "padding":
        mask[1, -2:] = 0
    packed = {"position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]]), "attention_mask": mask}
    for use_cache in (False, True):
        expected = decoder("llama", "eager")(x, use_cache=use_cache, **packed).logits
        got = decoder("llama", name)(x, use_cache=use_cache, **packed).logits
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["eager", "hyla"])
@pytest.mark.parametrize("masked", [False, True])
def test_packed_sequences_are_kept_apart_only_without_a_mask(name, masked):
    model, x = decoder("llama", name), tokens(batch=16)
    embedded = model.get_input_embeddings()(x).detach().requires_grad_()
    out = model(
        inputs_embeds=embedded,
        position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]]),
        attention_mask=torch.ones_like(x) if masked else None,
        use_cache=False,
    ).logits
    (gradient,) = torch.autograd.grad(out[:, -1].sum(), embedded)
    seen = gradient.abs().amax((0, 2)) > 0
    assert seen.tolist() == [masked] * 4 + [True] * 5


@pytest.mark.parametrize("name", ["hyla", "linear", "hyla_plus_softmax"])
@pytest.mark.parametrize("architecture", DECODERS)
def test_nothing_of_the_future_is_seen(architecture, name):
    model = decoder(architecture, name)
    embedded = model.get_input_embeddings()(tokens(batch=16)).detach().requires_grad_()
    out = model(inputs_embeds=embedded).logits
    (gradient,) = torch.autograd.grad(out[:, 4].sum(), embedded)
    seen = gradient.abs().amax((0, 2)) > 0
    assert seen[1:].tolist() == [True] * 4 + [False] * 4


@pytest.mark.parametrize("architecture", ["mistral", "gemma2", "gemma3"])
def test_a_sliding_window_is_kept(architecture):
    model = decoder(architecture, "hyla")
    del model.model.layers[1:]  # several layers would see further than their windows
    model.config.num_hidden_layers = 1
    embedded = model.get_input_embeddings()(tokens(batch=16)).detach().requires_grad_()
    out = model(inputs_embeds=embedded, use_cache=False).logits
    (gradient,) = torch.autograd.grad(out[:, 8].sum(), embedded)
    seen = gradient.abs().amax((0, 2)) > 0
    assert seen.tolist() == [False] * 5 + [True] * 4


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma2"])
@torch.no_grad()
def test_what_stands_in_the_padding_does_not_matter(architecture, side):
    model = decoder(architecture, "hyla")
    x, padding = tokens(), torch.ones(2, 9, dtype=torch.long)
    hidden = slice(0, 3) if side == "left" else slice(6, 9)
    padding[1, hidden] = 0
    first = model(x, attention_mask=padding).logits
    x[1, hidden] = 7
    second = model(x, attention_mask=padding).logits
    real = padding.bool()
    torch.testing.assert_close(first[real], second[real], rtol=0, atol=0)


@pytest.mark.parametrize("preset", [name for name, s in PRESETS.items() if s.value != "deep"])
def test_grouped_queries_share_keys_and_values(preset):
    q, k, v = torch.randn(2, 6, 5, 4), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4)
    attend = attention_function(preset, PRESETS[preset])
    module: Any = nn.Module()
    module.num_key_value_groups = 2
    out, weights = attend(module, q, k, v, None, scaling=0.3)
    expected = attention(
        q.transpose(1, 2),
        k.repeat_interleave(2, dim=1).transpose(1, 2),
        v.repeat_interleave(2, dim=1).transpose(1, 2),
        attention=preset,
        causal=True,
        scale=0.3,
    )
    assert weights is None
    torch.testing.assert_close(out, expected)


@torch.no_grad()
def test_attention_that_looks_both_ways():
    config = BertConfig(**{**SIZES, "max_position_embeddings": 16})
    x, padding = tokens(), torch.ones(2, 9, dtype=torch.long)
    padding[1, 6:] = 0
    outputs = {}
    for name in ("eager", BY_EQUATION, "hyla"):
        torch.manual_seed(0)
        model = AutoModel.from_config(copy.deepcopy(config), attn_implementation=name).eval()
        outputs[name] = model(x, attention_mask=padding).last_hidden_state
    torch.testing.assert_close(outputs[BY_EQUATION], outputs["eager"], rtol=1e-4, atol=1e-5)
    assert (outputs["hyla"] - outputs["eager"]).abs().max() > 1e-3


@torch.no_grad()
def test_position_biases_are_added():
    config = T5Config(
        vocab_size=64, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4, pad_token_id=0
    )
    x, outputs = tokens(), {}
    for name in ("eager", BY_EQUATION):
        torch.manual_seed(0)
        model = transformers.T5ForConditionalGeneration._from_config(
            copy.deepcopy(config), attn_implementation=name
        ).eval()
        outputs[name] = model(input_ids=x, decoder_input_ids=x).logits
    torch.testing.assert_close(outputs[BY_EQUATION], outputs["eager"], rtol=1e-4, atol=1e-4)


def test_masks_that_are_added_to_scores():
    attend = attention_function("hyla", PRESETS["hyla"])
    q, k, v = torch.randn(3, 1, 4, 5, 4).unbind(0)
    allowed = torch.rand(1, 1, 5, 5) > 0.4
    added = torch.zeros(1, 1, 5, 5).masked_fill(~allowed, torch.finfo(torch.float32).min)
    boolean, _ = attend(nn.Module(), q, k, v, allowed)
    additive, _ = attend(nn.Module(), q, k, v, added)
    torch.testing.assert_close(boolean, additive)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_mask_may_change_between_passes(mode):
    attend = attention_function("hyla", PRESETS["hyla"])
    q, k, v = torch.randn(3, 2, 4, 5, 4).unbind(0)
    with mode():
        mask = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
        attend(nn.Module(), q, k, v, mask)
        mask[:, :, 2:, 1] = False
        got, _ = attend(nn.Module(), q, k, v, mask)
        want, _ = attend(nn.Module(), q, k, v, mask.clone())
    assert torch.equal(got, want)


def test_a_mask_is_not_kept_after_its_pass():
    attend = attention_function("hyla", PRESETS["hyla"])
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    attend(nn.Module(), *torch.randn(3, 2, 4, 5, 4).unbind(0), mask)
    kept = weakref.ref(mask)
    del mask
    gc.collect()
    assert kept() is None


def test_dropout_happens_in_training_alone():
    config = LlamaConfig(**GROUPED, attention_dropout=0.5)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="hyla")
    x = tokens()
    assert not torch.equal(model.train()(x).logits, model(x).logits)
    assert torch.equal(model.eval()(x).logits, model(x).logits)


def test_dropout_scales_half_precision_as_it_does_float32():
    attend = attention_function("linear", PRESETS["linear"])
    torch.manual_seed(0)
    ones = torch.ones(1, 4, 64, 1)
    wide, _ = attend(nn.Module(), ones, ones, ones, None, dropout=0.1, is_causal=False)
    torch.manual_seed(0)
    ones = ones.bfloat16()
    half, _ = attend(nn.Module(), ones, ones, ones, None, dropout=0.1, is_causal=False)
    torch.testing.assert_close(half, wide.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "mistral", "gemma2"])
@torch.no_grad()
def test_output_attentions_are_the_latent_codes(architecture):
    x = tokens()
    expected = decoder(architecture, "eager")(x, output_attentions=True).attentions
    got = decoder(architecture, "softmax")(x, output_attentions=True).attentions
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    for code in decoder(architecture, "hyla")(x, output_attentions=True).attentions:
        mean_square = code.square().mean(dim=1)  # RMSHead gives a code unit scale
        seen = mean_square > 0
        assert not seen.triu(1).any()
        torch.testing.assert_close(mean_square[seen], torch.ones(seen.sum()), rtol=0, atol=0.05)


# --- what cannot be honoured ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hyla", "softmax"])
def test_attention_sinks_are_refused(name):
    config = GptOssConfig(
        **GROUPED, head_dim=4, num_local_experts=2, num_experts_per_tok=1, layer_types=TYPES
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation=name)
    with pytest.raises(ValueError, match=f"'{name}' cannot honour s_aux: attention sinks"):
        model(tokens())


def test_a_sliding_window_without_its_mask_is_refused():
    attend = attention_function("hyla", PRESETS["hyla"])
    q, k, v = torch.randn(3, 1, 4, 9, 4).unbind(0)
    with pytest.raises(ValueError, match="sliding window of 4 over 9 keys but gives no mask"):
        attend(nn.Module(), q, k, v, None, sliding_window=4)


@torch.no_grad()
def test_names_with_changes_are_registered_when_they_are_asked_for(tmp_path):
    """By `register()` alone: `hyla.rms4` is a name, and is found again on loading."""
    for name in ("hyla.rms4", "hyla.plain16", "softmax.rms4", "hyla.silu.rms2"):
        registered_specs.pop(name, None)
        got = decoder("llama", name)(tokens()).logits
        assert registered_specs[name] == resolve_spec(name)
        register({"mine": resolve_spec(name)})
        torch.testing.assert_close(got, decoder("llama", "mine")(tokens()).logits)
        assert not torch.equal(got, decoder("llama", name.partition(".")[0])(tokens()).logits)
    model = decoder("llama", "hyla")
    model.set_attn_implementation("hyla.rms8")
    model.save_pretrained(tmp_path)
    registered_specs.pop("hyla.rms8")  # as in another process
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config._attn_implementation == "hyla.rms8"
    torch.testing.assert_close(loaded(tokens()).logits, model(tokens()).logits)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hyla.rmss4", "choose a φ from .* or an output from .*'hyla.rms4'"),
        ("hyla.rms4.plain2", "names two of a kind"),
        ("hyla_deep.rms4", "the deep value network has weights of its own"),
        ("hyla_deep", "the deep value network has weights of its own"),
    ],
)
def test_names_that_say_nothing_are_answered(name: str, reason: str):
    with pytest.raises(ValueError, match=reason):
        decoder("llama", name)


def test_the_deep_value_network_is_refused():
    with pytest.raises(ValueError, match="the deep value network has weights of its own"):
        register({"hyla_deep": PRESETS["hyla_deep"]})


IGNORANT = {
    "bloom": lambda: BloomConfig(vocab_size=64, hidden_size=16, n_layer=2, n_head=4),
    "mpt": lambda: MptConfig(vocab_size=64, d_model=16, n_layers=2, n_heads=4),
    "gpt_neo": lambda: GPTNeoConfig(
        vocab_size=64, hidden_size=16, num_layers=2, num_heads=4, attention_types=[[["global"], 2]]
    ),
    "codegen": lambda: CodeGenConfig(
        vocab_size=64,
        n_embd=16,
        n_layer=2,
        n_head=4,
        rotary_dim=4,
        bos_token_id=1,
        eos_token_id=2,
    ),
}


@pytest.mark.parametrize("architecture", IGNORANT)
def test_architectures_without_the_interface_are_refused(architecture):
    with pytest.raises(InterfaceIgnoredError, match="does not use transformers' attention interf"):
        AutoModelForCausalLM.from_config(IGNORANT[architecture](), attn_implementation="hyla")


class Deaf(transformers.PreTrainedModel):
    """Takes any name and calls nothing: only a forward pass can tell."""

    config_class = LlamaConfig

    def __init__(self, config, inner=None):
        super().__init__(config)
        self.layer = nn.Linear(2, 2)
        self.inner = inner
        self.post_init()

    def forward(self, x):
        return self.layer(x) if self.inner is None else self.inner(x).logits


def test_the_first_forward_pass_proves_the_call(monkeypatch):
    monkeypatch.setattr(Deaf, "_can_set_attn_implementation", classmethod(lambda cls: True))
    deaf = Deaf._from_config(LlamaConfig(**GROUPED), attn_implementation="hyla")
    for _ in range(2):
        with pytest.raises(InterfaceIgnoredError, match=r"Deaf does not call .*'hyla'"):
            deaf(torch.randn(1, 2))
    deaf.set_attn_implementation("eager")
    deaf(torch.randn(1, 2))


def test_an_error_of_the_model_is_not_hidden(monkeypatch):
    monkeypatch.setattr(Deaf, "_can_set_attn_implementation", classmethod(lambda cls: True))
    deaf = Deaf._from_config(LlamaConfig(**GROUPED), attn_implementation="hyla")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        deaf(torch.randn(1, 3))
    # Nothing of the failed pass is left behind.
    decoder("llama", "hyla")(tokens())
    with pytest.raises(InterfaceIgnoredError):
        deaf(torch.randn(1, 2))


def test_a_part_without_attention_is_no_reason_to_refuse(monkeypatch):
    monkeypatch.setattr(Deaf, "_can_set_attn_implementation", classmethod(lambda cls: True))
    config = LlamaConfig(**GROUPED)
    inner = AutoModelForCausalLM.from_config(config, attn_implementation="hyla")
    outer = Deaf._from_config(config, attn_implementation="hyla", inner=inner)
    outer(tokens())
    assert not inner._forward_hooks  # proven once, it costs nothing any more
    assert not outer._forward_hooks


def test_names_are_followed_beside_others_who_wrap_the_same_method(monkeypatch):
    method = "get_correct_attn_implementation"
    original = inspect.unwrap(getattr(transformers.PreTrainedModel, method))
    others = functools.wraps(original)(lambda *args, **more: original(*args, **more))
    monkeypatch.setattr(transformers.PreTrainedModel, method, others)
    monkeypatch.setattr(interface, "registered", set())  # as if this were the first registration
    register()
    with pytest.raises(InterfaceIgnoredError):
        AutoModelForCausalLM.from_config(IGNORANT["bloom"](), attn_implementation="hyla")


def test_models_can_be_copied_and_pickled_before_they_are_called():
    model = decoder("llama", "hyla")
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(twin(tokens()).logits, model(tokens()).logits)


# --- names on disk -------------------------------------------------------------------------------


def test_the_name_is_applied_again_on_loading(tmp_path):
    model = decoder("llama", "hyla")
    model.save_pretrained(tmp_path / "first")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "first")
    assert loaded.config._attn_implementation == "hyla"
    torch.testing.assert_close(loaded(tokens()).logits, model(tokens()).logits)
    loaded.save_pretrained(tmp_path / "second")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "second")
    assert again.config._attn_implementation == "hyla"


def test_a_name_that_was_given_up_is_forgotten(tmp_path):
    model = decoder("llama", "hyla")
    model.set_attn_implementation("sdpa")
    model.save_pretrained(tmp_path)
    assert "attn_implementation" not in json.loads((tmp_path / "config.json").read_text())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="linear")
    assert loaded.config._attn_implementation == "linear"


def test_switching_a_loaded_model():
    model = decoder("llama", "sdpa")
    own = model(tokens()).logits
    model.set_attn_implementation("hyla")
    assert (model(tokens()).logits - own).abs().max() > 1e-2
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(model(tokens()).logits, own)


# --- generation and compilation ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hyla", "linear", "softmax"])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma2"])
def test_generating_with_any_cache_gives_the_same(architecture, name):
    model = decoder(architecture, name)
    x, padding = tokens(), torch.ones(2, 9, dtype=torch.long)
    padding[1, :2] = 0
    options = {"attention_mask": padding, "max_new_tokens": 6, "do_sample": False}
    plain = model.generate(x, use_cache=False, **options)
    assert torch.equal(plain, model.generate(x, **options))
    if architecture == "llama":
        static = model.generate(x, cache_implementation="static", disable_compile=True, **options)
        assert torch.equal(plain, static)


@torch.no_grad()
def test_compiled_whole_and_in_parts():
    x = tokens()
    expected = decoder("llama", "hyla")(x).logits
    whole = torch.compile(decoder("llama", "hyla"), backend="eager", fullgraph=True)
    torch.testing.assert_close(whole(x, use_cache=False).logits, expected)
    parts = decoder("llama", "hyla")
    for layer in parts.model.layers:
        layer.compile(backend="eager")
    torch.testing.assert_close(parts(x, use_cache=False).logits, expected)
