"""The third axis: what becomes of a query's output before `W_out`, and how it is named."""

import math

import pytest
import torch

from attention_inputs import operands
from hyla.attention import PRESETS, AttentionSpec, attention, packed_attention, resolve_spec
from hyla.attention.output import keys_before, keys_in_mask, keys_in_packing, row_factor
from hyla.attention.start import expected_deviation

NAMES = ("hyla", "softmax", "linear", "hyla_minus_rmshead", "hyla_residual")


def named(name: str, output: str, gain: float = 1.0) -> AttentionSpec:
    spec = resolve_spec(name)
    return AttentionSpec(
        normalisation=spec.normalisation,
        value=spec.value,
        phi=spec.phi,
        output=output,
        gain=gain,
    )


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("hyla.rms4", named("hyla", "rms", 1 / 4)),
        ("hyla.plain16", named("hyla", "plain", 1 / 16)),
        ("hyla.expected", named("hyla", "expected")),
        ("softmax.rms", named("softmax", "rms")),
        ("hyla.silu.rms2", AttentionSpec(
            normalisation="rms_head", value="hidden", phi="silu", output="rms", gain=0.5)),
        ("hyla.rms2.silu", resolve_spec("hyla.silu.rms2")),
        ("hyla.plain", PRESETS["hyla"]),
    ],
)  # fmt: skip
def test_a_name_says_what_becomes_of_the_output(name, want):
    assert resolve_spec(name) == want


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hyla.rsm4", "'rsm4' of attention 'hyla.rsm4' is unknown.*'hyla.rms4'"),
        ("hyla.rms0", "unknown"),
        ("hyla.rms0.5", "unknown"),
        ("hyla.silu.gelu", "two of a kind: 'gelu'"),
        ("hyla.rms4.plain16", "two of a kind"),
        ("hyla.", "unknown"),
    ],
)
def test_a_wrong_name_is_told_what_would_work(name, message):
    with pytest.raises(ValueError, match=message):
        resolve_spec(name)


@pytest.mark.parametrize("gain", [0, -1, math.inf, math.nan, "4"])
def test_a_gain_is_a_positive_number(gain):
    with pytest.raises(ValueError, match="gain must be a positive number"):
        AttentionSpec(normalisation="none", value="linear", gain=gain)


def test_what_cannot_be_expected_is_refused():
    with pytest.raises(ValueError, match="output='rms'"):
        AttentionSpec(normalisation=lambda s, mask, eps: s, value="linear", output="expected")
    with pytest.raises(ValueError, match="output 'rmsnorm' is unknown"):
        AttentionSpec(normalisation="none", value="linear", output="rmsnorm")


@pytest.mark.parametrize("name", NAMES)
def test_a_gain_multiplies_and_rms_leaves_a_root_mean_square_of_the_gain(name):
    q, k, v, _ = operands(name, queries=6, dtype=torch.float64)
    plain = attention(q, k, v, attention=name, causal=True)
    scaled = attention(q, k, v, attention=named(name, "plain", 0.3), causal=True)
    torch.testing.assert_close(scaled, 0.3 * plain)
    normed = attention(q, k, v, attention=named(name, "rms", 0.25), causal=True)
    rms = normed.square().mean(dim=(2, 3)).sqrt()
    torch.testing.assert_close(rms, torch.full_like(rms, 0.25), rtol=1e-3, atol=0)
    direction = plain / plain.square().mean(dim=(2, 3), keepdim=True).sqrt()
    torch.testing.assert_close(normed, 0.25 * direction, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_expected_counts_the_keys_that_each_query_sees(name):
    spec = named(name, "expected")
    q, k, v, _ = operands(name, queries=6, dtype=torch.float64)
    together = attention(q, k, v, attention=spec, causal=True)
    for i in range(6):
        alone = attention(q[:, [i]], k[:, : i + 1], v[:, : i + 1], attention=spec)
        torch.testing.assert_close(together[:, [i]], alone)


def test_an_edge_of_a_mask_per_head_counts_its_mean():
    mask = torch.ones(1, 2, 1, 4, dtype=torch.bool)
    mask[0, 0, 0, 2:] = False
    assert torch.as_tensor(keys_in_mask(mask, 4)).tolist() == [[3]]
    assert keys_in_mask(torch.tensor(True), 4) == 4
    assert keys_in_mask(None, 4) == 4


@pytest.mark.parametrize("causal", [False, True])
def test_keys_are_counted_alike_with_and_without_a_mask_of_pairs(causal):
    queries, keys = 3, 7
    padding = torch.rand(4, keys) > 0.4
    mask = padding[:, None, None].expand(4, 1, queries, keys)
    if causal:
        mask = mask & torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    device = padding.device
    counted = keys_before(queries, keys, padding=padding, causal=causal, device=device)
    counted, wanted = torch.as_tensor(counted), torch.as_tensor(keys_in_mask(mask, keys))
    assert torch.equal(counted.expand(4, queries), wanted)
    every = keys_before(queries, keys, padding=None, causal=causal, device=device)
    assert torch.as_tensor(every).expand(1, queries).tolist() == [[5, 6, 7] if causal else [7] * 3]


def test_keys_of_packed_sequences():
    starts = torch.tensor([0, 3, 3, 7], dtype=torch.int32)
    assert keys_in_packing(starts, 7, causal=True).tolist() == [[1, 2, 3, 1, 2, 3, 4]]
    assert keys_in_packing(starts, 7, causal=False).tolist() == [[3, 3, 3, 4, 4, 4, 4]]


@pytest.mark.parametrize("output", ["expected", "rms"])
def test_packed_sequences_are_finished_one_by_one(output):
    spec = named("hyla", output)
    q, k, v, _ = operands("hyla", batch=1, queries=7)
    packed = packed_attention(q[0], k[0], v[0], torch.tensor([0, 3, 7]), attention=spec)
    for part in (slice(0, 3), slice(3, 7)):
        alone = attention(q[:, part], k[:, part], v[:, part], attention=spec)
        torch.testing.assert_close(packed[part], alone[0])


# What is not exact: softmax codes are taken for log-normal ones, and of the second layer of the
# deep network the average over its weights is taken, where one draw is shared by all pairs.
ROUGH = ("hyla_minus_rmshead_plus_softmax", "hyla_plus_softmax", "hyla_deep", "softmax",
         "hyla_plus_softmax_last", "hyla_residual_minus_rmshead_plus_softmax")  # fmt: skip


@pytest.mark.parametrize("phi", ["relu", "silu"])
@pytest.mark.parametrize(("heads", "keys"), [(16, 36), (8, 12), (4, 1)])
@pytest.mark.parametrize("name", PRESETS)
def test_the_deviation_expected_is_that_of_normal_queries_keys_and_values(name, heads, keys, phi):
    spec = resolve_spec(name if "minus_nonlinearity" in name else f"{name}.{phi}")
    q, k, v, options = operands(
        spec, batch=60, queries=8, keys=keys, heads=heads, size=32, value_size=32
    )
    measured = attention(q, k, v, **options).square().mean().sqrt()
    expected = expected_deviation(spec, float(keys), heads)
    tolerance = 0.45 if name in ROUGH else 0.06
    assert abs(math.log(measured / expected)) < tolerance
    by_tensor = expected_deviation(spec, torch.tensor([float(keys)]), heads)
    torch.testing.assert_close(torch.as_tensor(by_tensor), torch.tensor([float(expected)]))


def test_hyla_grows_with_keys_and_heads():
    assert expected_deviation(PRESETS["hyla"], 512.0, 8) == pytest.approx(math.sqrt(512 * 8 / 2))


def test_keys_are_counted_for_any_two_lengths_after_an_export():
    class Factor(torch.nn.Module):
        def forward(self, q, k):
            seen = keys_before(
                q.shape[1], k.shape[1], padding=None, causal=True, device=torch.device("cpu")
            )
            return row_factor(resolve_spec("hyla.expected2"), seen, 4)

    def drawn(queries, keys):
        return torch.zeros(2, queries), torch.zeros(2, keys)

    lengths = ({1: torch.export.Dim("S")}, {1: torch.export.Dim("T")})
    exported = torch.export.export(Factor(), drawn(7, 9), dynamic_shapes=lengths).module()
    for given in (drawn(12, 5), drawn(3, 8)):
        torch.testing.assert_close(exported(*given), Factor()(*given))
