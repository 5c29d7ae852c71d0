"""Whole models against the authors' numbers: logits and parameter counts.

The training steps of the same files are in tests/training/test_optimizer.py.
"""

import pytest
import torch

from golden_files import load, ours, relative_error
from hyla.nn import Transformer, TransformerConfig


def golden_model(name: str, golden) -> Transformer:
    model = Transformer(
        TransformerConfig(
            input_dim=8,
            output_dim=8,
            sequence_length=9,
            embed_dim=24,
            qk_dim=16,
            v_dim=16,
            mlp_dim=48,
            num_heads=4,
            num_layers=2,
            attention=name,
        )
    )
    model.load_state_dict(ours("param0", golden))
    return model


@pytest.mark.parametrize("name", ["softmax", "linear", "hyla"])
def test_logits_match_the_authors(name):
    golden = load(f"transformer_{name}")
    logits = golden_model(name, golden)(torch.tensor(golden["in.x"][0]))
    assert relative_error(logits, golden["out.logits0"]) < 1e-5


SRAVEN = {
    "input_dim": 8,
    "output_dim": 8,
    "sequence_length": 36,
    "embed_dim": 128,
    "qk_dim": 64,
    "v_dim": 64,
    "mlp_dim": 256,
    "num_heads": 16,
    "num_layers": 4,
}
FUZZY_LOGIC = {
    "input_dim": 5,
    "output_dim": 1,
    "sequence_length": 32,
    "embed_dim": 128,
    "qk_dim": 16,
    "v_dim": 16,
    "mlp_dim": 256,
    "num_heads": 8,
    "num_layers": 2,
}


@pytest.mark.parametrize("attention", ["softmax", "linear", "hyla"])
@pytest.mark.parametrize(
    ("shape", "count"),
    [
        pytest.param(SRAVEN, 402_824, id="sraven"),
        pytest.param(SRAVEN | {"width_factor": 4}, 6_329_864, id="sraven-width-4"),
        pytest.param(FUZZY_LOGIC, 151_265, id="fuzzy-logic"),
    ],
)
def test_parameter_count_is_the_authors(shape, count, attention):
    with torch.device("meta"):
        model = Transformer(TransformerConfig(**shape, attention=attention))
    assert sum(parameter.numel() for parameter in model.parameters()) == count
