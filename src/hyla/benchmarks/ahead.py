"""Compiling for many cases at once, before each is timed alone.

What a process compiles it keeps in a folder, where the process that times it finds it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hyla.training.compiling import keep_compiled

ROOT = Path("runs")  # where training keeps what it compiles, too


def compile_ahead(module: str, options: Sequence[Sequence[str]], jobs: int) -> None:
    """Run `python -m module`, `jobs` at a time, with each of the options; say which failed.

    Not in processes of `multiprocessing`: to those the main module has another name, which enters
    the keys by which torch keeps code (Python 3.11, torch 2.13), so that nobody else finds theirs.

    Of some kernels the compiler times several versions to choose one. Choices that were made beside
    other processes are forgotten; those that were there before stay.
    """
    folder = keep_compiled(ROOT)
    earlier = set(_choices(folder))
    # Else each process starts one for each core.
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}

    def run(given: Sequence[str]) -> None:
        command = [sys.executable, "-m", module, *given]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            said = (done.stdout + done.stderr).strip().splitlines()[-1:]
            print(f"{' '.join(given)}: not compiled ahead: {' '.join(said)}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, options))
    for choice in set(_choices(folder)) - earlier:
        choice.unlink(missing_ok=True)


def _choices(folder: Path) -> Iterator[Path]:
    return folder.rglob("*.best_config")
