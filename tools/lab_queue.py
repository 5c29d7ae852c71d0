"""What is still to be measured at the paper's size: one ordered list of lab jobs that resumes.

    python tools/lab_queue.py --list
    python tools/lab_queue.py --max-seconds 540 --root runs/lab --out runs/store

The first command says what is finished and what the rest would take; the second trains, in this
order, until the time is over, and the same command continues. Exit codes: 0 all is done, 75
something is left, 1 something failed. It needs torch, numpy, jaxtyping, safetensors, pyyaml and
rich alone; what is measured on codes needs pandas, and is left out without it.

(Not called queue.py: Python puts the folder of a script first on its path, and the standard library
has a module of that name.)
"""

import argparse
import dataclasses
import functools
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hyla import RECOMMENDED, lab
from hyla._errors import BusyError, UnfinishedError
from hyla.commands.shared.exits import CTRL_C, FAILURE, TRY_AGAIN, USAGE
from hyla.commands.shared.output import Screen, table
from hyla.lab.methods import methods_of
from hyla.lab.plan.reproduction import Reproduction
from hyla.lab.registry import load_all
from hyla.results.conditions import Conditions
from hyla.results.runs import flat_settings
from hyla.training import SCALES, Interrupted
from hyla.training.identity import method_key
from packing import PART_BYTES, pack, unpack

_PAPER = "paper"
_LEAST_SECONDS = 20.0
"""Less is not begun with: compiling a population alone takes longer."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A call of `hyla.lab.run`, and why anybody wants to know."""

    name: str
    why: str
    asked: tuple[str, ...]
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)
    seeds: int = 3
    search: bool = False

    def options(self, scale: str) -> dict[str, Any]:
        """Return the keywords of `lab.run` that say what is trained."""
        only = self.only if scale == _PAPER else self._left_of_only(scale)
        options = {"scale": scale, "precision": "tf32", "seeds": self.seeds, "only": only}
        return options | {"search": self.search, "report": False}

    def _left_of_only(self, scale: str) -> dict[str, list[str]]:
        """Return what of `only` there is at a scale at which the queue is merely tried out."""
        conditions = Conditions(scale=scale, precision="tf32")
        models = [
            flat_settings(method.config.to_tree())
            for experiment in load_all(self.asked)
            for method in methods_of(experiment, conditions)
        ]
        known = {key: {str(model.get(key)) for model in models} for key in self.only}
        left = {key: [v for v in values if v in known[key]] for key, values in self.only.items()}
        return {key: values for key, values in left.items() if values}


_SRAVEN = {"task_name": ["sraven"]}
_DENSE, _EXPERTS = {"model.feed_forward": ["gelu"]}, {"model.feed_forward": ["moe"]}
_QUOTED = {"model.attention": ["softmax", "linear", "hyla", RECOMMENDED]}
# What results/lab/paper-tf32 has from a clean commit is left out.
JOBS = (
    Job(
        name="quoted-fuzzy",
        why="what the README quotes on fuzzy logic, with six seeds and from a clean commit",
        asked=("scale", "tableA1", "fig2b", "fig2d"),
        only={"task_name": ["fuzzy"]} | _DENSE | _QUOTED,
        seeds=6,
    ),
    Job(
        name="quoted-sraven",
        why="the same on SRAVEN; of these models the explorer is to ship two",
        asked=("scale", "tableA1", "fig5f", "codeswap"),
        only=_SRAVEN | _DENSE | _QUOTED,
        seeds=6,
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
    Job(
        name="cross-data",
        why="5, 10 and 40 M instances: does HYLA gain from data as softmax does?",
        asked=("cross",),
        only={"steps": ["39062", "78125", "312500"]},
    ),
    Job(
        name="cross-depth",
        why="8 and 16 layers: does it gain from depth?",
        asked=("cross",),
        only={"model.num_layers": ["8", "16"]},
        seeds=1,
    ),
    Job(
        name="cross-width",
        why="twice and four times the width: does it gain from width?",
        asked=("cross",),
        only={"model.width_factor": ["2", "4"]},
        seeds=1,
    ),
    Job(
        name="equalscale-fuzzy",
        why="Table A1 at equal scale on fuzzy logic: which ingredient still matters?",
        asked=("equalscale",),
        only={"task_name": ["fuzzy"]},
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


@dataclass(frozen=True, kw_only=True)
class State:
    """What a job has, and needs beside what those before it train."""

    models: int
    finished: int
    model_steps: int
    seconds: float
    """Estimated, of a GPU."""


def states(jobs: Sequence[Job], *, scale: str, root: Path, out: Path | None) -> list[State]:
    """Return what each of the jobs has under `root`."""
    found, planned = [], set()
    for job in jobs:
        work = Reproduction(names=job.asked, root=root, out=out, **job.options(scale))
        models = finished = steps = 0
        left = []
        for share in work.plan():
            members = share.config.members
            models += len(members)
            if share.finished:
                finished += len(members)
                continue
            key = method_key(share.config)
            new = tuple(member for member in members if (key, member) not in planned)
            planned |= {(key, member) for member in new}
            if new:
                rest = dataclasses.replace(share.config, members=new)
                left.append(dataclasses.replace(share, config=rest))
                steps += len(new) * (share.config.steps - share.step)
        seconds = sum(work.seconds(left, torch.device("cuda")))
        found.append(State(models=models, finished=finished, model_steps=steps, seconds=seconds))
    return found


def _show(jobs: Sequence[Job], found: Sequence[State]) -> None:
    numeric = ("models", "finished", "model-steps", "minutes")
    shown = table(
        "Left to be trained, and the estimated minutes of an H200, one job after the other",
        *("job", *numeric, "what for"),
        numeric=numeric,
    )
    for job, state in zip(jobs, found, strict=True):
        shown.add_row(job.name, *_numbers([state]), job.why)
    shown.add_row("together", *_numbers(found), "")
    Screen().print(shown)


def _numbers(found: Sequence[State]) -> list[str]:
    models, finished, steps = (
        sum(getattr(state, name) for state in found)
        for name in ("models", "finished", "model_steps")
    )
    minutes = sum(state.seconds for state in found) / 60
    return [str(models), str(finished), f"{steps:,}", f"{minutes:,.0f}"]


# --- doing it ------------------------------------------------------------------------------------


def run(jobs: Sequence[Job], *, scale: str, max_seconds: float, **options: Any) -> int:
    """Run the jobs in order until the time is over; return the exit code."""
    deadline = time.monotonic() + max_seconds
    say = functools.partial(print, flush=True)
    code = 0
    for number, job in enumerate(jobs, start=1):
        left = deadline - time.monotonic()
        if number > 1 and left < _LEAST_SECONDS:
            say(f"{job.name} and what comes after it is left for the next time")
            return code or TRY_AGAIN
        say(f"{number} of {len(jobs)}, {job.name}: {job.why}")
        try:
            limit = None if math.isinf(left) else max(left, 1e-6)
            lab.run(*job.asked, max_seconds=limit, say=say, **job.options(scale), **options)
        except Interrupted as stop:
            say(str(stop))
            return CTRL_C if stop.reason == "SIGINT" else code or TRY_AGAIN
        except BusyError as busy:
            say(str(busy))
            code = code or TRY_AGAIN
        except UnfinishedError as error:  # the next may still succeed
            say(str(error))
            code = FAILURE
    return code


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
            print(f"{len(taken)} runs put under {asked.root}; others there were as far already")
            return 0
        jobs = _chosen(asked.only)
        if asked.list:
            _show(jobs, states(jobs, scale=asked.scale, root=asked.root, out=asked.out))
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


def _chosen(names: Sequence[str]) -> list[Job]:
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
    add("--scale", choices=SCALES, default=_PAPER, help="a smaller one to try the queue out")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--workers", type=int, default=1, help="processes that train at the same time")
    add("--allow-dirty", action="store_true", help="also with uncommitted changes")
    parts = f"runs.tar.gz.00, .01, … of {PART_BYTES // 1_000_000} MB"
    add("--pack", type=Path, metavar="FOLDER", help=f"put the runs into FOLDER/{parts} instead")
    add("--unpack", type=Path, metavar="FOLDER", help="put what was packed under --root instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
