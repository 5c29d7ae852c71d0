"""Two ranks on the CPU: the losses of one, and resuming after a rank was killed or is not there."""

import signal
from pathlib import Path

import pytest
import torch

from hyla.tasks.language import Corpus
from hyla.training.language import (
    Source,
    language_run_path,
    load_language_model,
    train_language,
)
from hyla.training.run.reading import read_branch_scales, read_metrics
from language_ranks import RankProcesses
from tiny_text import tiny_corpus, tiny_language_config

pytest.importorskip("sentencepiece")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory) -> Path:
    """The same run by one process."""
    root = tmp_path_factory.mktemp("alone")
    train_language(tiny_language_config(corpus), corpus, root=root, device="cpu")
    return run_path(corpus, root)


def run_path(corpus: Corpus, root: Path) -> Path:
    return language_run_path(tiny_language_config(corpus), root)


def losses(run: Path) -> list[tuple[int, str, float]]:
    """Every loss that was logged, by step and name."""
    return [
        (record["step"], name, record[name][0])
        for record in read_metrics(run)
        for name in ("loss", "validation/loss")
        if name in record
    ]


def assert_same_run(run: Path, reference: Path) -> None:
    """Losses and weights, up to the order of sums."""
    got, expected = losses(run), losses(reference)
    assert [entry[:2] for entry in got] == [entry[:2] for entry in expected]
    for (step, name, loss), (_, _, wanted) in zip(got, expected, strict=True):
        assert loss == pytest.approx(wanted, rel=2e-5), (step, name)
    weights = load_language_model(run, "cpu").transformer.state_dict()
    for name, tensor in load_language_model(reference, "cpu").transformer.state_dict().items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_have_the_losses_of_one(corpus, tmp_path, alone, strategy):
    execution = {"strategy": strategy, "micro_batch": 2, "recompute": strategy == "fsdp"}
    codes, outputs = RankProcesses(corpus.path, tmp_path, 2, execution=execution).finish()
    assert codes == [0, 0], outputs
    assert_same_run(run_path(corpus, tmp_path), alone)
    assert "parameters" in outputs[0]
    assert outputs[1] == ""  # one rank talks
    # Each rank has measured its own share of the batch; the first one's is logged.
    found = [read_branch_scales(path) for path in (run_path(corpus, tmp_path), alone)]
    for block, other in zip(*(one["blocks"] for one in found if one is not None), strict=True):
        assert block == pytest.approx(other, rel=0.3)


def test_two_ranks_distil_as_one_does(corpus, tmp_path, alone):
    source = Source.open(alone, corpus)
    begin = source.settings()
    begin["conversion"]["distil_steps"] = 5
    begin["model"]["attention"] = "hyla"
    config = tiny_language_config(corpus, **begin)
    train_language(config, corpus, root=tmp_path / "one", device="cpu", source=source)
    options = {"source": alone, "settings": begin, "execution": {"micro_batch": 2}}
    codes, outputs = RankProcesses(corpus.path, tmp_path / "two", 2, **options).finish()
    assert codes == [0, 0], outputs
    assert_same_run(*(language_run_path(config, tmp_path / ranks) for ranks in ("two", "one")))


@pytest.mark.parametrize(
    ("first", "then"),
    [((2, "ddp"), (1, "fsdp")), ((2, "fsdp"), (1, "auto")), ((1, "auto"), (2, "fsdp"))],
    ids=str,
)
def test_resuming_on_another_number_of_ranks(corpus, tmp_path, alone, first, then):
    for (ranks, strategy), stop, code in ((first, 5, 75), (then, None, 0)):
        options = {"stop_last_at": stop, "execution": {"strategy": strategy}}
        codes, outputs = RankProcesses(corpus.path, tmp_path, ranks, **options).finish()
        assert codes == [code] * ranks, outputs
        # The ranks stop together, at the step after the one at which the last was asked to.
        assert ("stopped at step 5 of 12" if stop else "continuing from step 5") in outputs[0]
    assert_same_run(run_path(corpus, tmp_path), alone)


def test_a_killed_rank_loses_little(corpus, tmp_path, alone):
    ranks = RankProcesses(corpus.path, tmp_path, 2, sleep=0.1)
    ranks.wait_for_step(1, 7)
    ranks.signal(1, signal.SIGKILL)
    # gloo tells the other rank that its peer is gone; torchrun would end it as well.
    codes, _ = ranks.finish()
    assert codes == [1, -signal.SIGKILL]
    saved = int(max(run_path(corpus, tmp_path).glob("checkpoint-*")).name[-6:])
    assert saved >= 5
    codes, outputs = RankProcesses(corpus.path, tmp_path, 2).finish()
    assert codes == [0, 0], outputs
    assert f"continuing from step {saved}" in outputs[0]
    assert_same_run(run_path(corpus, tmp_path), alone)


def test_every_rank_hears_of_an_error_of_the_first(corpus, tmp_path):
    path = run_path(corpus, tmp_path)
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    codes, outputs = RankProcesses(corpus.path, tmp_path, 2).finish()
    assert codes == [1, 1]
    for output in outputs:
        assert "is not the config of this run" in output
