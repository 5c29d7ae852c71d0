"""What is still to be measured at the paper's size: one ordered list of lab jobs that resumes.

    python tools/lab_queue.py --list
    python tools/lab_queue.py --max-seconds 470 --root runs/lab --out runs/store

The first command says what is finished and what the rest would take; the second trains, in this
order, until the time is over, and the same command continues. Exit codes: 0 all is done, 75
something is left, 1 something failed, or only what needs a corpus is left. It needs torch, numpy,
jaxtyping, safetensors, pyyaml and rich alone; what is measured on codes needs pandas, and is left
out without it.

(Not called queue.py: Python puts the folder of a script first on its path, and the standard library
has a module of that name.)
"""

import argparse
import functools
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hyla import RECOMMENDED
from hyla._errors import BusyError, UnfinishedError
from hyla.commands.shared.exits import CTRL_C, FAILURE, TRY_AGAIN, USAGE
from hyla.commands.shared.output import Screen, table
from hyla.tasks.language import CorpusError
from hyla.training import SCALES, Interrupted
from hyla.training.run.errors import CheckpointError, RunDirectoryError
from packing import PART_BYTES, pack, unpack
from queue_jobs import PAPER, Job, LanguageJob, State, least_seconds

AnyJob = Job | LanguageJob

_SRAVEN = {"task_name": ["sraven"]}
_DENSE, _EXPERTS = {"model.feed_forward": ["gelu"]}, {"model.feed_forward": ["moe"]}
_QUOTED = ("scale", "tableA1", "fig5f", "codeswap")
_TEXT = "hyla_residual_minus_rmshead_plus_softmax.rms4"  # what is level with softmax on text
# What results/lab/paper-tf32 has from a clean commit is left out. On SRAVEN twelve models at a
# time: what an H200 trains in 470 seconds.
JOBS = (
    Job(
        name="equalscale-fuzzy",
        why="Table A1 at equal scale on fuzzy logic: which ingredient still matters?",
        asked=("equalscale",),
        only={"task_name": ["fuzzy"]},
    ),
    Job(
        name="cross-8-layers",
        why="8 layers: does HYLA gain from depth?",
        asked=("cross",),
        only={"model.num_layers": ["8"]},
        seeds=1,
    ),
    LanguageJob(
        name="text-rate",
        why="as many tokens of text at three times the rate: who gains as much as softmax?",
        attentions=("softmax", _TEXT, RECOMMENDED, "hyla", "linear"),
        learning_rate=0.003,
    ),
    Job(
        name="quoted-sraven",
        why="what the README quotes on SRAVEN, six seeds: the two that are not measured so yet",
        asked=_QUOTED,
        only=_SRAVEN | _DENSE | {"model.attention": ["linear", "hyla"]},
        seeds=6,
    ),
    Job(
        name="quoted-fuzzy",
        why="what the README quotes on fuzzy logic, six seeds",
        asked=("scale", "tableA1", "fig2b", "fig2d"),
        only={"task_name": ["fuzzy"]}
        | _DENSE
        | {"model.attention": ["softmax", "linear", "hyla", RECOMMENDED]},
        seeds=6,
    ),
    LanguageJob(
        name="quoted-text",
        why="what the README quotes on text: 197 M tokens, 4.4 epochs of the corpus",
        attentions=("hyla", "linear"),
        learning_rate=0.001,
    ),
    Job(
        name="tableA1-dense",
        why="Table A1 on SRAVEN: the rows that are missing without experts, but the slowest",
        asked=("tableA1",),
        only=_SRAVEN
        | _DENSE
        | {
            "model.attention": [
                "linear_rmshead",
                "linear_rmshead_nonlinear_value",
                "hyla_minus_nonlinearity_minus_rmshead",
                "hyla_minus_rmshead_plus_softmax",
                "hyla_plus_softmax",
            ]
        },
    ),
    Job(
        name="tableA1-deep",
        why="Table A1 on SRAVEN: its row with a deep value network",
        asked=("tableA1",),
        only=_SRAVEN | _DENSE | {"model.attention": ["hyla_deep"]},
    ),
    Job(
        name="tableA1-experts",
        why="Table A1 on SRAVEN: its three rows with a mixture of experts",
        asked=("tableA1",),
        only=_SRAVEN | _EXPERTS,
    ),
    LanguageJob(
        name="text-rate-seeds",
        why="two more seeds of the first two",
        attentions=("softmax", _TEXT),
        learning_rate=0.003,
        seeds=(1, 2),
    ),
    Job(
        name="cross-data",
        why="5, 10 and 40 M instances: does HYLA gain from data as softmax does?",
        asked=("cross",),
        only={"steps": ["39062", "78125", "312500"]},
    ),
    Job(
        name="cross-16-layers",
        why="does it go on with 16 layers?",
        asked=("cross",),
        only={"model.num_layers": ["16"]},
        seeds=1,
    ),
    Job(
        name="cross-width",
        why="twice and four times the width: does it gain from width?",
        asked=("cross",),
        only={"model.width_factor": ["2", "4"]},
        seeds=1,
    ),
    LanguageJob(
        name="text-400M",
        why="400 M tokens, 9 epochs of the corpus: does the gap on text close?",
        attentions=("softmax", RECOMMENDED, _TEXT),
        learning_rate=0.003,
        steps=3052,
    ),
    LanguageJob(
        name="text-800M",
        why="800 M tokens, 18 epochs of the corpus",
        attentions=("softmax", RECOMMENDED, _TEXT),
        learning_rate=0.003,
        steps=6104,
    ),
    Job(
        name="fewtrained",
        why="four, 83 and 248 of SRAVEN's 330 combinations trained",
        asked=("fewtrained",),
    ),
    Job(
        name="recall",
        why="associative recall: how much of the gap on text is that?",
        asked=("recall",),
    ),
    Job(
        name="equalscale-sraven",
        why="Table A1 at equal scale on SRAVEN",
        asked=("equalscale",),
        only=_SRAVEN,
    ),
    Job(
        name="fig5c",
        why="fewer heads at the full 20 M instances",
        asked=("fig5c",),
        only={"model.num_heads": ["1", "2", "4", "8"]},
    ),
    Job(
        name="fig5d",
        why="other numbers of features at the full 20 M instances",
        asked=("fig5d",),
        only={"task.num_features": ["2", "3", "5"]},
    ),
    Job(
        name="figA5",
        why="half and three quarters held out at the full 20 M instances",
        asked=("figA5",),
        only={"task.held_out_fraction": ["0.5", "0.75"]},
    ),
    Job(
        name="fig2c",
        why="Figure 2C's cells that have one seed",
        asked=("fig2c",),
        only={"task.sequence_length": ["64", "96"]},
    ),
    Job(
        name="figA7",
        why="codes of a deep softmax transformer",
        asked=("figA7",),
    ),
    Job(
        name="unambiguous",
        why="SRAVEN with one answer for each instance",
        asked=("unambiguous",),
    ),
    Job(
        name="tableA1-search",
        why="the grid of Table A3 on SRAVEN, chosen on validation as the paper does",
        asked=("tableA1", "scale"),
        only=_SRAVEN | _DENSE | {"model.attention": ["softmax", "linear", "hyla", RECOMMENDED]},
        search=True,
    ),
)


# --- what there is of it -------------------------------------------------------------------------


def states(jobs: Sequence[AnyJob], *, scale: str, root: Path, out: Path | None) -> list[State]:
    """Return what each of the jobs has under `root`."""
    planned: set[Any] = set()
    return [job.state(planned, scale=scale, root=root, out=out) for job in jobs]


def _show(jobs: Sequence[AnyJob], found: Sequence[State], root: Path) -> None:
    numeric = ("models", "finished", "model-steps", "M tokens", "minutes")
    shown = table(
        f"Left to be trained under {root}, and the estimated minutes of an H200; what was trained "
        "elsewhere before is in results/lab",
        *("job", *numeric, "what for"),
        numeric=numeric,
    )
    for job, state in zip(jobs, found, strict=True):
        shown.add_row(job.name, *_numbers([state]), job.why)
    shown.add_row("together", *_numbers(found), "")
    Screen().print(shown)


def _numbers(found: Sequence[State]) -> list[str]:
    models, finished, steps, tokens = (
        sum(getattr(state, name) for state in found)
        for name in ("models", "finished", "model_steps", "tokens")
    )
    minutes = sum(state.seconds for state in found) / 60
    text = f"{tokens / 1e6:,.0f}" if tokens else ""
    return [str(models), str(finished), f"{steps:,}", text, f"{minutes:,.0f}"]


# --- doing it ------------------------------------------------------------------------------------


def run(
    jobs: Sequence[AnyJob],
    *,
    scale: str,
    max_seconds: float,
    device: str = "auto",
    **options: Any,
) -> int:
    """Run the jobs in order until the time is over; return the exit code."""
    deadline = time.monotonic() + max_seconds
    say = functools.partial(print, flush=True)
    code, needs_corpus = 0, False
    for number, job in enumerate(jobs, start=1):
        left = deadline - time.monotonic()
        if number > 1 and left < least_seconds(device):
            say(f"{job.name} and what comes after it is left for the next time")
            return code or TRY_AGAIN
        say(f"{number} of {len(jobs)}, {job.name}: {job.why}")
        try:
            job.run(scale=scale, max_seconds=left, say=say, device=device, **options)
        except Interrupted as stop:
            say(str(stop))
            code = FAILURE if stop.failures else code or TRY_AGAIN
            return CTRL_C if stop.reason == "SIGINT" else code
        except BusyError as busy:
            say(str(busy))
            code = code or TRY_AGAIN
        except CorpusError as error:
            say(f"{job.name} is left out: {error}")
            needs_corpus = True
        except UnfinishedError as error:  # the next may still succeed
            say(str(error))
            code = FAILURE
    return code or (FAILURE if needs_corpus else 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return the exit code."""
    asked = _parser().parse_args(arguments)
    try:
        if asked.pack is not None:
            for part in pack(asked.root, asked.pack):
                print(part)
            return 0
        if asked.unpack is not None:
            taken = unpack(asked.unpack, asked.root)
            print(f"{len(taken)} runs put under {asked.root}; others stay as they are there")
            return 0
        jobs = _chosen(asked.only)
        if asked.list:
            _show(
                jobs,
                states(jobs, scale=asked.scale, root=asked.root, out=asked.out),
                asked.root,
            )
            return 0
        return run(
            jobs,
            scale=asked.scale,
            max_seconds=asked.max_seconds,
            root=asked.root,
            out=asked.out,
            device=asked.device,
            workers=asked.workers,
            allow_dirty=asked.allow_dirty,
        )
    except ValueError as error:
        print(f"lab_queue: {error}", file=sys.stderr)
        return USAGE
    except (RunDirectoryError, CheckpointError) as error:
        print(f"lab_queue: {error}", file=sys.stderr)
        return FAILURE


def _chosen(names: Sequence[str]) -> list[AnyJob]:
    """Return the jobs of these names, or of those that begin so: cross is all of cross-*."""
    chosen = [job for job in JOBS if not names]
    for name in names:
        own = [job for job in JOBS if job.name == name or job.name.startswith(f"{name}-")]
        if not own:
            there = ", ".join(job.name for job in JOBS)
            raise ValueError(f"--only {name}: there is no such job; choose from {there}")
        chosen += own
    return [job for job in JOBS if job in chosen]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What is still to be measured, in order.")
    add = parser.add_argument
    add("--list", action="store_true", help="say what is finished and what is left")
    add("--only", action="append", default=[], metavar="NAME", help="this job; may be repeated")
    add("--max-seconds", type=float, default=math.inf, help="stop then, with everything saved")
    add("--root", type=Path, default=Path("runs/lab"), help="folder of the run directories")
    add("--out", type=Path, help="folder of the tables (default: the lab's own)")
    add("--scale", choices=SCALES, default=PAPER, help="a smaller one to try the queue out")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--workers", type=int, default=1, help="processes that train at the same time")
    add("--allow-dirty", action="store_true", help="also with uncommitted changes")
    parts = f"runs.tar.gz.00, .01, … of {PART_BYTES // 1_000_000} MB"
    add("--pack", type=Path, metavar="FOLDER", help=f"put the runs into FOLDER/{parts} instead")
    add("--unpack", type=Path, metavar="FOLDER", help="put what was packed under --root instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
