"""Every wrong argument of `attention` and of `AttentionSpec` is named, with what would work."""
# ruff: noqa: E501 (one line a case)

from typing import Any

import numpy as np
import pytest
import torch

from hyla.attention import AttentionSpec, attention

B, T, H, D = 2, 4, 3, 5


def tensors(**changes) -> dict[str, Any]:
    arguments = {name: torch.randn(B, T, H, D) for name in "qkv"}
    return arguments | changes


def case(name, match, **changes):
    return pytest.param(changes, match, id=name)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        case("q-of-rank-3", r"^q must have shape .*got \(2, 4, 5\)", q=torch.randn(B, T, D)),
        case("k-of-rank-5", r"^k must have shape", k=torch.randn(1, B, T, H, D)),
        case("v-of-rank-2", r"^v must have shape", v=torch.randn(T, D)),
        case("integer-q", r"^q must be floating point, got torch.int64", q=torch.ones(B, T, H, D).long()),
        case("k-of-another-dtype", r"^k is torch.float64 .* q is torch.float32", k=torch.randn(B, T, H, D).double()),
        case("v-on-another-device", r"^v is torch.float32 on meta", v=torch.randn(B, T, H, D, device="meta")),
        case("k-of-another-batch", r"^k of shape \(3, 4, 3, 5\) does not fit q", k=torch.randn(3, T, H, D)),
        case("k-of-fewer-heads", r"^k of shape .*grouped-query", k=torch.randn(B, T, 2, D)),
        case("k-of-another-size", r"^k of shape \(2, 4, 3, 4\) does not fit q", k=torch.randn(B, T, H, 4)),
        case("v-of-other-tokens", r"^v of shape \(2, 5, 3, 5\) does not fit k", v=torch.randn(B, 5, H, D)),
        case("no-heads", r"^heads and head sizes must be positive", **{n: torch.randn(B, T, 0, D) for n in "qkv"}),
        case("value-size-0", r"^heads and head sizes must be positive", v=torch.randn(B, T, H, 0)),
        case("mask-of-floats", r"^mask must be boolean with True = attend, got torch.float32", mask=torch.ones(T, T)),
        case("mask-that-is-added", r"mask == 0 for zeros and -inf", mask=torch.full((T, T), -torch.inf).triu(1)),
        case("mask-of-numpy", r"^mask must be a torch.Tensor, got ndarray", mask=np.ones((T, T), dtype=bool)),
        case("mask-of-integers", r"^mask must be boolean .*mask.bool\(\)", mask=torch.ones(T, T).long()),
        case("mask-of-other-keys", r"^mask of shape \(4, 5\) does not broadcast to .*\[2, 3, 4, 4\]", mask=torch.ones(T, 5).bool()),
        case("mask-of-rank-5", r"^mask of shape \(1, 2, 3, 4, 4\)", mask=torch.ones(1, B, H, T, T).bool()),
        case("mask-of-key-padding", r"^mask .* key padding is passed as mask\[:, None, None, :\]", mask=torch.ones(B, T).bool()),
        case("mask-of-sequences", r"^mask .* one for all heads is passed as mask\[:, None\]", mask=torch.ones(B, T, T).bool()),
        case("bias-of-other-heads", r"^bias of shape \(4, 4, 4\) does not broadcast", bias=torch.ones(4, T, T)),
        case("bias-that-is-a-mask", r"^bias must be floating point, got torch.bool", bias=torch.ones(T, T).bool()),
        case("code-multiplier", r"^code_multiplier of shape \(3, 4\)", code_multiplier=torch.ones(3, T)),
        case("value-weight-missing", r"^value_weight: .*\[3, 5, 5\], none was given", attention="hyla_deep"),
        case("value-weight-of-another-shape", r"^value_weight: .*got \(3, 5, 4\)", attention="hyla_deep", value_weight=torch.ones(H, D, 4)),
        case("value-weight-unwanted", r"^value_weight is for the deep value network; with value='hidden'", value_weight=torch.ones(H, D, D)),
        case("eps-of-zero", r"^eps must be positive, got 0", eps=0.0),
        case("unknown-backend", r"^backend 'refrence' is unknown \(did you mean 'reference'\?\)", backend="refrence"),
        case("unknown-preset", r"^attention 'hyla_minus_rms' is unknown \(did you mean 'hyla_minus_rmshead'\?\)", attention="hyla_minus_rms"),
        case("preset-near-nothing", r"^attention 'zzz' is unknown; choose from \['hyla'", attention="zzz"),
        case("attention-of-another-type", r"^attention must be a preset name or an AttentionSpec, got int", attention=3),
    ],
)  # fmt: skip
def test_attention_names_the_argument(changes, match):
    with pytest.raises(ValueError, match=match):
        attention(**tensors(**changes))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        case("normalisation", r"^normalisation 'softmx' is unknown \(did you mean 'softmax'\?\)", normalisation="softmx"),
        case("one-of-a-composition", r"^normalisation 'rms_haed' .*'rms_head'", normalisation=("softmax", "rms_haed")),
        case("normalisation-of-a-list", r"^normalisation must be a name, a callable .* got \['softmax'\]", normalisation=["softmax"]),
        case("normalisation-of-none", r"^normalisation must be .* got None", normalisation=None),
        case("normalisation-of-nothing", r"^normalisation is an empty tuple; 'none'", normalisation=()),
        case("value-of-a-list", r"^value \['hidden'\] is unknown", value=["hidden"]),
        case("phi-of-none", r"^phi must be a name or a callable, got None", phi=None),
        case("value", r"^value 'hiden' is unknown \(did you mean 'hidden'\?\)", value="hiden"),
        case("phi", r"^phi 'gleu' is unknown \(did you mean 'gelu'\?\); .*pass a callable", phi="gleu"),
    ],
)  # fmt: skip
def test_spec_names_the_field(changes, match):
    with pytest.raises(ValueError, match=match):
        AttentionSpec(**({"normalisation": "rms_head", "value": "hidden"} | changes))


@pytest.mark.parametrize(
    "shape", [(), (T,), (1, T), (T, 1), (T, T), (B, 1, 1, T), (H, 1, T), (B, H, T, T)]
)
def test_every_shape_that_broadcasts_is_taken(shape):
    arguments = tensors()
    bias, mask = torch.randn(shape), torch.rand(shape) > 0.3
    got = attention(**arguments, bias=bias, mask=mask)
    full = (B, H, T, T)
    want = attention(**arguments, bias=bias.expand(full), mask=mask.expand(full))
    torch.testing.assert_close(got, want)
