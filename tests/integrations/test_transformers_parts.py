"""Models that attend by the interface in part, or have parts without attention."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")

from transformers import (  # noqa: E402
    DetrConfig,
    GitConfig,
    LongT5Config,
    MixtralConfig,
    ResNetConfig,
    SamConfig,
    SiglipConfig,
)

from hyla.integrations.transformers import InterfaceIgnoredError, register  # noqa: E402
from hyla.integrations.transformers.masks import FLAGS_AGREE  # noqa: E402

TINY: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}


@pytest.fixture(scope="module", autouse=True)
def _registered():
    register()


def siglip_config() -> SiglipConfig:
    return SiglipConfig(
        text_config=TINY | {"vocab_size": 64, "max_position_embeddings": 16, "projection_size": 16},
        vision_config=TINY | {"image_size": 16, "patch_size": 8},
    )


def siglip(names) -> Any:
    torch.manual_seed(0)
    return transformers.SiglipModel._from_config(siglip_config(), attn_implementation=names).eval()


SIGLIP_INPUTS = {
    "input_ids": torch.randint(64, (2, 5), generator=torch.Generator().manual_seed(0)),
    "pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)),
}


@torch.no_grad()
def test_an_encoder_that_attends_by_itself_is_named():
    config = LongT5Config(
        vocab_size=64, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=4, pad_token_id=0
    )
    model = transformers.LongT5ForConditionalGeneration._from_config(
        config, attn_implementation="hyla"
    )
    tokens = torch.randint(3, 64, (2, 6))
    for _ in range(2):  # not in the first pass alone
        with pytest.raises(
            InterfaceIgnoredError, match=r"only in part .*LongT5LocalAttention \(encoder\.block\.0"
        ):
            model(tokens, decoder_input_ids=tokens)


@torch.no_grad()
def test_a_pooling_head_that_attends_by_itself_is_named():
    with pytest.raises(
        InterfaceIgnoredError,
        match=r"MultiheadAttention \(vision_model\.head\.attention\).*'text_config': \.\.\.",
    ):
        siglip("hyla")(**SIGLIP_INPUTS)


@torch.no_grad()
def test_who_asks_for_parts_gets_them():
    model = siglip({"text_config": "hyla"})
    mixed = model(**SIGLIP_INPUTS)
    plain = siglip("eager")(**SIGLIP_INPUTS)
    torch.testing.assert_close(mixed.image_embeds, plain.image_embeds)
    assert (mixed.text_embeds - plain.text_embeds).abs().max() > 1e-3


@torch.no_grad()
def test_routers_of_experts_do_not_attend():
    config = MixtralConfig(vocab_size=64, num_key_value_heads=2, num_local_experts=2, **TINY)
    model = transformers.MixtralForCausalLM._from_config(config, attn_implementation="hyla")
    model(torch.randint(64, (2, 6)))


def detr() -> nn.Module:
    torch.manual_seed(0)
    backbone: dict[str, Any] = {
        **{"embedding_size": 8, "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]},
        **{"layer_type": "basic", "out_features": ["stage4"]},
    }
    ours: dict[str, Any] = {"use_timm_backbone": False, "backbone": None}
    config = DetrConfig(
        **ours,
        backbone_config=ResNetConfig(**backbone),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        num_queries=4,
    )
    return transformers.DetrModel._from_config(config, attn_implementation="hyla").eval()


@torch.no_grad()
def test_a_part_without_attention_is_never_judged_alone():
    model, image = detr(), torch.randn(1, 3, 64, 64)
    first, second, third = (model(image).last_hidden_state for _ in range(3))
    assert torch.equal(first, second)
    assert torch.equal(second, third)
    for part in model.modules():
        if isinstance(part, transformers.PreTrainedModel):
            assert not part._forward_hooks  # proven once, it costs nothing any more


@torch.no_grad()
def test_a_part_without_attention_may_run_first():
    model = detr()
    backbone = next(x for x in model.modules() if "ResNet" in type(x).__name__)
    backbone(torch.randn(1, 3, 64, 64))
    model(torch.randn(1, 3, 64, 64))


@pytest.mark.parametrize(
    ("model_class", "config", "named"),
    [
        ("SamModel", SamConfig, "SamVisionEncoder"),
        ("GitModel", GitConfig, "GitModel"),
    ],
)
def test_tables_of_attention_classes_are_told_at_once(model_class, config, named):
    with torch.device("meta"), pytest.raises(InterfaceIgnoredError, match=f"{named} does not call"):
        getattr(transformers, model_class)._from_config(config(), attn_implementation="hyla")


@pytest.mark.parametrize(
    "names", [{"text_config": "hyla"}, {"": "linear", "vision_config": "hyla"}, "hyla"]
)
def test_names_of_parts_are_saved(tmp_path, names):
    def named(model) -> list[str]:
        config = model.config
        return [x._attn_implementation for x in (config, config.text_config, config.vision_config)]

    model = siglip(names)
    model.save_pretrained(tmp_path / "first")
    loaded = transformers.SiglipModel.from_pretrained(tmp_path / "first")
    assert named(loaded) == named(model)
    loaded.set_attn_implementation({"": "sdpa", "text_config": "sdpa", "vision_config": "linear"})
    loaded.save_pretrained(tmp_path / "second")
    again = transformers.SiglipModel.from_pretrained(tmp_path / "second")
    assert named(again) == ["sdpa", "sdpa", "linear"]


@torch.no_grad()
def test_nothing_else_of_ours_is_saved(tmp_path):
    model = siglip({"text_config": "hyla"})
    model(**SIGLIP_INPUTS)
    assert getattr(model.config.text_config, FLAGS_AGREE, None) is not None
    model.save_pretrained(tmp_path)
    assert "_hyla" not in (tmp_path / "config.json").read_text()
    assert json.loads((tmp_path / "config.json").read_text())["attn_implementation"] == {
        "text_config": "hyla"
    }


@torch.no_grad()
def test_after_an_interruption_the_next_pass_is_judged():
    def interrupt(*_):
        raise KeyboardInterrupt

    model = siglip("hyla")
    stop = model.text_model.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(**SIGLIP_INPUTS)
    stop.remove()
    with pytest.raises(InterfaceIgnoredError):
        model(**SIGLIP_INPUTS)
    assert torch.overrides._get_current_function_mode() is None


@torch.no_grad()
def test_threads_are_judged_apart():
    good = siglip({"text_config": "hyla"})
    bad = siglip("hyla")

    def refused(model) -> bool:
        try:
            model(**SIGLIP_INPUTS)
        except InterfaceIgnoredError:
            return True
        return False

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(refused, [good, bad] * 8)) == [False, True] * 8
