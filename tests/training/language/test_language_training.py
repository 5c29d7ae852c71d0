"""Language models in one process: records, exact resume, metrics, what is refused."""

import math

import pytest
import torch
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

from kernel_host import kept_builds
from tiny_text import documents, tiny_corpus, tiny_language_config, write_text

pytest.importorskip("sentencepiece")

from hyla._files import write_atomically
from hyla.attention.kernels.cpu import compiler
from hyla.nn import branch_scales
from hyla.nn.generate import generate
from hyla.tasks.language import Corpus, CorpusConfig, CorpusError, TextFiles, Windows, prepare
from hyla.training import Interrupted
from hyla.training.language import (
    Execution,
    language_run_path,
    load_language_model,
    train_language,
)
from hyla.training.language.config import load_language_preset
from hyla.training.language.evaluation import Validation
from hyla.training.language.steps import Steps
from hyla.training.run.checkpoints.base import Checkpoints
from hyla.training.run.directory import RunDirectory
from hyla.training.run.errors import CheckpointError, RunDirectoryError
from hyla.training.run.ranks import Ranks
from hyla.training.run.reading import read_branch_scales, read_metrics
from hyla.training.run.stop import StopRequest

LOOP = "hyla.training.run.loop"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(autouse=True)
def _stops_between_any_steps(monkeypatch):
    monkeypatch.setattr(f"{LOOP}.SECONDS_BETWEEN_STOPS", 0.0)


def run(config, corpus, root, **options):
    return train_language(config, corpus, root=root, device="cpu", **options)


def records(config, root) -> list[dict]:
    """What the run logged, without clocks."""
    found = read_metrics(language_run_path(config, root))
    for record in found:
        assert record.pop("seconds") >= 0
        record.pop("tokens_per_second", None)
    return found


def weights(config, root) -> dict[str, torch.Tensor]:
    return load_language_model(language_run_path(config, root), "cpu").transformer.state_dict()


def assert_same(config, root, reference):
    assert records(config, root) == records(config, reference)
    for name, tensor in weights(config, reference).items():
        assert torch.equal(weights(config, root)[name], tensor), name


def interrupt(monkeypatch, at: int):
    """Let a stop be requested as soon as `at` steps were taken in this process."""
    taken = 0
    take, enter = Steps.take, StopRequest.__enter__
    stop = None

    def noted(self):
        nonlocal stop
        stop = self
        return enter(self)

    def counted(self):
        nonlocal taken
        take(self)
        taken += 1
        if taken == at:
            assert stop is not None
            stop.request("test")

    monkeypatch.setattr(StopRequest, "__enter__", noted)
    monkeypatch.setattr(Steps, "take", counted)


def test_a_run_and_its_records(corpus, tmp_path):
    config = tiny_language_config(corpus)
    summary = run(config, corpus, tmp_path)
    logged = records(config, tmp_path)
    assert [record["step"] for record in logged] == [4, 6, 8, 12, 12]
    assert [record["tokens"] for record in logged] == [s * 8 * 16 for s in (4, 6, 8, 12, 12)]
    assert ["validation/loss" in record for record in logged] == [False, True, False, False, True]
    (member,) = summary["members"]
    metrics = member["metrics"]
    assert metrics["validation/loss"] < math.log(400)
    assert metrics["validation/perplexity"] == pytest.approx(math.exp(metrics["validation/loss"]))
    bits = metrics["validation/loss"] / math.log(2) / corpus.bytes_per_token("validation")
    assert metrics["validation/bits_per_byte"] == pytest.approx(bits)
    assert summary["tokens"] == 12 * 8 * 16
    assert summary["parameters"] > summary["parameters_without_embeddings"] > 0
    assert run(config, corpus, tmp_path) == summary  # finished: not trained again
    assert records(config, tmp_path) == logged


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch's own compiler
@pytest.mark.parametrize("compile", [False, True])
def test_the_branches_are_measured_on_the_first_batch(corpus, compile):
    config = tiny_language_config(corpus)
    steps = Steps(config, corpus.tokens("train"), Execution(compile=compile), Ranks("cpu"))
    tokens = steps._batch()
    want = branch_scales(steps.model.transformer, tokens[:3, :-1])
    torch._dynamo.utils.counters.clear()
    generator = torch.get_rng_state()
    (got,) = steps.branch_scales(3)
    assert torch.equal(torch.get_rng_state(), generator)
    for one, other in zip(got, want, strict=True):
        assert vars(one) == pytest.approx(vars(other), rel=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 0  # nothing was compiled


def test_the_branches_are_measured_once(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("hyla.training.run.branches._HARMLESS", 0.0)  # in a model this small
    config = tiny_language_config(corpus, model={"attention": "linear"})
    interrupt(monkeypatch, at=5)
    with pytest.raises(Interrupted):
        run(config, corpus, tmp_path)
    path = language_run_path(config, tmp_path)
    found = read_branch_scales(path)
    assert found is not None
    assert len(found["blocks"]) == 2
    assert capsys.readouterr().out.count("drowns it") == 1
    run(config, corpus, tmp_path)
    assert "drowns it" not in capsys.readouterr().out
    assert (path / "metrics.jsonl").read_text().count("branch_scales") == 1


@pytest.mark.parametrize("attention", ["hyla", "softmax", "linear"])
def test_it_learns(corpus, tmp_path, attention):
    config = tiny_language_config(
        corpus, steps=60, model={"attention": attention}, evaluation={"every": 100}, log_every=60
    )
    metrics = run(config, corpus, tmp_path)["members"][0]["metrics"]
    assert metrics["validation/loss"] < 4.3  # of ln 400 = 6.0


def test_the_validation_loss_is_the_models(corpus, tmp_path):
    config = tiny_language_config(corpus)
    metrics = run(config, corpus, tmp_path)["members"][0]["metrics"]
    model = load_language_model(language_run_path(config, tmp_path), "cpu").transformer
    windows = Windows(corpus.tokens("validation"), 16)
    count = min(9, windows.count)
    tokens = torch.from_numpy(windows.read(torch.arange(count).numpy()))
    with torch.no_grad():
        logits = model(tokens[:, :-1])
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert metrics["validation/loss"] == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("at", [1, 4, 5, 6, 11])
def test_stopped_anywhere_it_ends_with_the_same_bits(corpus, tmp_path, monkeypatch, at):
    config = tiny_language_config(corpus)
    run(config, corpus, tmp_path / "reference")
    with monkeypatch.context() as patch:
        interrupt(patch, at)
        with pytest.raises(Interrupted, match=rf"stopped at step {at} of 12 \(test\)"):
            run(config, corpus, tmp_path / "run")
    run(config, corpus, tmp_path / "run")
    assert_same(config, tmp_path / "run", tmp_path / "reference")


def stop_in_evaluations(monkeypatch):
    """Let a stop be requested as soon as an evaluation begins."""
    score, enter = Validation.metrics, StopRequest.__enter__
    current = {}

    def stopping(self, losses, sequences, *, batch_size, before_batch):
        current["stop"].request("test")
        return score(self, losses, sequences, batch_size=batch_size, before_batch=before_batch)

    def noted(self):
        current["stop"] = self
        return enter(self)

    monkeypatch.setattr(Validation, "metrics", stopping)
    monkeypatch.setattr(StopRequest, "__enter__", noted)


def die_after_logging(monkeypatch):
    """Let the process end right after its first record."""
    log = RunDirectory.log

    def log_and_die(self, record):
        log(self, record)
        raise KeyboardInterrupt

    monkeypatch.setattr(RunDirectory, "log", log_and_die)


def test_stopped_during_evaluation(corpus, tmp_path, monkeypatch):
    config = tiny_language_config(corpus)
    run(config, corpus, tmp_path / "reference")
    for step in (6, 12):
        with monkeypatch.context() as patch:
            stop_in_evaluations(patch)
            with pytest.raises(Interrupted, match=f"stopped at step {step}"):
                run(config, corpus, tmp_path / "run")
        if step == 6:  # else the resumed run would stop there again
            with monkeypatch.context() as patch:
                interrupt(patch, 2)
                with pytest.raises(Interrupted, match="stopped at step 8"):
                    run(config, corpus, tmp_path / "run")
    run(config, corpus, tmp_path / "run")
    assert_same(config, tmp_path / "run", tmp_path / "reference")


@pytest.mark.parametrize("diverges", [False, True], ids=["", "diverged"])
def test_killed_after_the_step_was_reported_whose_evaluation_was_stopped(
    corpus, tmp_path, monkeypatch, diverges
):
    """The checkpoint still holds that step's loss; it counts for its record alone."""
    member = {"member": {"learning_rate": 1e30}, "log_every": 100} if diverges else {}
    config = tiny_language_config(corpus, **member)
    run(config, corpus, tmp_path / "reference")
    with monkeypatch.context() as patch:
        stop_in_evaluations(patch)
        with pytest.raises(Interrupted, match="stopped at step 6"):
            run(config, corpus, tmp_path / "run")
    with monkeypatch.context() as patch:
        die_after_logging(patch)
        with pytest.raises(KeyboardInterrupt):
            run(config, corpus, tmp_path / "run")
    assert records(config, tmp_path / "run")[-1]["step"] == 6
    run(config, corpus, tmp_path / "run")
    assert str(records(config, tmp_path / "run")) == str(records(config, tmp_path / "reference"))


def test_checkpoints_while_it_runs(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{LOOP}.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr(f"{LOOP}.MOST_TIME_SAVING", math.inf)
    config = tiny_language_config(corpus)
    saved = []
    real = Checkpoints.save
    monkeypatch.setattr(
        Checkpoints, "save", lambda self, step, *a: saved.append(step) or real(self, step, *a)
    )
    run(config, corpus, tmp_path)
    assert saved[-1] == 12
    assert len(saved) > 6
    kept = sorted(language_run_path(config, tmp_path).glob("checkpoint-*"))
    assert len(kept) == 2
    assert kept[-1].name == "checkpoint-000012"


@pytest.mark.parametrize(
    "execution",
    [Execution(micro_batch=2), Execution(micro_batch=8), Execution(recompute=True)],
    ids=str,
)
def test_how_it_is_computed_changes_nothing_but_rounding(corpus, tmp_path, execution):
    config = tiny_language_config(corpus)
    plain = run(config, corpus, tmp_path / "plain")
    other = run(config, corpus, tmp_path / "other", execution=execution)
    assert language_run_path(config, tmp_path / "other").name == (
        language_run_path(config, tmp_path / "plain").name
    )
    expected = plain["members"][0]["metrics"]["validation/loss"]
    assert other["members"][0]["metrics"]["validation/loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch's own compiler
def test_compiled(corpus, tmp_path):
    config = tiny_language_config(corpus)
    plain = run(config, corpus, tmp_path / "plain")
    other = run(config, corpus, tmp_path / "other", execution=Execution(compile=True))
    expected = plain["members"][0]["metrics"]["validation/loss"]
    assert other["members"][0]["metrics"]["validation/loss"] == pytest.approx(expected, rel=1e-4)


def test_every_model_of_a_process_is_compiled(corpus, monkeypatch):
    """A few of them would reach the compiler's limit, beyond which nothing is compiled."""
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **_: compile(function, backend="eager"))
    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        for attention in ("hyla", "softmax", "linear"):
            config = tiny_language_config(corpus, model={"attention": attention})
            Steps(config, corpus.tokens("train"), Execution(compile=True), Ranks("cpu")).prepare()


def test_a_loss_that_is_not_finite_ends_the_run(corpus, tmp_path):
    config = tiny_language_config(corpus, member={"learning_rate": 1e30, "warmup_steps": 0})
    summary = run(config, corpus, tmp_path)
    assert summary["members"][0]["diverged_at"] == 1
    assert summary["steps"] == 4  # at the next record


@pytest.mark.parametrize("at", [1, 2, 4])
def test_stopped_after_it_diverged_it_ends_where_it_would_have(corpus, tmp_path, monkeypatch, at):
    config = tiny_language_config(corpus, member={"learning_rate": 1e30, "warmup_steps": 0})
    run(config, corpus, tmp_path / "reference")
    with monkeypatch.context() as patch:
        interrupt(patch, at)
        with pytest.raises(Interrupted, match=f"stopped at step {at} of 12"):
            run(config, corpus, tmp_path / "run")
    summary = run(config, corpus, tmp_path / "run")
    assert (summary["members"][0]["diverged_at"], summary["steps"]) == (1, 4)
    assert str(records(config, tmp_path / "run")) == str(records(config, tmp_path / "reference"))


@pytest.mark.parametrize(
    ("meta", "diverged_at"),
    [
        ({"losses": [0.0, 0], "diverged_at": 4}, 4),
        ({"losses": [None, 3], "diverged_at": None}, 3),  # until the next record it was not noted
        ({"losses": [18.0, 3], "diverged_at": None}, None),
        ({"losses": [0.0, 0], "diverged_at": 12}, 12),
    ],
    ids=str,
)
def test_what_an_earlier_version_knew_of_a_divergence(corpus, meta, diverged_at):
    config = tiny_language_config(corpus)
    steps = Steps(config, corpus.tokens("train"), Execution(), Ranks("cpu"))
    steps.resume(4, {}, meta)
    assert steps.diverged_at() == [diverged_at]


def test_the_first_rank_to_diverge_counts(corpus, monkeypatch):
    config = tiny_language_config(corpus)
    steps = Steps(config, corpus.tokens("train"), Execution(), Ranks("cpu"))
    others = {"never": 0, "after 2": 11, "after 0": 13}  # of 12 steps and one
    for own, expected in ((None, [None, 2, 0]), (1, [1, 1, 0])):
        steps.resume(4, {}, {"losses": [0.0, 0], "diverged_at": own})
        for left, wanted in zip(others.values(), expected, strict=True):
            monkeypatch.setattr(steps.ranks, "largest", lambda own, left=left: [max(own, left)])
            assert steps.diverged_at() == [wanted]


def test_damaged_checkpoints_are_passed_over(corpus, tmp_path, monkeypatch, capsys):
    config = tiny_language_config(corpus)
    run(config, corpus, tmp_path / "reference")
    for at in (4, 3):
        with monkeypatch.context() as patch:
            interrupt(patch, at)
            with pytest.raises(Interrupted):
                run(config, corpus, tmp_path / "run")
    path = language_run_path(config, tmp_path / "run")
    assert sorted(p.name for p in path.glob("checkpoint-*")) == [
        "checkpoint-000004",
        "checkpoint-000007",
    ]
    (newest,) = (path / "checkpoint-000007").glob("*.safetensors")
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    capsys.readouterr()
    run(config, corpus, tmp_path / "run")
    said = capsys.readouterr().out
    assert "checkpoint-000007 is not used: damaged: the SHA-256" in said
    assert "continuing from step 4" in said
    assert_same(config, tmp_path / "run", tmp_path / "reference")


def test_a_full_disk_is_explained(corpus, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    config = tiny_language_config(corpus)
    # Below what torch wraps in a report of its own.
    monkeypatch.setattr(HuggingFaceStorageWriter, "write_data", full)
    with pytest.raises(CheckpointError, match=r"Disk full: .*There is no earlier checkpoint"):
        run(config, corpus, tmp_path)
    # What was half written would keep the disk full.
    assert not list(language_run_path(config, tmp_path).glob(".checkpoint-*"))


def test_no_room_for_the_tokenizer_is_explained(corpus, tmp_path, monkeypatch):
    def full(path, content):
        if path.name == "tokenizer.model":
            raise OSError(28, "No space left on device")
        write_atomically(path, content)

    monkeypatch.setattr("hyla.training.run.directory.write_atomically", full)
    with pytest.raises(RunDirectoryError, match=r"Disk full: cannot write .*tokenizer\.model"):
        run(tiny_language_config(corpus), corpus, tmp_path)


def test_loading_a_model(corpus, tmp_path):
    config = tiny_language_config(corpus)
    run(config, corpus, tmp_path)
    loaded = load_language_model(language_run_path(config, tmp_path), "cpu")
    assert loaded.step == 12
    tokens = torch.tensor([[loaded.tokenizer.separator, *loaded.tokenizer.encode("Anna saw")]])
    text = generate(loaded.transformer, tokens, max_new_tokens=8, temperature=0)
    assert loaded.tokenizer.decode(text[0, 1:].tolist()).startswith("Anna saw")


def test_what_is_no_run(tmp_path):
    with pytest.raises(RunDirectoryError, match="is not a run directory"):
        load_language_model(tmp_path, "cpu")
    (tmp_path / "config.json").write_text('{"task_name": "fuzzy"}')
    with pytest.raises(RunDirectoryError, match="is a run of fuzzy, not of language"):
        load_language_model(tmp_path, "cpu")


def test_another_corpus_is_refused(corpus, tmp_path):
    config = tiny_language_config(corpus)
    texts = TextFiles([write_text(tmp_path / "a.txt", documents(40, seed=9))])
    other = prepare(
        tmp_path / "other", texts, settings=CorpusConfig(vocab_size=390, validation_fraction=0.2)
    )
    with pytest.raises(CorpusError, match="holds other tokens"):
        run(config, other, tmp_path / "runs")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": "tiny"}, "size 'tiny' is unknown"),
        ({"model": {"input_dim": 5}}, "model.input_dim follows from the corpus"),
        ({"model": {"layers": 5}}, "model.layers is not a setting"),
        ({"model": {"causal": False}}, "needs inputs='tokens' and causal=True"),
        ({"model": {"attention_dropout": 0.1}}, "attention_dropout must be 0"),
        ({"model": {"feed_forward": "moe"}}, "'moe' is not trained here"),
        ({"evaluation": {"every": 0}}, "evaluation.every must be at least 1, got 0"),
        ({"precision": "fp8"}, "precision 'fp8' is unknown"),
        ({"member": {"learning_rate": -1}}, "learning_rate must be finite and not negative"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
    ],
    ids=str,
)
def test_wrong_settings_are_named(corpus, changes, message):
    with pytest.raises(ValueError, match=message):
        tiny_language_config(corpus, **changes)


def test_wrong_executions_are_named(corpus, tmp_path):
    config = tiny_language_config(corpus)
    with pytest.raises(ValueError, match=r"strategy 'dpp' is unknown \(did you mean 'ddp'\?\)"):
        Execution(strategy="dpp")
    with pytest.raises(ValueError, match="backend 'fast' is unknown"):
        Execution(backend="fast")
    with pytest.raises(ValueError, match="micro_batch 3 does not divide a rank's 8 sequences"):
        run(config, corpus, tmp_path, execution=Execution(micro_batch=3))
    with pytest.raises(ValueError, match="strategy 'fsdp' needs torchrun"):
        run(config, corpus, tmp_path, execution=Execution(strategy="fsdp"))
    config = tiny_language_config(corpus, precision="bf16")
    with pytest.raises(ValueError, match=r"cannot compute this on cpu: .*it takes float32"):
        run(config, corpus, tmp_path, execution=Execution(backend="fused"))


@pytest.mark.skipif(compiler.why_unavailable() is not None, reason="needs a C++ compiler")
def test_the_kernel_of_a_cpu_trains_small_heads(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(kept_builds()))
    config, losses = tiny_language_config(corpus), []
    for backend in ("reference", "fused"):
        run(config, corpus, tmp_path / backend, execution=Execution(backend=backend))
        logged = records(config, tmp_path / backend)
        losses.append([record["loss"][0] for record in logged if "loss" in record])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[0]


def test_the_paper_scale_is_table_a3():
    tree = load_language_preset("paper")
    assert tree["batch_size"] * tree["model"]["sequence_length"] * tree["steps"] == 131_072_000_000
    with pytest.raises(ValueError, match="scale 'papr' is unknown"):
        load_language_preset("papr")
