"""A store of models that were never trained, with scores that are known."""

from collections.abc import Callable
from pathlib import Path

from hyla.lab.methods import Method, methods_of
from hyla.lab.registry import load
from hyla.results.conditions import Conditions
from hyla.results.runs import Row
from hyla.results.selection import Estimate
from hyla.results.tables import MEMBER, Tables
from hyla.training.identity import method_key

PAPER = Conditions(scale="paper")


def write_models(
    store: Path,
    name: str,
    ood: Callable[[Method], Estimate | None],
    *,
    conditions: Conditions = PAPER,
    seeds: int = 3,
) -> Tables:
    """Fill the store with models of an experiment that have these OOD scores, where not None.

    Of three seeds at one setting, mean and standard error are those of the score.
    """
    tables = Tables(store, conditions)
    rows: list[Row] = []
    for method in methods_of(load(name), conditions):
        score = ood(method)
        if score is not None:
            rows += _models(method, score)[:seeds]
    for task in {row["task_name"] for row in rows}:
        own = [row for row in rows if row["task_name"] == task]
        tables.add_measured(f"models-{task}", own, key=("method", *MEMBER))
    return tables


def _models(method: Method, score: Estimate) -> list[Row]:
    headline = method.config.build_task().headline
    spread = score.standard_error * 3**0.5
    return [
        {
            "method": method_key(method.config),
            "task_name": method.config.task_name,
            "steps": method.config.steps,
            "seed": seed,
            "learning_rate": 1e-3,
            "weight_decay": 0.1,
            "warmup_steps": 100,
            "diverged": False,
            "device": "a device",
            "run": f"{method.config.task_name}-{method.config.model.attention}",
            f"validation/{headline}": 0.99,
            f"test/{headline}": 0.99,
            f"ood/{headline}": score.mean + offset,
        }
        for seed, offset in enumerate((0.0, -spread, spread))
    ]
