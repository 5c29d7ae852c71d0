"""`HylaForCausalLM`: our decoder among transformers' models."""

import dataclasses
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM  # noqa: E402

from hyla.integrations.transformers import (  # noqa: E402
    HylaConfig,
    HylaForCausalLM,
    HylaModel,
    register,
)
from hyla.nn import Transformer  # noqa: E402
from hyla.nn.generate import generate  # noqa: E402


def tiny(**changes) -> HylaConfig:
    sizes: dict[str, Any] = {
        "vocab_size": 50,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "max_position_embeddings": 16,
        "pad_token_id": 0,
    }
    return HylaConfig(**(sizes | changes))


def model(**changes) -> Any:
    torch.manual_seed(0)
    return HylaForCausalLM(tiny(**changes)).eval()


def tokens(length: int = 9) -> torch.Tensor:
    return torch.randint(3, 50, (2, length), generator=torch.Generator().manual_seed(1))


def test_the_defaults_are_the_papers():
    config = HylaConfig().to_transformer_config()
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(config).parameters())
    assert parameters == 35_299_328
    assert config.qk_dim // config.num_heads == 64


@pytest.mark.parametrize("attention", ["hyla", "softmax", "linear"])
@pytest.mark.parametrize(("tied", "key_heads"), [(True, None), (False, None), (True, 2)])
def test_save_and_load(tmp_path, attention, tied, key_heads):
    shape = {"tie_word_embeddings": tied, "num_key_value_heads": key_heads}
    saved = model(attention=attention, **shape)
    assert saved.transformer.blocks[0].attention.num_key_heads == (key_heads or 4)
    saved.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is HylaForCausalLM
    assert isinstance(AutoConfig.from_pretrained(tmp_path), HylaConfig)
    assert loaded.config.attention == attention
    torch.testing.assert_close(loaded(tokens()).logits, saved(tokens()).logits, rtol=0, atol=0)
    head, embedding = loaded.get_output_embeddings(), loaded.get_input_embeddings()
    assert (head.weight is embedding.weight) is tied
    base = AutoModel.from_pretrained(tmp_path)
    assert type(base) is HylaModel
    hidden = base(tokens()).last_hidden_state
    torch.testing.assert_close(base.transformer.head(hidden), saved(tokens()).logits)


def test_from_config_initialises_as_we_do():
    made = AutoModelForCausalLM.from_config(tiny())
    weight = made.transformer.blocks[0].feed_forward.up.weight
    assert 0.8 < weight.detach().std().item() * 4 < 1.2  # 1 / sqrt(16), not transformers' 0.02
    assert made.transformer.blocks[0].feed_forward.up.bias.abs().max() == 0


@pytest.mark.parametrize("key_heads", [None, 2])
def test_a_transformer_goes_there_and_back(key_heads):
    ours = Transformer(tiny(num_key_value_heads=key_heads).to_transformer_config()).eval()
    theirs = HylaForCausalLM.from_transformer(ours, eos_token_id=7).eval()
    assert theirs.config.eos_token_id == 7
    torch.testing.assert_close(theirs(tokens()).logits, ours(tokens()), rtol=0, atol=0)
    ours.load_state_dict(theirs.transformer.state_dict())


@pytest.mark.parametrize(("asked", "heads"), [({}, 4), ({"num_key_value_heads": 2}, 2)])
def test_other_tools_read_how_many_key_heads_there_are(asked, heads, tmp_path):
    config = tiny(**asked)
    config.save_pretrained(tmp_path)
    older = config.to_dict() | {"num_key_value_heads": asked.get("num_key_value_heads")}
    for read in (config, AutoConfig.from_pretrained(tmp_path), HylaConfig.from_dict(older)):
        assert getattr(read, "num_key_value_heads", None) == heads
        assert read.to_transformer_config() == config.to_transformer_config()


def test_key_heads_may_be_spelled_out_or_not():
    config = tiny().to_transformer_config()
    assert config.num_key_heads is None  # as in runs of earlier versions
    spelled_out = dataclasses.replace(config, num_key_heads=4)
    assert HylaConfig.from_transformer_config(spelled_out).to_transformer_config() == config


def test_what_a_hyla_config_cannot_say_is_refused():
    config = tiny().to_transformer_config()
    other = Transformer(dataclasses.replace(config, positions="t5"))
    with pytest.raises(ValueError, match="rotary positions"):
        HylaForCausalLM.from_transformer(other)


@pytest.mark.parametrize("key_heads", [None, 2])
@pytest.mark.parametrize("attention", ["hyla", "softmax", "linear"])
def test_generate_is_our_own(attention, key_heads):
    shape = {"num_key_value_heads": key_heads}
    m, x = model(attention=attention, eos_token_id=None, **shape), tokens()
    options = {"max_new_tokens": 6, "do_sample": False, "attention_mask": torch.ones_like(x)}
    expected = generate(m.transformer, x, max_new_tokens=6, temperature=0)
    assert torch.equal(m.generate(x, **options), expected)
    assert torch.equal(m.generate(x, use_cache=False, **options), expected)
    static = m.generate(x, cache_implementation="static", disable_compile=True, **options)
    assert torch.equal(static, expected)


def test_generate_with_padding_on_the_left():
    m, x = model(eos_token_id=None), tokens()
    padding = torch.ones_like(x)
    padding[1, :4] = 0
    together = m.generate(x, attention_mask=padding, max_new_tokens=5, do_sample=False)
    alone = m.generate(
        x[1:, 4:], attention_mask=torch.ones(1, 5), max_new_tokens=5, do_sample=False
    )
    assert torch.equal(together[1:, 4:], alone)


def test_gradient_checkpointing_changes_no_gradient():
    m, x = model().train(), tokens()
    gradients = []
    for enable in (m.gradient_checkpointing_disable, m.gradient_checkpointing_enable):
        enable()
        m.zero_grad()
        m(x, labels=x).loss.backward()
        gradients.append([p.grad.clone() for p in m.parameters()])
    assert m.gradient_checkpointing
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_gradient_checkpointing_goes_without_a_cache():
    m, x = model().train(), tokens()
    m.gradient_checkpointing_enable()
    out = m(x, labels=x, use_cache=True)
    assert out.past_key_values is None
    out.loss.backward()
    with pytest.raises(ValueError, match="recompute takes no cache"):
        m(x, past_key_values=transformers.DynamicCache())
    assert m.generate(x, max_new_tokens=2).shape == (x.shape[0], x.shape[1] + 2)  # no gradients


@pytest.mark.parametrize("which", [HylaModel, HylaForCausalLM])
def test_what_would_be_ignored_is_refused(which):
    m, x = which(tiny()).eval(), tokens(4)
    for name in ("output_attentions", "output_hidden_states"):
        m(x, **{name: False})
        with pytest.raises(ValueError, match=f"does not know {name}; .*record_codes"):
            m(x, **{name: True})
        with pytest.raises(ValueError, match=f"does not know {name}"):
            which(tiny(**{name: True}))(x)
    m(x, position_ids=torch.arange(4).expand(2, 4))
    padded = {"attention_mask": torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])}
    m(x, position_ids=torch.tensor([[0, 1, 2, 3], [1, 1, 0, 1]]), **padded)
    between = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 0]])
    m(x, position_ids=between.cumsum(1) - 1, attention_mask=between)


@pytest.mark.parametrize("which", [HylaModel, HylaForCausalLM])
@pytest.mark.parametrize(
    "mask",
    [
        None,
        torch.ones(2, 4).long(),
        torch.ones(2, 4).bool(),
        torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0]]),
    ],
    ids=["none", "ones", "boolean", "padded"],
)
def test_packed_sequences_are_refused_whatever_the_mask(which, mask):
    m, x = which(tiny()).eval(), tokens(4)
    with pytest.raises(ValueError, match=r"packed sequences, .* pad them instead"):
        m(x, position_ids=torch.tensor([[0, 1, 0, 1]]), attention_mask=mask)
    with pytest.raises(ValueError, match="packed sequences"):  # with padding between them
        m(x, position_ids=torch.tensor([[0, 0, 0, 1]]), attention_mask=torch.tensor([[1, 0, 1, 1]]))


def test_packed_sequences_are_kept_apart_by_a_mask_of_pairs():
    m, x = model(), tokens(4)
    sequence = torch.tensor([0, 0, 1, 1])
    apart = (sequence[:, None] == sequence).expand(2, 1, 4, 4)
    packed = m(x, position_ids=torch.tensor([[0, 1, 0, 1]]), attention_mask=apart).logits
    alone = torch.cat([m(one).logits for one in x.split(2, dim=1)], dim=1)
    torch.testing.assert_close(packed, alone)


def test_logits_and_loss():
    m, x = model(), tokens()
    out = m(x, labels=x)
    expected = torch.nn.functional.cross_entropy(
        out.logits[:, :-1].flatten(0, 1), x[:, 1:].flatten()
    )
    torch.testing.assert_close(out.loss, expected)
    torch.testing.assert_close(m(x, logits_to_keep=2).logits, out.logits[:, -2:])
    assert isinstance(m(x, return_dict=False), tuple)


@pytest.mark.parametrize("which", ["hyla model", "llama with hyla"])
def test_trainer(tmp_path, which):
    register()
    if which == "hyla model":
        m = model()
    else:
        config = transformers.LlamaConfig(
            vocab_size=50,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
        m = AutoModelForCausalLM.from_config(config, attn_implementation="hyla")
    row = {"input_ids": tokens()[0], "labels": tokens()[0]}
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=12,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        gradient_checkpointing=True,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    trainer = transformers.Trainer(model=m, args=arguments, train_dataset=[row] * 24)
    trainer.train()
    losses = [record["loss"] for record in trainer.state.log_history if "loss" in record]
    assert len(losses) == 12
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize("name", ["sdpa", "flash_attention_2", "softmax", "nope"])
def test_an_attention_implementation_means_nothing_to_our_own_model(name, registered, tmp_path):
    if registered:
        register()
    model().save_pretrained(tmp_path)
    message = (
        f"by what its config calls attention, which is 'hyla.expected2', and attn_impl.*'{name}'"
    )
    for make in (AutoModelForCausalLM.from_config, AutoModel.from_config):
        with pytest.raises(ValueError, match=message):
            make(tiny(), attn_implementation=name)
    with pytest.raises(ValueError, match=message):
        AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=name)
    with pytest.raises(ValueError, match=message):
        model().set_attn_implementation(name)


def test_its_own_attention_is_called_eager():
    m = AutoModelForCausalLM.from_config(tiny(), attn_implementation="eager")
    m.set_attn_implementation("eager")
    assert m(tokens()).logits.shape == (2, 9, 50)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("num_head", "num_attention_heads"),
        ("num_heads", "num_attention_heads"),
        ("hidden_sizes", "hidden_size"),
        ("embed_dim", "hidden_size"),
        ("atention", "attention"),
        ("tie_embeddings", "tie_word_embeddings"),
    ],
)
def test_a_wrong_name_of_a_field_is_refused(wrong, meant):
    with pytest.raises(TypeError, match=rf"no field '{wrong}' \(did you mean '{meant}'\?\)"):
        tiny(**{wrong: 4})


def test_what_transformers_and_others_carry_along_is_kept(tmp_path):
    carried = {"output_attentions": False, "sep_token_id": 3, "torch_dtype": "float32", "note": "x"}
    HylaForCausalLM(tiny(**carried)).save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.note == "x"
    assert config.sep_token_id == 3
