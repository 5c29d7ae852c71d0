"""Two ranks on the CPU: the losses of one, and resuming after a rank was killed or is not there."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tiny_text import tiny_corpus, tiny_language_config

pytest.importorskip("sentencepiece")

from hyla.tasks.language import Corpus
from hyla.training.language import language_run_path, load_language_model, train_language
from hyla.training.run_directory import read_metrics

# What every rank runs: settings come as JSON, so that a test can slow it down or stop it.
RANK = """
import json, os, sys, time, warnings
from pathlib import Path
warnings.simplefilter("error")
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from tiny_text import tiny_language_config
from hyla.tasks.language import Corpus
from hyla.training import Interrupted
from hyla.training.language import Execution, loop, train_language

options = json.loads(sys.argv[4])
loop.SECONDS_BETWEEN_STOPS = 0.0
loop.SECONDS_BETWEEN_CHECKPOINTS, loop.MOST_TIME_SAVING = 0.0, float("inf")
step = loop._Training._train_step
def slowly(self):
    step(self)
    mark = Path(sys.argv[3], f"rank{self.ranks.rank}.json")
    mark.write_text(json.dumps([os.getpid(), self.step]))
    time.sleep(options.get("sleep", 0))
    if self.ranks.rank == 1 and self.step == options.get("stop_rank_1_at"):
        self.stop.request("test")
loop._Training._train_step = slowly
corpus = Corpus.open(sys.argv[2])
try:
    train_language(
        tiny_language_config(corpus), corpus, root=sys.argv[3], device="cpu",
        execution=Execution(**options.get("execution", {})),
    )
except Interrupted as stopped:
    print(stopped)
    sys.exit(75)
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory) -> Path:
    """The same run by one process."""
    root = tmp_path_factory.mktemp("alone")
    train_language(tiny_language_config(corpus), corpus, root=root, device="cpu")
    return root


def start(corpus: Corpus, root: Path, ranks: int, **options) -> list[subprocess.Popen]:
    root.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [str(Path(__file__).parent.parent), str(corpus.path), str(root)]
    return [
        subprocess.Popen(
            [sys.executable, "-c", RANK, *arguments, json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ
            | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(ranks)
    ]


def finish(processes: list[subprocess.Popen], code: int = 0) -> list[str]:
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [code] * len(processes), outputs
    return outputs


def losses(corpus: Corpus, root: Path) -> list[tuple[int, str, float]]:
    """Every loss that was logged, by step and name."""
    path = language_run_path(tiny_language_config(corpus), root)
    return [
        (record["step"], name, record[name][0])
        for record in read_metrics(path)
        for name in ("loss", "validation/loss")
        if name in record
    ]


def assert_same_losses(corpus: Corpus, root: Path, alone: Path) -> None:
    got, expected = losses(corpus, root), losses(corpus, alone)
    assert [entry[:2] for entry in got] == [entry[:2] for entry in expected]
    for (step, name, loss), (_, _, wanted) in zip(got, expected, strict=True):
        assert loss == pytest.approx(wanted, rel=2e-5), (step, name)
    path = language_run_path(tiny_language_config(corpus), root)
    weights = load_language_model(path, "cpu").transformer.state_dict()
    reference = load_language_model(
        language_run_path(tiny_language_config(corpus), alone), "cpu"
    ).transformer.state_dict()
    for name, tensor in reference.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_have_the_losses_of_one(corpus, tmp_path, alone, strategy):
    execution = {"strategy": strategy, "micro_batch": 2, "recompute": strategy == "fsdp"}
    outputs = finish(start(corpus, tmp_path / "two", 2, execution=execution))
    assert_same_losses(corpus, tmp_path / "two", alone)
    assert "parameters" in outputs[0]
    assert outputs[1] == ""  # one rank talks


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ((2, "ddp"), (1, "auto")),
        ((2, "fsdp"), (1, "auto")),
        ((1, "auto"), (2, "fsdp")),
    ],
    ids=str,
)
def test_resuming_on_another_number_of_ranks(corpus, tmp_path, alone, first, then):
    ranks, strategy = first
    options = {"stop_rank_1_at": 5, "execution": {"strategy": strategy}}
    if ranks == 1:
        options |= {"sleep": 0.2}
        (process,) = processes = start(corpus, tmp_path / "run", 1, **options)
        wait_for_step(tmp_path / "run", 0, 5)
        process.terminate()
    else:
        processes = start(corpus, tmp_path / "run", ranks, **options)
    outputs = finish(processes, 75)
    assert "stopped at step" in outputs[0]
    ranks, strategy = then
    (said, *_) = finish(start(corpus, tmp_path / "run", ranks, execution={"strategy": strategy}))
    assert "continuing from step" in said
    assert_same_losses(corpus, tmp_path / "run", alone)


def wait_for_step(root: Path, rank: int, step: int) -> int:
    """Wait until a rank has taken a step, and return its process id."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            pid, reached = json.loads((root / f"rank{rank}.json").read_text())
        except (OSError, ValueError):
            pid, reached = 0, -1
        if reached >= step:
            return pid
        time.sleep(0.01)
    raise TimeoutError(f"rank {rank} did not come to step {step}")


def test_a_killed_rank_loses_little(corpus, tmp_path, alone):
    root = tmp_path / "run"
    processes = start(corpus, root, 2, sleep=0.15)
    pid = wait_for_step(root, 1, 7)
    os.kill(pid, signal.SIGKILL)
    processes[1].wait()
    # gloo tells the other rank that its peer is gone; torchrun would end it, too.
    output, _ = processes[0].communicate(timeout=60)
    processes[1].communicate()
    assert processes[0].returncode not in (0, 75), output
    path = language_run_path(tiny_language_config(corpus), root)
    saved = max(path.glob("checkpoint-*"))
    assert int(saved.name[-6:]) >= 4
    (said, _) = finish(start(corpus, root, 2))
    assert f"continuing from step {int(saved.name[-6:])}" in said
    assert_same_losses(corpus, root, alone)


def test_every_rank_hears_of_an_error_of_the_first(corpus, tmp_path):
    path = language_run_path(tiny_language_config(corpus), tmp_path)
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    outputs = finish(start(corpus, tmp_path, 2), 1)
    for output in outputs:
        assert "is not the config of this run" in output
