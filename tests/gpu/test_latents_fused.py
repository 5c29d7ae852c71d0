"""Codes beside the fused path, and interventions on layers whose backend is fused."""

import numpy as np
import pytest
import torch

from hyla.latents import edited, record_codes, replaced, run_recorded, zeroed
from hyla.nn import Transformer, TransformerConfig

pytestmark = pytest.mark.gpu
KINDS = ("hyla", "softmax", "linear")
PAIRS = [(-1, -1), (-1, 3), (5, 0)]


def models(attention: str) -> tuple[Transformer, Transformer]:
    """The same network twice: whatever is fastest on the GPU, and the equations."""
    sizes = {
        "input_dim": 8,
        "output_dim": 8,
        "sequence_length": 36,
        "embed_dim": 64,
        "qk_dim": 64,
        "v_dim": 64,
        "mlp_dim": 64,
        "num_heads": 16,
        "num_layers": 3,
        "attention": attention,
    }
    fast, plain = (
        Transformer(TransformerConfig(**sizes, backend=backend)).cuda().eval()
        for backend in ("fused" if attention == "hyla" else "auto", "reference")
    )
    plain.load_state_dict(fast.state_dict())
    return fast, plain


@pytest.mark.parametrize("attention", KINDS)
def test_codes_of_the_fused_path_are_those_of_the_reference(attention):
    fast, plain = models(attention)
    x = torch.randn(32, 36, 8, device="cuda")
    got, want = (record_codes(model, x, pairs=PAIRS) for model in (fast, plain))
    np.testing.assert_allclose(got.codes, want.codes, atol=2e-4)
    outputs = [run_recorded(model, x, pairs=PAIRS)[0] for model in (fast, plain)]
    torch.testing.assert_close(*outputs, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("attention", KINDS)
def test_interventions_do_the_same_on_both_backends(attention):
    fast, plain = models(attention)
    x = torch.randn(32, 36, 8, device="cuda")
    outputs = []
    for model in (fast, plain):
        _, seen = run_recorded(model, x.roll(1, dims=0), pairs=PAIRS)
        codes = {site.layer: found.codes for site, found in seen.items()}
        edits = {1: replaced(codes[1], PAIRS), 2: zeroed(PAIRS, heads=[3])}
        with edited(model, edits), torch.no_grad():
            outputs.append(model(x))
    torch.testing.assert_close(*outputs, atol=1e-3, rtol=1e-3)
    with torch.no_grad():
        assert not torch.allclose(outputs[0], fast(x), atol=1e-2)
