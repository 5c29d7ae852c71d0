"""The benchmark of language models compares like with like."""

import pytest
import torch

from hyla.benchmarks import language
from hyla.benchmarks.language import PLAIN, Case, measure
from hyla.benchmarks.plain_gpt import PlainGPT
from hyla.nn import Transformer
from hyla.nn.decoders import decoder_config

CPU = torch.device("cpu")
SMALL = Case(size="nano", length=8, tokens_per_step=16, precision="float32")


def test_the_plain_model_is_the_same_model():
    config = decoder_config("nano", vocab_size=50, sequence_length=12, attention="softmax")
    ours, plain = Transformer(config), PlainGPT(config)
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in ours.parameters())
    plain.load(ours)
    tokens = torch.randint(50, (2, 13))
    expected = torch.nn.functional.cross_entropy(
        ours(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
    )
    torch.testing.assert_close(plain(tokens[:, :-1], tokens[:, 1:]), expected)


def test_a_row_for_every_model(monkeypatch):
    monkeypatch.setattr(language, "VOCAB_SIZE", 64)
    rows = list(measure(CPU, 0.05, SMALL))
    assert [row["model"] for row in rows] == [PLAIN, "softmax", "linear", "hyla"]
    for row in rows:
        assert row["tokens_per_second"] > 0
        assert row["loss_error"] < 1e-4
    assert rows[0]["over_plain"] == rows[1]["over_softmax"] == 1


def test_a_wrong_model_is_not_timed_and_the_others_are(monkeypatch):
    monkeypatch.setattr(language, "VOCAB_SIZE", 64)
    monkeypatch.setattr(PlainGPT, "load", lambda self, model: None)
    wrong, right = measure(CPU, 0.05, SMALL, models=[PLAIN, "softmax"])
    assert wrong["error"].startswith("RuntimeError: plain PyTorch: the loss is ")
    assert (wrong["model"], wrong["length"]) == (PLAIN, 8)
    assert "tokens_per_second" not in wrong
    assert right["tokens_per_second"] > 0
    assert right["over_plain"] is None


def test_the_command_ends_with_a_failure_where_a_model_failed(monkeypatch):
    monkeypatch.setattr("sys.argv", ["language", "--device", "cpu"])
    monkeypatch.setattr(language, "measure", lambda *_, **__: iter([{"error": "wrong"}, {}]))
    with pytest.raises(SystemExit, match="1 failed"):
        language.main()
