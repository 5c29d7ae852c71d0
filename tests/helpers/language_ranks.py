"""Training on several ranks as processes of a test, started fast and ended for certain."""

import multiprocessing
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

# Ranks are forked from a server that has imported everything and never computed anything.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["hyla.training.language"])
_PATIENCE = 120.0  # seconds until a rank that has not ended is taken to hang


class RankProcesses:
    """The ranks of one run."""

    def __init__(self, corpus: Path, root: Path, ranks: int, **options: Any):
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.processes = [
            _CONTEXT.Process(target=_run_rank, args=(corpus, root, rank, ranks, port, options))
            for rank in range(ranks)
        ]
        for process in self.processes:
            process.start()

    def finish(self, timeout: float = _PATIENCE) -> tuple[list[int | None], list[str]]:
        """Return the exit codes and outputs; ranks that wait for a lost one are ended."""
        deadline = time.monotonic() + timeout
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in self.processes:
            if process.is_alive():
                process.kill()
                process.join()
        outputs = [_output(self.root, rank).read_text() for rank in range(len(self.processes))]
        return [process.exitcode for process in self.processes], outputs

    def wait_for_step(self, rank: int, step: int) -> None:
        """Return when a rank has taken a step."""
        deadline = time.monotonic() + 60
        mark = _mark(self.root, rank)
        while not (mark.exists() and int(mark.read_text() or -1) >= step):
            assert time.monotonic() < deadline, f"rank {rank} did not come to step {step}"
            time.sleep(0.01)

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank."""
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)


def _output(root: Path, rank: int) -> Path:
    return root / f"rank{rank}.txt"


def _mark(root: Path, rank: int) -> Path:
    return root / f"rank{rank}.step"


def _run_rank(
    corpus: Path, root: Path, rank: int, ranks: int, port: int, options: dict[str, Any]
) -> None:
    """What every rank does, as under torchrun."""
    import faulthandler
    import gc
    import warnings

    import torch

    from hyla.tasks.language import Corpus
    from hyla.training import Interrupted
    from hyla.training.language import Execution, Source, train_language
    from hyla.training.language.steps import Steps
    from hyla.training.run import loop
    from tiny_text import tiny_language_config

    sys.stdout = sys.stderr = _output(root, rank).open("w", buffering=1)
    # A rank that hangs says where, before `finish` ends it.
    faulthandler.dump_traceback_later(0.8 * _PATIENCE, file=sys.stderr)
    _mark(root, rank).unlink(missing_ok=True)
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    # Stop and save between any steps.
    loop.SECONDS_BETWEEN_STOPS = loop.SECONDS_BETWEEN_CHECKPOINTS = 0.0
    loop.MOST_TIME_SAVING = float("inf")
    take = Steps.take

    def slowly(self: Steps) -> None:
        take(self)
        _mark(root, rank).write_text(str(self.step))
        time.sleep(options.get("sleep", 0))
        if rank == ranks - 1 and self.step == options.get("stop_last_at"):
            os.kill(os.getpid(), signal.SIGTERM)

    Steps.take = slowly
    leave = torch.distributed.destroy_process_group

    def leave_as_last_owner() -> None:
        """A reducer that frees the group itself may wait for ever (`ParallelModel.release`)."""
        parallel = torch.nn.parallel.DistributedDataParallel
        owners = [one for one in gc.get_objects() if type(one) is parallel]
        assert not any(hasattr(one, "reducer") for one in owners)
        leave()

    torch.distributed.destroy_process_group = leave_as_last_owner
    opened = Corpus.open(corpus)
    begin = options.get("source")
    try:
        train_language(
            tiny_language_config(opened, **options.get("settings", {})),
            opened,
            root=root,
            device="cpu",
            execution=Execution(**options.get("execution", {})),
            source=None if begin is None else Source.open(begin, opened),
        )
    except Interrupted as stopped:
        print(stopped)
        sys.exit(75)
