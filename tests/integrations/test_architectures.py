"""A fixed sample of the architectures of transformers; all of them where minutes do not matter."""

from collections import Counter

import pytest

pytest.importorskip("transformers")

from architecture_sweep import PAGE, page, sweep, sweep_all

from hyla.integrations.transformers import register

# Each shows something else: grouped queries, windows, softcaps, experts, biases, additive masks,
# cross-attention, pooling heads, backbones, tables of classes, no interface, no attention.
SAMPLE = {
    "aimv2_vision_model": "refused",
    "albert": "right",
    "bart": "right",
    "bert": "right",
    "bloom": "refused",
    "clip_text_model": "right",
    "deberta-v2": "refused",
    "deepseek_v3": "right",
    "detr": "right",
    "eomt": "right",
    "gemma2": "right",
    "gemma3_text": "right",
    "git": "refused",
    "gpt2": "right",
    "gpt_oss": "refused",
    "llama": "right",
    "longt5": "refused",
    "mamba": "refused",
    "markuplm": "right",
    "mistral": "right",
    "mixtral": "right",
    "nllb-moe": "right",
    "opt": "right",
    "paligemma": "right",
    "qwen3": "right",
    "sam": "refused",
    "siglip": "refused",
    "swin": "right",
    "t5": "right",
    "vit": "right",
}


@pytest.fixture(scope="module", autouse=True)
def _registered():
    register()


@pytest.mark.parametrize("model_type", SAMPLE)
@pytest.mark.filterwarnings("ignore")  # of models that were not made to be this small
def test_sample(model_type):
    result = sweep(model_type)
    assert result.verdict == SAMPLE[model_type], result


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_architecture_is_as_the_page_says():
    results = list(sweep_all())
    count = Counter(result.verdict for result in results)
    assert not count["wrong"]
    assert not count["failed"]
    assert page(results) == PAGE.read_text(encoding="utf-8"), (
        "run python tests/integrations/architecture_sweep.py"
    )
