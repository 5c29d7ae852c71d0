"""From softmax to HYLA: what is copied, what is distilled, and that the result is a usual run."""

import json
from pathlib import Path

import pytest
import torch

from tiny_text import documents, tiny_corpus, tiny_language_config, write_text

pytest.importorskip("sentencepiece")

from hyla.tasks.language import Corpus, CorpusConfig, TextFiles, prepare
from hyla.training import Interrupted, load_run
from hyla.training.language import (
    Execution,
    LanguageConfig,
    Source,
    language_run_path,
    load_language_model,
    train_language,
)
from hyla.training.language.conversion import Distillation
from hyla.training.language.steps import Steps
from hyla.training.language.training import check_execution
from hyla.training.run.errors import NoRunError
from hyla.training.run.ranks import Ranks
from hyla.training.run.reading import read_metrics

TEXT = "hyla_residual_minus_rmshead_plus_softmax.rms4"
ATTENTION = ".attention."


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def softmax(corpus, tmp_path_factory) -> Path:
    """A finished run to begin from."""
    config = tiny_language_config(corpus, model={"attention": "softmax"}, steps=60)
    root = tmp_path_factory.mktemp("softmax")
    train_language(config, corpus, root=root, device="cpu")
    return language_run_path(config, root)


@pytest.fixture(autouse=True)
def _stops_between_any_steps(monkeypatch):
    monkeypatch.setattr("hyla.training.run.loop.SECONDS_BETWEEN_STOPS", 0.0)


def converted(corpus, source: Source, *, distil_steps=5, attention=TEXT, **changes):
    begin = source.settings()
    return tiny_language_config(
        corpus,
        model=begin["model"] | {"attention": attention} | changes.pop("model", {}),
        conversion=begin["conversion"] | {"distil_steps": distil_steps},
        **changes,
    )


def steps_of(config: LanguageConfig, corpus: Corpus, source: Source) -> Steps:
    return Steps(config, corpus.tokens("train"), Execution(), Ranks("cpu"), source=source)


def snapshot(steps: Steps) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in steps.model.parameters.items()}


@pytest.mark.parametrize("attention", [TEXT, "hyla.expected2", "hyla_deep"])
def test_every_parameter_that_both_have_is_copied(corpus, softmax, attention):
    source = Source.open(softmax, corpus)
    steps = steps_of(converted(corpus, source, attention=attention), corpus, source)
    old = load_run(softmax).parameters
    new = snapshot(steps)
    own = {name for name in new if name not in old}
    assert own == {name for name in new if name.endswith("value_weight")}
    assert bool(own) is (attention == "hyla_deep")
    assert old.keys() <= new.keys()
    for name, tensor in old.items():
        assert torch.equal(new[name], tensor), name


@pytest.mark.parametrize("attention", [TEXT, "hyla.expected2"])
def test_distilling_brings_every_layer_closer_and_changes_nothing_else(corpus, softmax, attention):
    source = Source.open(softmax, corpus)
    config = converted(corpus, source, attention=attention, distil_steps=50, steps=53)
    steps = steps_of(config, corpus, source)
    before = snapshot(steps)
    errors = Distillation(source.model(torch.device("cpu")), steps.model.transformer).errors
    inputs = steps._batch()[:, :-1]
    apart = errors(inputs).detach()
    steps.train(50)
    closer = errors(inputs).detach()
    assert (closer < 0.8 * apart).all(), (apart, closer)
    after = snapshot(steps)
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    # All of attention, but what softmax and its like do not see: a constant added to all keys.
    assert all(ATTENTION in name for name in changed)
    assert {n for n in after if ATTENTION in n and n.endswith("weight")} <= changed
    steps.train(2)  # the first of a warmup has a rate of 0
    assert any(ATTENTION not in n and not torch.equal(snapshot(steps)[n], after[n]) for n in after)


def test_the_layers_of_the_same_attention_are_not_apart(corpus, softmax):
    source = Source.open(softmax, corpus)
    steps = steps_of(converted(corpus, source, attention="softmax"), corpus, source)
    distillation = Distillation(source.model(torch.device("cpu")), steps.model.transformer)
    with torch.no_grad():
        assert distillation(steps._batch()) == 0


def test_an_error_is_of_one_layer_alone(corpus, softmax):
    """On the inputs of the old layers: one that gives nothing spoils none after it."""
    source = Source.open(softmax, corpus)
    teacher, student = (source.model(torch.device("cpu")) for _ in range(2))
    with torch.no_grad():
        student.get_parameter("blocks.0.attention.out_proj.weight").zero_()
        errors = Distillation(teacher, student).errors(torch.arange(32).view(2, 16))
    assert errors[0] > 0
    assert errors[1] == 0


def test_a_converted_run_is_a_usual_one(corpus, softmax, tmp_path):
    source = Source.open(softmax, corpus)
    config = converted(corpus, source, steps=40, log_every=2)
    summary = train_language(config, corpus, root=tmp_path, device="cpu", source=source)
    path = language_run_path(config, tmp_path)
    assert summary["tokens"] == 40 * 8 * 16  # those of the distillation among them
    assert load_run(path).config == config
    assert load_language_model(path, "cpu").step == 40
    stored = json.loads((path / "config.json").read_text())["conversion"]
    assert stored["distil_steps"] == 5
    assert softmax.name.endswith(stored["source"][:12])
    losses = {record["step"]: record["loss"][0] for record in read_metrics(path)[:-1]}
    assert max(losses[2], losses[4]) < 2 < losses[6]  # squares, and then nats
    # What it begins from, and for how long it learns from that, make it another run.
    scratch = tiny_language_config(corpus, model={"attention": TEXT}, steps=40, log_every=2)
    shorter = converted(corpus, source, steps=40, log_every=2, distil_steps=4)
    assert "conversion" not in scratch.to_tree()
    assert len({language_run_path(c, tmp_path) for c in (config, scratch, shorter)}) == 3
    fresh = train_language(scratch, corpus, root=tmp_path, device="cpu")
    assert _loss(summary) < _loss(fresh)
    # It can be begun from in turn.
    again = Source.open(path, corpus)
    again.check(converted(corpus, again, attention="softmax"))


def _loss(summary) -> float:
    return summary["members"][0]["metrics"]["validation/loss"]


@pytest.mark.parametrize("at", [3, 5, 7], ids=["distilling", "between", "training on"])
def test_resuming_gives_the_same_bits(corpus, softmax, tmp_path, monkeypatch, at):
    source = Source.open(softmax, corpus)
    config = converted(corpus, source)
    take = Steps.take

    def run(root: Path) -> None:
        train_language(config, corpus, root=root, device="cpu", source=source)

    run(tmp_path / "whole")

    def stopped(self: Steps) -> None:
        if self.step == at:
            raise KeyboardInterrupt
        take(self)

    with monkeypatch.context() as patch:
        patch.setattr(Steps, "take", stopped)
        patch.setattr("hyla.training.run.loop.SECONDS_TO_THE_FIRST_CHECKPOINT", 0.0)
        patch.setattr("hyla.training.run.loop.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
        patch.setattr("hyla.training.run.loop.MOST_TIME_SAVING", float("inf"))
        with pytest.raises((Interrupted, KeyboardInterrupt)):
            run(tmp_path / "parts")
    path = language_run_path(config, tmp_path / "parts")
    assert load_run(path).step == at
    run(tmp_path / "parts")
    whole = load_run(language_run_path(config, tmp_path / "whole")).parameters
    for name, tensor in load_run(path).parameters.items():
        assert torch.equal(tensor, whole[name]), name
    logged = [
        [{n: v for n, v in r.items() if "second" not in n} for r in read_metrics(one)]
        for one in (path, language_run_path(config, tmp_path / "whole"))
    ]
    assert logged[0] == logged[1]


def test_what_cannot_be_begun_from_says_what_to_do(corpus, softmax, tmp_path):
    with pytest.raises(NoRunError, match="is not a run directory"):
        Source.open(tmp_path, corpus)
    config = tiny_language_config(corpus, model={"attention": "softmax"})
    with pytest.raises(Interrupted):
        train_language(config, corpus, root=tmp_path, device="cpu", max_seconds=1e-6)
    with pytest.raises(ValueError, match="is not finished: run the command that began it"):
        Source.open(language_run_path(config, tmp_path), corpus)
    text = write_text(tmp_path / "b.txt", documents(seed=1))
    settings = CorpusConfig(vocab_size=380, validation_fraction=0.1)
    other = prepare(tmp_path / "other", TextFiles([text]), settings=settings)
    with pytest.raises(ValueError, match=r"another tokenizer .*hyla data prepare OUT FILES --tok"):
        Source.open(softmax, other)
    (tmp_path / "fuzzy").mkdir()
    (tmp_path / "fuzzy" / "config.json").write_text('{"task_name": "fuzzy"}')
    with pytest.raises(ValueError, match="is a run of fuzzy, not of language"):
        Source.open(tmp_path / "fuzzy", corpus)


def test_what_cannot_be_converted_says_what_to_do(corpus, softmax, tmp_path):
    source = Source.open(softmax, corpus)
    wider = converted(corpus, source, model={"mlp_dim": 48})
    with pytest.raises(ValueError, match=r"shape of .*, so leave out model.mlp_dim 48 \(there 32"):
        train_language(wider, corpus, root=tmp_path, device="cpu", source=source)
    with pytest.raises(ValueError, match="is not that of a run that begins from"):
        source.check(tiny_language_config(corpus))
    with pytest.raises(ValueError, match="give it as the source"):
        train_language(converted(corpus, source), corpus, root=tmp_path, device="cpu")
    with pytest.raises(ValueError, match="12 distil_steps leave none of 12 steps"):
        converted(corpus, source, distil_steps=12)
    with pytest.raises(ValueError, match="distil_steps must be at least 0"):
        converted(corpus, source, distil_steps=-1)
    launched = {"RANK": "0", "MASTER_ADDR": "here"}
    with pytest.raises(ValueError, match="'fsdp' cannot distil: use 'ddp'"):
        check_execution(
            converted(corpus, source),
            Execution(strategy="fsdp"),
            Ranks("cpu", environment=launched),
        )
    assert not list(tmp_path.iterdir())
