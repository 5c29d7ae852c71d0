"""From softmax to HYLA, measured: a trained decoder converted, beside training from scratch.

    python tools/from_softmax.py data/wiki --list
    python tools/from_softmax.py data/wiki --root runs/language --max-seconds 540

The first command says what is finished and what the rest would take; the second trains, in this
order, until the time is over, and the same command continues. When all is done it writes
`--json FILE`. Exit codes: 0 all is done, 75 something is left, 1 something failed, 2 wrong usage.
It needs torch, numpy, jaxtyping, safetensors, pyyaml and rich alone.

The size is that of Figure 6 unless --set says otherwise, for instance to try it out on a CPU:

    python tools/from_softmax.py data/wiki --steps 60 --more 24 --distil 6 --scale smoke
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyla import RECOMMENDED
from hyla.commands.shared.exits import CTRL_C, FAILURE, TRY_AGAIN, USAGE
from hyla.commands.shared.output import Screen, table
from hyla.lab.estimate import language_seconds
from hyla.results.origins import measured_with
from hyla.tasks.language import Corpus
from hyla.training import SCALES, Interrupted, merge
from hyla.training.devices import resolve_device
from hyla.training.language import (
    LanguageConfig,
    Source,
    language_config_from_tree,
    language_run_path,
    load_language_preset,
    train_language,
)
from hyla.training.language.config import setting_branch
from hyla.training.run.errors import CheckpointError, RunDirectoryError
from hyla.training.run.reading import read_finished
from queue_jobs import least_seconds

ATTENTIONS = (RECOMMENDED, "hyla_residual_minus_rmshead_plus_softmax.rms4")
"""What to end with: what we recommend, and what is level with softmax on text."""
SOFTMAX = "softmax"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long each part is trained, and on what."""

    corpus: Corpus
    scale: str
    steps: int
    """Of the softmax model that is converted."""
    more: int
    """Of what comes after."""
    distil: int
    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not 0 < self.distil < self.more:
            raise ValueError(
                f"--distil {self.distil} must be above 0 and below the steps after the conversion, "
                f"--more {self.more}"
            )


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training: an attention, where it begins, and how far it goes."""

    plan: Plan
    way: str
    attention: str
    steps: int
    seed: int
    distil: int | None = None
    """None begins from scratch; a number, also 0, from the softmax model."""

    @property
    def base(self) -> "Run | None":
        """The run that it begins from."""
        if self.distil is None:
            return None
        return Run(plan=self.plan, way="", attention=SOFTMAX, steps=self.plan.steps, seed=self.seed)

    def source(self, root: Path) -> Source | None:
        """Return the finished run that it begins from."""
        if self.base is None:
            return None
        return Source.open(language_run_path(self.base.config(None), root), self.plan.corpus)

    def config(self, source: Source | None) -> LanguageConfig:
        """Return what it trains; a tenth of the steps warm up, as in Figure 6."""
        tree = merge(load_language_preset(self.plan.scale), self.plan.settings)
        changes: dict[str, Any] = {
            "model": {"attention": self.attention},
            "member": {"seed": self.seed, "warmup_steps": self.steps // 10},
            "steps": self.steps,
        }
        if source is not None:
            changes = merge(source.settings(), changes)
            changes["conversion"]["distil_steps"] = self.distil
        return language_config_from_tree(merge(tree, changes), self.plan.corpus)

    def finished(self, root: Path) -> dict[str, Any] | None:
        """Return the summary of the run under `root`, if it is finished."""
        if self.base is not None and self.base.finished(root) is None:
            return None
        path = language_run_path(self.config(self.source(root)), root)
        return read_finished(path) if path.exists() else None


def runs_of(plan: Plan, seed: int) -> Iterator[Run]:
    """Yield all runs of a seed: first what others begin from, then what is short."""

    def run(way: str, attention: str, steps: int, distil: int | None = None) -> Run:
        return Run(plan=plan, seed=seed, way=way, attention=attention, steps=steps, distil=distil)

    yield run("the softmax model that is converted", SOFTMAX, plan.steps)
    for attention in ATTENTIONS:
        yield run("copied, distilled, trained on", attention, plan.more, plan.distil)
        yield run("copied, trained on", attention, plan.more, 0)
        yield run("from scratch, the new tokens alone", attention, plan.more)
    for attention in (*ATTENTIONS, SOFTMAX):
        yield run("from scratch, as many tokens in all", attention, plan.steps + plan.more)


def train(runs: Sequence[Run], *, root: Path, device: str, max_seconds: float) -> int:
    """Train the runs in order until the time is over; return the exit code."""
    deadline = time.monotonic() + max_seconds
    unfinished = [run for run in runs if run.finished(root) is None]
    for number, run in enumerate(unfinished):
        left = deadline - time.monotonic()
        if number and left < least_seconds(device):
            print(f"{run.attention}, {run.way}, and what comes after it is left for the next time")
            return TRY_AGAIN
        place = f"{number + 1} of {len(unfinished)}"
        print(f"{place}: {run.attention}, {run.way}, seed {run.seed}", flush=True)
        source = run.source(root)
        try:
            train_language(
                run.config(source),
                run.plan.corpus,
                root=root,
                device=device,
                max_seconds=left,
                source=source,
            )
        except Interrupted as stop:
            print(stop)
            return CTRL_C if stop.reason == "SIGINT" else TRY_AGAIN
    return 0


def rows_of(runs: Sequence[Run], root: Path) -> list[dict[str, Any]]:
    """Return a row for each finished run: what it was, what came out, and on which machine."""
    rows = []
    for run in runs:
        summary = run.finished(root)
        if summary is None:
            continue
        config = run.config(run.source(root))
        rows.append(
            {
                "attention": run.attention,
                "way": run.way,
                "seed": run.seed,
                "steps": run.steps,
                "distil_steps": run.distil,
                "tokens": run.steps * config.batch_size * config.model.sequence_length,
                "loss": summary["members"][0]["metrics"]["validation/loss"],
                "seconds": summary["seconds"],
                "run": language_run_path(config, root).name,
            }
        )
    return rows


def _show(runs: Sequence[Run], root: Path) -> None:
    shown = table(
        "Validation loss, and the minutes of an H200 that the rest takes at the size of Figure 6",
        *("attention", "way", "seed", "steps", "loss", "minutes"),
        numeric=("seed", "steps", "loss", "minutes"),
    )
    together = 0.0
    losses = {(r["attention"], r["way"], r["seed"]): r["loss"] for r in rows_of(runs, root)}
    for run in runs:
        loss = losses.get((run.attention, run.way, run.seed))
        tokens = run.steps * _tokens(run)
        left = 0.0 if loss is not None else language_seconds({run.attention: tokens})
        together += left
        name = (run.attention, run.way, str(run.seed), str(run.steps))
        shown.add_row(*name, "" if loss is None else f"{loss:.3f}", f"{left / 60:.1f}")
    shown.add_row("together", "", "", "", "", f"{together / 60:.1f}")
    Screen().print(shown)


def _tokens(run: Run) -> int:
    """Return the tokens of a step."""
    config = (run.base or run).config(None)
    return config.batch_size * config.model.sequence_length


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return the exit code."""
    asked = _parser().parse_args(arguments)
    try:
        settings: dict[str, Any] = {}
        for setting in asked.set:
            settings = merge(settings, setting_branch(setting))
        plan = Plan(
            corpus=Corpus.open(asked.data),
            scale=asked.scale,
            steps=asked.steps,
            more=asked.more,
            distil=asked.distil,
            settings=settings,
        )
        runs = [run for seed in range(asked.seeds) for run in runs_of(plan, seed)]
        for run in runs:  # what makes no sense is told before anything is trained
            (run.base or run).config(None)
        if asked.list:
            _show(runs, asked.root)
            return 0
        code = train(runs, root=asked.root, device=asked.device, max_seconds=asked.max_seconds)
    except ValueError as error:
        print(f"from_softmax: {error}", file=sys.stderr)
        return USAGE
    except (RunDirectoryError, CheckpointError) as error:
        print(f"from_softmax: {error}", file=sys.stderr)
        return FAILURE
    if code == 0:
        if asked.json is not None:
            where = measured_with(resolve_device(asked.device))
            found = {"rows": rows_of(runs, asked.root), **where}
            asked.json.parent.mkdir(parents=True, exist_ok=True)
            asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        _show(runs, asked.root)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="From softmax to HYLA, beside from scratch.")
    add = parser.add_argument
    add("data", type=Path, help="folder of a prepared corpus")
    add("--list", action="store_true", help="say what is finished and what is left")
    add("--root", type=Path, default=Path("runs/language"), help="folder of the run directories")
    add("--max-seconds", type=float, default=math.inf, help="stop then, with everything saved")
    add("--json", type=Path, help="file for what was measured, written when all is done")
    add("--device", default="auto")
    add("--steps", type=int, default=1500, help="of the softmax model that is converted")
    add("--more", type=int, default=300, help="steps after the conversion")
    add("--distil", type=int, default=75, help="of these, the first that distil")
    add("--seeds", type=int, default=1)
    add("--scale", choices=SCALES, default="paper")
    add("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of all runs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
