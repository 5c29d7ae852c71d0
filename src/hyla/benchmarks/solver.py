"""Instances a second of the SRAVEN solver, beside brute force; the cost of unambiguous training.

Brute force goes through all correspondences between the columns and all rules of the features:
(4!)² · 8⁴ readings of an instance of the paper's setting. The solver is timed only after its
posteriors agree with it, and unambiguous batches only after the solver finds them so.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from hyla._clock import calls_per_second
from hyla.benchmarks.clock import repeated
from hyla.benchmarks.training import build
from hyla.benchmarks.training_cases import Case
from hyla.tasks import Sraven, SravenConfig
from hyla.tasks.sraven import RULES, Solver, ambiguous_by_definition
from hyla.tasks.sraven.conflicts import Conflicts
from hyla.tasks.sraven.threads import prescriptions, thread_context

INSTANCES = {"cpu": 2**15, "cuda": 2**20}  # in a call of the solver
CHECKED = 20  # instances solved both ways
MEMBERS = {"cpu": 1, "cuda": 12}  # of a population in training
PRECISION = {"cpu": "float32", "cuda": "tf32"}
BATCH_SIZE = 128


def measure(device: torch.device, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield one row per way of solving or sampling."""
    config = SravenConfig()
    solver = Solver(config, device=device)
    size = INSTANCES[device.type]
    permuted, unpermuted = (
        Sraven(config)
        .sampler(split, seeds=[0], batch_size=size, device=device)
        .instances(0)
        .panels[0]
        for split in ("test", "test_unpermuted")
    )
    _check(solver, permuted[:CHECKED].cpu(), config)

    one = permuted[0].cpu()
    yield _row(
        "brute force, on the CPU", 1, _duration(lambda: brute_force(one, config), device, seconds)
    )
    for what, call in {
        "solver, permuted": lambda: solver(permuted),
        "solver, unpermuted": lambda: solver(unpermuted, permuted=False),
    }.items():
        yield _row(what, size, _duration(call, device, seconds))
    yield from _cost_of_rejection(solver, device, seconds)


def _cost_of_rejection(
    solver: Solver, device: torch.device, seconds: float
) -> Iterator[dict[str, Any]]:
    """Yield the time of plain and of unambiguous batches, and of training steps on them."""
    members = MEMBERS[device.type]
    instances = members * BATCH_SIZE
    index = torch.zeros((), dtype=torch.int64, device=device)
    samplers = {
        what: Sraven(SravenConfig(unambiguous=what == "unambiguous")).sampler(
            "train", seeds=range(members), batch_size=BATCH_SIZE, device=device
        )
        for what in ("plain", "unambiguous")
    }
    panels = {what: sampler.instances(0).panels[0] for what, sampler in samplers.items()}
    if ambiguous_by_definition(solver(panels["unambiguous"])).any():
        raise RuntimeError("the unambiguous mode drew an instance that the solver finds ambiguous")
    grids = panels["plain"].permute(2, 1, 3, 0)
    conflicts = Conflicts(solver.config, permuted=True, device=device)
    yield _row("check of a batch", BATCH_SIZE, _duration(lambda: conflicts(grids), device, seconds))
    for what, sampler in samplers.items():
        duration = _duration(lambda sampler=sampler: sampler(index), device, seconds)
        yield _row(f"{what} batches, not compiled", instances, duration)
    plain, unambiguous = (_step_duration(what, device, seconds) for what in samplers)
    yield _row("training step, plain", instances, plain)
    yield _row(
        "training step, unambiguous", instances, unambiguous, f"{unambiguous / plain - 1:+.1%}"
    )


def _step_duration(what: str, device: torch.device, seconds: float) -> float:
    torch.compiler.reset()  # the compiler's limit per function counts across populations
    case = Case(
        task="sraven",
        attention="hyla",
        members=MEMBERS[device.type],
        precision=PRECISION[device.type],
        settings={"unambiguous": what == "unambiguous"},
    )
    return 1 / calls_per_second(build(case, device).train, device, seconds)


def _row(what: str, instances: int, duration: float, over_plain: str = "") -> dict[str, Any]:
    return {
        "what": what,
        "instances_per_call": instances,
        "instances_per_second": instances / duration,
        "milliseconds_per_call": 1000 * duration,
        "over_plain": over_plain,
    }


def brute_force(panels: Tensor, config: SravenConfig) -> dict[tuple[int, ...], float]:
    """The posterior of each answer of one instance [G, G, M], from all conceivable readings."""
    M, K, G = config.num_features, config.num_values, config.grid_size
    context = thread_context(panels.transpose(0, 1).unsqueeze(-1), num_values=K, permuted=True)
    found = prescriptions(context, config.rules)
    shape = (M,) * G
    fits = torch.stack([one.fits.squeeze(-1).expand(shape).flatten() for one in found], -1)
    value = torch.stack([one.value.squeeze(-1).expand(shape).flatten() for one in found], -1)

    orders = list(itertools.permutations(range(M)))
    # [correspondences, M, G]: the positions of each feature, named by that in the first column.
    positions = torch.tensor(
        [
            list(zip(range(M), *columns, strict=True))
            for columns in itertools.product(orders, repeat=G - 1)
        ]
    )
    threads = (positions * torch.tensor([M ** (G - 1 - c) for c in range(G)])).sum(-1)
    rules = torch.tensor(list(itertools.product(range(len(config.rules)), repeat=M)))
    fitting = fits[threads.unsqueeze(1), rules].all(-1)  # [correspondences, rule assignments]

    weights: dict[tuple[int, ...], float] = {}
    for which, assignment in fitting.nonzero().tolist():
        chosen = rules[assignment].tolist()
        answer = [0] * M
        weight = float(math.prod(math.factorial(n) for n in Counter(chosen).values()))
        for m, rule in enumerate(chosen):
            answer[int(positions[which, m, -1])] = int(value[threads[which, m], rule])
            weight /= RULES[config.rules[rule]].count(K, G)
        weights[tuple(answer)] = weights.get(tuple(answer), 0.0) + weight
    total = sum(weights.values())
    return {answer: weight / total for answer, weight in weights.items()}


def _check(solver: Solver, panels: Tensor, config: SravenConfig) -> None:
    solution = solver(panels)
    for index, one in enumerate(panels):
        expected = brute_force(one, config)
        found = {answer.panel: answer.probability for answer in solution.answers(index)}
        if expected.keys() != found.keys() or any(
            not math.isclose(expected[panel], found[panel], abs_tol=1e-9) for panel in expected
        ):
            raise RuntimeError(
                f"the solver disagrees with brute force on instance {index}: "
                f"{found}, not {expected}"
            )


def _duration(call: Callable[[], Any], device: torch.device, seconds: float) -> float:
    return 1 / calls_per_second(repeated(call), device, seconds)
