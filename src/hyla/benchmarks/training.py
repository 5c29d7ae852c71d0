"""Training steps per second of whole populations, beside what others measured.

A model-step is one optimisation step of one model: batch of 128, sampling and update included.
A row is timed only after its losses agree with the reference path, uncompiled and in float32.

    python -m hyla.benchmarks.training [--quick] [--only TEXT] [--out train-cuda.json]

prints the table for this machine beside the recorded ones, as `hyla bench train` does. Rows have
names such as "sraven hyla width 4 x4 tf32". With `--warm-jobs N`, N processes compile what they
need before the first is timed.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from hyla._clock import calls_per_second
from hyla.benchmarks.ahead import compile_ahead
from hyla.benchmarks.cases import Row, check_rows, chosen, measured
from hyla.benchmarks.clock import forget_earlier
from hyla.benchmarks.command_line import add_only, parser_of, record
from hyla.benchmarks.recorded import RECORDED, beside_recorded, in_columns
from hyla.benchmarks.training_cases import AUTHORS, Case, cases
from hyla.training import config_from_tree, load_preset, merge
from hyla.training.population import Population

# Largest difference in training loss that rounding may cause over the steps of the check.
TOLERANCE = {"float32": 1e-4, "tf32": 1e-2, "bf16": 5e-2}


def measure(
    device: torch.device,
    seconds: float = 3.0,
    *,
    quick: bool = False,
    only: Sequence[str] = (),
    warm_jobs: int = 0,
) -> Iterator[Row]:
    """Yield one row per case: model-steps/s, memory, the authors' figure.

    One that does not fit into the GPU's memory, or fails, has no figure and says so. With
    `warm_jobs`, so many processes compile for all cases first, by measuring them briefly.
    """
    rows = chosen(cases(device.type, quick=quick), only)
    if warm_jobs:
        briefly = ("--device", str(device), "--seconds", "0.1", "--only")
        compile_ahead("hyla.benchmarks.training", [(*briefly, str(row)) for row in rows], warm_jobs)
    yield from measured(
        rows, lambda case: [measure_case(case, device, seconds)], partial(_described, device)
    )


def measure_case(case: Case, device: torch.device, seconds: float) -> Row:
    """Check the case against the reference path, then time it."""
    forget_earlier(device)
    expected = _reference_losses(case, device)
    forget_earlier(device)
    began = time.monotonic()
    population = build(case, device)
    population.train(3)
    losses = population.mean_losses()
    started_up = time.monotonic() - began
    error = float((losses - expected).abs().max())
    if not error <= TOLERANCE[case.precision]:
        raise RuntimeError(f"{case}: training losses differ from the reference path by {error:.2e}")
    rate = calls_per_second(population.train, device, seconds)
    row = _described(device, case) | {
        "model_steps_per_second": rate * case.members,
        "steps_per_second": rate,
        "start_up_seconds": started_up,
        "loss_error": error,
    }
    if device.type == "cuda":
        row["peak_memory_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
    return row


def _described(device: torch.device, case: Case) -> Row:
    return {
        "task": case.task,
        "attention": case.attention,
        "variant": case.variant,
        "members": case.members,
        "precision": case.precision,
        "blocks": case.blocks,
        "authors_steps_per_second": AUTHORS.get(
            (device.type, case.task, case.attention, case.variant), ""
        ),
    }


def build(
    case: Case,
    device: torch.device,
    *,
    backend: str = "auto",
    precision: str | None = None,
    compile: bool | None = None,
) -> Population:
    """Return the paper's population for a case, ready to train."""
    changes = case.changes()
    changes["model"]["backend"] = backend
    config = config_from_tree(merge(load_preset(case.task, "paper"), changes))
    return Population(
        config.build_task(),
        config.model,
        config.members,
        attentions=case.attentions,
        total_steps=config.steps,
        batch_size=config.batch_size,
        device=device,
        precision=precision or case.precision,
        compile=compile,
        fused_blocks=False if case.blocks == "plain" or backend == "reference" else None,
    )


def _reference_losses(case: Case, device: torch.device) -> torch.Tensor:
    """Mean losses of the first three steps in float32, uncompiled, on the reference path.

    Of several attentions, of each among its like.
    """
    losses = {}
    for attention in dict.fromkeys(case.attentions):
        alike = replace(case, attention=attention)
        reference = build(alike, device, backend="reference", precision="float32", compile=False)
        reference.train(3)
        losses[attention] = reference.mean_losses()
    return torch.stack([losses[name][seed] for seed, name in enumerate(case.attentions)])


def main() -> None:
    """Measure, print and write on a machine that has torch, and not the command's packages."""
    parser = parser_of("training", __doc__)
    parser.add_argument("--quick", action="store_true", help="only the rows that matter most")
    add_only(parser)
    parser.add_argument(
        "--warm-jobs",
        metavar="N",
        type=int,
        default=0,
        help="processes that compile for all rows, before each is timed alone",
    )
    parser.add_argument("--recorded", type=Path, default=RECORDED, help="folder of others' files")
    given = parser.parse_args()
    asked = {"quick": given.quick, "only": given.only, "warm_jobs": given.warm_jobs}
    rows = record(measure, given.device, given.seconds, given.out, **asked)
    print(*in_columns(beside_recorded(rows, given.recorded)), sep="\n")
    check_rows(rows)


if __name__ == "__main__":
    main()
