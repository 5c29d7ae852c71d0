"""Training steps per second of whole populations, next to the authors' code.

A model-step is one optimisation step of one model: batch of 128, sampling and update included.
The authors' figures were measured with their JAX release (on an H200 and on 2 CPU cores).
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from hyla.training import config_from_tree, load_preset, merge
from hyla.training.population import Population
from hyla.training.population.throughput import steps_per_second

# What the authors' code reaches: (alone, vmapped) on an H200, and on 2 CPU cores.
AUTHORS = {
    ("sraven", "hyla", "cuda"): "293 alone, 820 vmapped",
    ("sraven", "softmax", "cuda"): "207 alone",
    ("sraven", "linear", "cuda"): "252 alone",
    ("fuzzy", "hyla", "cuda"): "485 alone, 3,000 vmapped",
    ("fuzzy", "softmax", "cuda"): "461 alone, 4,040 vmapped",
    ("fuzzy", "linear", "cuda"): "445 alone, 4,230 vmapped",
    ("sraven", "hyla", "cpu"): "1.6",
    ("sraven", "softmax", "cpu"): "2.5",
    ("fuzzy", "hyla", "cpu"): "5.5",
}
# Largest difference in training loss that rounding may cause over the steps of the check.
TOLERANCE = {"float32": 1e-4, "tf32": 1e-2, "bf16": 5e-2}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the table."""

    task: str
    attention: str
    members: int
    precision: str = "float32"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Where the task departs from the paper's."""


CASES = {
    "cpu": (
        Case(task="fuzzy", attention="hyla", members=1),
        Case(task="fuzzy", attention="softmax", members=1),
        Case(task="sraven", attention="hyla", members=1),
        Case(task="sraven", attention="softmax", members=1),
    ),
    "cuda": tuple(
        Case(task=task, attention=attention, members=members, precision=precision)
        for attention, members, precision in (
            ("hyla", 12, "tf32"),
            ("hyla", 1, "tf32"),
            ("hyla", 24, "tf32"),
            ("softmax", 12, "tf32"),
            ("hyla", 12, "float32"),
            ("linear", 12, "tf32"),
            ("hyla", 12, "bf16"),
        )
        for task in ("sraven", "fuzzy")
    ),
}


def measure(device: torch.device, seconds: float = 3.0) -> Iterator[dict[str, Any]]:
    """Yield one row per case: model-steps/s, memory, the authors' figure."""
    for case in CASES[device.type]:
        yield measure_case(case, device, seconds)


def measure_case(case: Case, device: torch.device, seconds: float) -> dict[str, Any]:
    """Check the case against the reference path, then time it."""
    torch.compiler.reset()  # the compiler's limit per function counts across populations
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    began = time.monotonic()
    population = build(case, device)
    population.train(3)
    losses = population.mean_losses()
    started_up = time.monotonic() - began
    error = float((losses - _reference_losses(case, device)).abs().max())
    if not error <= TOLERANCE[case.precision]:
        raise RuntimeError(f"{case}: training losses differ from the reference path by {error:.2e}")
    rate = steps_per_second(population, seconds)
    row = {
        "task": case.task,
        "attention": case.attention,
        "members": case.members,
        "precision": case.precision,
        "model_steps_per_second": rate * case.members,
        "steps_per_second": rate,
        "start_up_seconds": started_up,
        "loss_error": error,
        "authors_steps_per_second": AUTHORS.get((case.task, case.attention, device.type), ""),
    }
    if device.type == "cuda":
        row["peak_memory_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
    return row


def build(
    case: Case,
    device: torch.device,
    *,
    backend: str = "auto",
    precision: str | None = None,
    compile: bool | None = None,
) -> Population:
    """Return the paper's population for a case, ready to train."""
    config = config_from_tree(
        merge(
            load_preset(case.task, "paper"),
            {
                "task": case.settings,
                "model": {"attention": case.attention, "backend": backend},
                "members": {"seed": list(range(case.members))},
            },
        )
    )
    return Population(
        config.build_task(),
        config.model,
        config.members,
        total_steps=config.steps,
        batch_size=config.batch_size,
        device=device,
        precision=precision or case.precision,
        compile=compile,
    )


def _reference_losses(case: Case, device: torch.device) -> torch.Tensor:
    """Mean losses of the first three steps in float32, uncompiled, on the reference path."""
    reference = build(case, device, backend="reference", precision="float32", compile=False)
    reference.train(3)
    return reference.mean_losses()
