"""The audit of SRAVEN: how often it is ambiguous, and what can be reached at best and for free."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from hyla._errors import check_positive
from hyla.tasks.sraven.config import SravenConfig
from hyla.tasks.sraven.generator import is_permuted
from hyla.tasks.sraven.solver.ambiguity import ambiguous_by_authors, ambiguous_by_definition
from hyla.tasks.sraven.solver.exact import Solver
from hyla.tasks.sraven.solver.heuristics import blind_guess, majority, rule_of_row_one
from hyla.tasks.sraven.task import SIDE_OF_SPLIT, Sraven

_CHUNK = {"cpu": 2**14, "cuda": 2**18}


def audit(
    config: SravenConfig,
    instances: int,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    on_progress: Callable[[int], None] = lambda instances: None,
) -> list[dict[str, Any]]:
    """Look at the first `instances` instances of every split of `seed`; one row a split.

    Beside `split`, `permuted` and `instances` a row holds means, each with its standard error under
    the same name and `_se`:

      - `ambiguous_by_definition`, `ambiguous_by_authors`: fractions of instances;
      - `ceiling`: the mean posterior of the most probable answer, which is the highest expected
        accuracy, for an observer who knows which combinations of rules the split uses;
      - `best_accuracy`: how often that observer's answer was right;
      - `best_accuracy_not_knowing_split`: the same for one who thinks all combinations possible;
      - `blind_guess`, `majority`, `rule_of_row_one`: accuracies of these heuristics. The marginals
        of the blind guess come from the instances that follow those audited.

    An answer is right if all its entries are. `on_progress` is called with the number of instances
    audited since its last call.
    """
    check_positive(instances=instances)
    config.refuse_distractors("the audit")
    if config.train_features:
        raise ValueError("the audit does not work with train_features: the solver knows no blanks")
    return [
        _audit_split(config, split, instances, seed, device, on_progress) for split in SIDE_OF_SPLIT
    ]


def _audit_split(
    config: SravenConfig,
    split: str,
    instances: int,
    seed: int,
    device: torch.device | str,
    on_progress: Callable[[int], None],
) -> dict[str, Any]:
    task = Sraven(config)
    permuted = is_permuted(split)
    side = task.manifest(seed).sides[SIDE_OF_SPLIT[split]]
    knowing = Solver(config, combinations=side, device=device)
    not_knowing = Solver(config, device=device)
    chunk = min(instances, _CHUNK["cuda" if torch.device(device).type == "cuda" else "cpu"])
    sampler = task.sampler(split, seeds=[seed], batch_size=chunk, device=device)
    num_chunks = math.ceil(instances / chunk)
    following = sampler.instances(num_chunks).panels[0, :, -1, -1]
    guess = blind_guess(following, num_values=config.num_values)

    sums: dict[str, float] = {}
    squares: dict[str, float] = {}
    for number in range(num_chunks):
        panels = sampler.instances(number).panels[0, : instances - number * chunk]
        truth = panels[:, -1, -1]
        solution, uninformed = (s(panels, permuted=permuted) for s in (knowing, not_knowing))
        for name, values in {
            "ambiguous_by_definition": ambiguous_by_definition(uninformed),
            "ambiguous_by_authors": ambiguous_by_authors(panels, config, permuted=permuted),
            "ceiling": solution.posterior,
            "best_accuracy": _right(solution.answer, truth),
            "best_accuracy_not_knowing_split": _right(uninformed.answer, truth),
            "blind_guess": _right(guess, truth),
            "majority": _right(majority(panels, num_values=config.num_values), truth),
            "rule_of_row_one": _right(rule_of_row_one(panels, config), truth),
        }.items():
            numbers = values.to(torch.float64)
            sums[name] = sums.get(name, 0.0) + float(numbers.sum())
            squares[name] = squares.get(name, 0.0) + float((numbers**2).sum())
        on_progress(len(panels))

    row: dict[str, Any] = {"split": split, "permuted": permuted, "instances": instances}
    for name in sums:
        mean = sums[name] / instances
        row[name] = mean
        variance = max(0.0, squares[name] / instances - mean**2)
        row[f"{name}_se"] = math.sqrt(variance / instances)
    return row


def _right(answer: Int64[Tensor, "*n m"], truth: Int64[Tensor, "n m"]) -> Tensor:
    return (answer == truth).all(-1)
