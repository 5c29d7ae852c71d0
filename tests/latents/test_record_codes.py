"""Recorded codes are those that attention used, whatever model they are in."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attention_inputs import FAMILY
from hyla.latents import (
    Site,
    UnsupportedModelError,
    adapters,
    record_codes,
    run_recorded,
    stream_codes,
)
from hyla.latents.adapters import register_adapter
from hyla.latents.observe import Observer, observing
from hyla.nn import MultiHeadAttention
from tiny_runs import tiny_transformer


def inputs(batch: int = 3) -> Tensor:
    return torch.randn(batch, 7, 5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("attention", sorted(FAMILY))
def test_codes_are_those_of_the_forward_pass(attention, causal):
    network, x = tiny_transformer(attention=attention, causal=causal), inputs()
    table = record_codes(network, x, pairs="all")
    with torch.no_grad():
        details = network(x, details=True)
    for layer, code in enumerate(details.codes):
        rows = table.where(layer=layer)
        assert len(rows) == 3 * 7 * 7
        want = code[rows["instance"], :, rows["query"], rows["key"]].numpy()
        np.testing.assert_allclose(rows.codes, want, atol=1e-6)


def test_recording_does_not_change_what_the_model_computes():
    network, x = tiny_transformer(), inputs()
    with torch.no_grad():
        want = network(x)
    got, _ = run_recorded(network, x, pairs=[(-1, -1)])
    assert torch.equal(got, want)
    assert not any(module._forward_hooks for module in network.modules())


@pytest.mark.parametrize(
    ("pairs", "want"),
    [
        ("self", [(i, i) for i in range(7)]),
        ("previous", [(i, i - 1) for i in range(1, 7)]),
        ([(-1, -1), (-1, 0)], [(6, 6), (6, 0)]),
    ],
)
def test_pairs_are_those_asked_for(pairs, want):
    table = record_codes(tiny_transformer(), inputs(1), pairs=pairs, layers=[1])
    assert table.layers == [1]
    assert list(zip(table["query"].tolist(), table["key"].tolist(), strict=True)) == want


def test_labels_and_instances_run_over_all_batches():
    batches = inputs(5).split(2)
    seen = []
    table = record_codes(
        tiny_transformer(),
        batches,
        pairs=[(-1, -1)],
        labels={"rule": list("abcde")},
        on_progress=seen.append,
    )
    rows = table.where(layer=0)
    assert rows["instance"].tolist() == [0, 1, 2, 3, 4]
    assert rows["rule"].tolist() == list("abcde")
    assert seen == [2, 2, 1]
    parts = list(stream_codes(tiny_transformer(), batches, pairs=[(-1, -1)]))
    assert [part["instance"].max() for part in parts] == [1, 3, 4]


def test_residual_is_what_the_layer_reads_at_the_query():
    network, x = tiny_transformer(), inputs(2)
    rows = record_codes(network, x, pairs=[(-2, 0)], residual=True).where(layer=0)
    with torch.no_grad():
        norm = network.get_submodule("blocks.0.attention_norm")
        want = norm(network.embedding(x))[:, -2]
    assert rows.residual is not None
    np.testing.assert_allclose(rows.residual, want.numpy(), atol=1e-6)


class CrossModel(nn.Module):
    """Somebody's own module: self- and cross-attention, one of them asking for its code itself."""

    def __init__(self):
        super().__init__()
        self.own = MultiHeadAttention(8, 2)
        self.cross = MultiHeadAttention(8, 4, attention="softmax")

    def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return self.cross(self.own(x), memory, return_code=True)


def test_any_module_with_our_layers_in_it():
    network, x, memory = CrossModel(), torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    table = record_codes(network, {"x": x, "memory": memory}, pairs="all")
    with torch.no_grad():
        _, code = network(x, memory)
    cross = table.where(kind="cross")
    want = code[cross["instance"], :, cross["query"], cross["key"]]
    np.testing.assert_allclose(cross.codes, want.detach().numpy(), atol=1e-6)
    assert table.where(kind="self").codes.shape == (2 * 9, 2)
    (_, code), _ = run_recorded(network, {"x": x, "memory": memory}, pairs="all")
    assert code.shape == (2, 4, 3, 5)  # what the module asked for, it got


@pytest.mark.parametrize("asked", [[(1, 0), (2, 2)], torch.tensor([[1, 0], [2, 2]])])
def test_a_module_that_asks_for_pairs_gets_those(asked):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = MultiHeadAttention(8, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x, return_code=asked)

    network, x = Reader(), torch.randn(2, 3, 8)
    with torch.no_grad():
        _, want = network(x)
    (_, code), seen = run_recorded(network, x, pairs=[(0, 1)])
    torch.testing.assert_close(code, want)
    assert seen[Site("self", 0)].codes.shape == (2, 1, 2)


def test_two_observers_at_once_each_get_their_pairs():
    class Keeper(Observer):
        def __init__(self, *pairs: tuple[int, int]):
            self.chosen = torch.tensor(pairs)

        def pairs(self, site, num_queries, num_keys):
            return self.chosen

        def receive(self, site, codes, x):
            self.codes = codes

    layer, x = MultiHeadAttention(8, 2), torch.randn(2, 3, 8)
    outer, inner = Keeper((0, 1), (2, 2)), Keeper((1, 0))
    with torch.no_grad(), observing(layer, outer), observing(layer, inner):
        layer(x)
    for keeper in (outer, inner):
        _, want = layer(x, return_code=keeper.chosen)
        torch.testing.assert_close(keeper.codes, want)


def test_queries_that_are_a_slice_of_their_context_attend_to_themselves():
    network, x = tiny_transformer(), inputs(2)

    class LastOnly(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, x: Tensor) -> Tensor:
            return self.network(x, last=1)

    table = record_codes(LastOnly(), x, pairs=[(-1, 2)])
    full = record_codes(network, x, pairs=[(-1, 2)])
    assert set(table["kind"]) == {"self"}
    np.testing.assert_allclose(table.codes, full.codes, atol=1e-6)


@pytest.mark.integration
def test_codes_of_a_compiled_model():
    network, x = tiny_transformer(), inputs(2)
    want = record_codes(network, x)
    compiled = torch.compile(network, backend="eager")
    assert isinstance(compiled, nn.Module)
    with torch.no_grad():
        compiled(x)
    np.testing.assert_allclose(record_codes(compiled, x).codes, want.codes, atol=1e-6)


def test_tokens_that_a_mask_rules_out_are_left_out():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = MultiHeadAttention(8, 2)

        def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
            return self.layer(x, mask=attention_mask[:, None, None, :])

    mask = torch.tensor([[True, True, False], [True, True, True]])
    table = record_codes(Masked(), {"x": torch.randn(2, 3, 8), "attention_mask": mask}, pairs="all")
    assert [len(table.where(instance=i)) for i in (0, 1)] == [4, 9]


def test_a_mask_is_for_sequences_of_its_length():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = MultiHeadAttention(8, 2)

        def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
            return self.layer(x[:, ::2])

    mask = torch.tensor([[False, False, True, True], [True, True, True, True]])
    table = record_codes(Pooled(), {"x": torch.randn(2, 4, 8), "attention_mask": mask})
    assert [len(table.where(instance=i)) for i in (0, 1)] == [2, 2]


def test_errors_say_what_is_wrong():
    with pytest.raises(UnsupportedModelError, match="Linear has no attention layer"):
        record_codes(nn.Linear(2, 2), torch.randn(1, 2))
    with pytest.raises(ValueError, match="did you mean 'previous'"):
        record_codes(tiny_transformer(), inputs(), pairs="previus")
    with pytest.raises(ValueError, match=r"pair \(9, 0\) lies outside of 7 queries"):
        record_codes(tiny_transformer(), inputs(), pairs=[(9, 0)])
    with pytest.raises(UnsupportedModelError, match="nothing was recorded"):
        record_codes(tiny_transformer(), inputs(), layers=[5])
    with pytest.raises(ValueError, match="labels\\['rule'\\] holds 2 values"):
        record_codes(tiny_transformer(), inputs(), labels={"rule": [1, 2]})


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        ("gpt2", torch.zeros(1, 2), "model must be a torch.nn.Module, got str"),
        (nn.MultiheadAttention(4, 2), "a text", "inputs is of type str: a batch is a tensor"),
        (nn.MultiheadAttention(4, 2), [[1, 2]], "a batch is of type list"),
        (nn.MultiheadAttention(4, 2), {"query": [1]}, r"inputs\['query'\] is of type list"),
    ],
)
def test_what_is_no_model_or_batch_is_a_type_error(model, given, message):
    with pytest.raises(TypeError, match=message):
        record_codes(model, given)


def test_a_model_of_another_library_is_read_by_its_adapter(monkeypatch):
    """Registered by a name, imported when such a model comes."""

    class Foreign(nn.Module):
        pass

    seen = []
    adapter = SimpleNamespace(observing=lambda model, observer: nullcontext(seen.append(model)))
    monkeypatch.setitem(sys.modules, "foreign_adapter", adapter)
    monkeypatch.setattr("hyla.latents.adapters._ADAPTERS", {})
    wrapped = nn.Sequential(Foreign())
    with pytest.raises(UnsupportedModelError), observing(wrapped, Observer()):
        pass
    register_adapter(Foreign.__qualname__, "foreign_adapter")
    with observing(wrapped, Observer()):
        assert seen == [wrapped]


def test_a_registered_adapter_comes_before_hylas_own(monkeypatch):
    class Foreign(nn.MultiheadAttention):
        pass

    seen = []
    adapter = SimpleNamespace(observing=lambda model, observer: nullcontext(seen.append(model)))
    monkeypatch.setitem(sys.modules, "foreign_adapter", adapter)
    monkeypatch.setattr("hyla.latents.adapters._ADAPTERS", dict(adapters._ADAPTERS))
    layer = Foreign(4, 2)
    register_adapter(Foreign.__qualname__, "foreign_adapter")
    with observing(layer, Observer()):
        assert seen == [layer]
