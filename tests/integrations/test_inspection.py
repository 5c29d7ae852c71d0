"""TransformerLens and nnsight read and change codes, with the real packages where installed."""

from typing import Any

import pytest
import torch

from hyla.latents import edited, record_codes, zeroed
from hyla.latents.hook_points import HOOK_POINTS, add_hook_points
from hyla.nn import Transformer, TransformerConfig

SIZES: dict[str, Any] = {
    "sequence_length": 6,
    "embed_dim": 8,
    "qk_dim": 8,
    "v_dim": 8,
    "mlp_dim": 8,
    "num_heads": 2,
    "num_layers": 2,
    "input_dim": 3,
    "output_dim": 5,
}
CODE = "blocks.0.attention.hook_code"

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig(**SIZES, causal=True)).eval()


@pytest.fixture
def x():
    return torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def expected(model, x):
    """The model's logits, its codes, and its logits where the first layer has none."""
    with torch.no_grad():
        details = model(x, details=True)
        with edited(model, {0: zeroed("all")}):
            return details.logits, details.codes, model(x)


def llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval(), torch.randint(50, (2, 7))


# --- TransformerLens ----------------------------------------------------------------------------


def test_transformer_lens_caches_and_patches_codes(model, x, expected):
    pytest.importorskip("transformer_lens")
    from hyla.integrations.transformer_lens import HookedModel

    logits, codes, without = expected
    hooked = HookedModel(model)
    seen, cache = hooked.run_with_cache(x)
    torch.testing.assert_close(seen, logits)
    names = {f"blocks.{i}.attention.{point}" for i in range(2) for point in HOOK_POINTS}
    assert set(cache.keys()) == names
    torch.testing.assert_close(cache[CODE], codes[0])
    zero = (CODE, lambda code, hook: torch.zeros_like(code))
    torch.testing.assert_close(hooked.run_with_hooks(x, fwd_hooks=[zero]), without)
    torch.testing.assert_close(hooked(x), logits)
    assert record_codes(hooked, x).codes == pytest.approx(record_codes(model, x).codes)
    assert dict(hooked.named_parameters()).keys() == dict(model.named_parameters()).keys()


def test_codes_of_models_that_transformer_lens_loads(tmp_path):
    pytest.importorskip("transformer_lens")
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models
    from transformer_lens.model_bridge import TransformerBridge  # pyright: ignore[reportMissingImports]

    plain, tokens = llama()
    words = Tokenizer(models.WordLevel({"<s>": 0, "a": 1}, unk_token="<s>"))
    special = dict.fromkeys(("eos_token", "bos_token", "pad_token"), "<s>")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
    plain.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    bridge = TransformerBridge.boot_transformers(str(tmp_path), device="cpu")
    want = record_codes(plain, tokens, pairs="all", residual=True)
    got = record_codes(bridge, tokens, pairs="all", residual=True)
    assert got.codes == pytest.approx(want.codes, abs=1e-5)
    assert got.residual == pytest.approx(want.residual, abs=1e-5)
    edits = {1: zeroed("all", heads=[2])}
    with torch.no_grad(), edited(plain, edits), edited(bridge, edits):
        torch.testing.assert_close(bridge(tokens), plain(tokens).logits, rtol=1e-4, atol=1e-5)


# --- nnsight --------------------------------------------------------------------------------------


def test_nnsight_reads_and_patches_codes(model, x, expected):
    nnsight = pytest.importorskip("nnsight")

    logits, codes, without = expected
    traced = nnsight.NNsight(add_hook_points(model))
    with traced.trace(x):
        code = traced.blocks[0].attention.hook_code.output.save()
        seen = traced.output.save()
    torch.testing.assert_close(code, codes[0])
    torch.testing.assert_close(seen, logits)
    with traced.trace(x):
        own = traced.blocks[0].attention.hook_code.output
        traced.blocks[0].attention.hook_code.output = torch.zeros_like(own)
        patched = traced.output.save()
    torch.testing.assert_close(patched, without)


def test_codes_of_models_in_nnsight(model, x):
    nnsight = pytest.importorskip("nnsight")

    want = record_codes(model, x).codes
    assert record_codes(nnsight.NNsight(model)._module, x).codes == pytest.approx(want)
    plain, tokens = llama()
    want = record_codes(plain, tokens, pairs="previous").codes
    traced = nnsight.NNsight(plain)
    assert record_codes(traced._module, tokens, pairs="previous").codes == pytest.approx(want)
