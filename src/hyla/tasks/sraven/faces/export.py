"""SRAVEN as Parquet files, with a datasheet beside them: what is in their columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hyla.tasks.parquet_folder import (
    ADDRESS_TYPES,
    Export,
    Rows,
    addresses,
    named_lists,
    nested_lists,
    pa,
)
from hyla.tasks.sraven.config import SravenConfig
from hyla.tasks.sraven.faces.datasheet import datasheet
from hyla.tasks.sraven.generator import Instances, is_permuted, left_ambiguous
from hyla.tasks.sraven.solver.ambiguity import ambiguous_by_definition
from hyla.tasks.sraven.solver.exact import Solution, Solver
from hyla.tasks.sraven.task import Sraven
from hyla.tasks.sraven.variants import VARIANTS
from hyla.tasks.study import as_numpy

_MOST_VALUES = 128  # what int8 can hold


@dataclass(frozen=True, kw_only=True)
class SravenExport(Export):
    """What to export of SRAVEN."""

    name = "sraven"
    config: SravenConfig
    labels: bool = True
    """Whether to solve each instance, for the columns about ambiguity."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.config.num_values > _MOST_VALUES:
            raise ValueError(
                f"columns of int8 hold up to {_MOST_VALUES} values, got "
                f"num_values={self.config.num_values}"
            )
        if self.labels and not all(map(self.task.is_readable, self.splits)):
            raise ValueError(
                "labels come from the solver, which knows neither distractors nor blanks: export "
                "without them (--no-labels)"
            )
        if self.labels:
            Solver(self.config)  # complains about sizes that it cannot solve

    @property
    def task(self) -> Sraven:
        """The task with these settings."""
        return Sraven(self.config)

    def describe(self) -> dict[str, Any]:
        """These settings with what follows from them, for JSON."""
        description = super().describe() | {"labels": self.labels}
        names = (name for name, variant in VARIANTS.items() if variant.config == self.config)
        if variant := next(names, None):
            description["variant"] = variant
        if self.config.unambiguous:
            description["expected_ambiguous"] = {
                split: left_ambiguous(self.config, permuted=is_permuted(split))
                for split in self.splits
            }
        return description

    def column_types(self) -> dict[str, pa.DataType]:
        """The panels, what they were made by, and where asked for what a solver says of them."""
        config = self.config
        panel = pa.list_(pa.int8(), config.panel_size)
        types: dict[str, pa.DataType] = {
            "context": pa.list_(panel, config.grid_size**2 - 1),
            "query": panel,
            "rules": pa.list_(pa.string(), config.panel_size),
            "permutations": pa.list_(panel, config.grid_size),
            **ADDRESS_TYPES,
        }
        if self.labels:
            types |= {
                "ambiguous": pa.bool_(),
                "num_answers": pa.int32(),
                "query_posterior": pa.float64(),
                "map_answer": panel,
                "map_posterior": pa.float64(),
            }
        return types

    def page(self) -> str:
        """The datasheet as Markdown."""
        return datasheet(self.describe(), self.schema(), _column_docs(self), self.manifest)

    def open_split(self, split: str, batch_size: int, device: torch.device | str) -> Rows:
        """The instances of a split, with what the solver says of them."""
        sampler = self.task.sampler(split, seeds=[self.seed], batch_size=batch_size, device=device)
        solve = None
        if self.labels:
            solve = partial(Solver(self.config, device=device), permuted=is_permuted(split))

        def rows(number: int, count: int) -> dict[str, pa.Array]:
            instances = Instances(*(field[0, :count] for field in sampler.instances(number)))
            arrays = _instance_arrays(instances, self.config)
            arrays |= addresses(split, self.seed, number * batch_size, count)
            if solve is not None:
                arrays |= _label_arrays(instances, solve(instances.panels))
            return arrays

        return rows


def _column_docs(settings: SravenExport) -> dict[str, str]:
    config = settings.config
    docs = {
        "context": f"the {config.grid_size**2 - 1} context panels, row by row, each of "
        f"{config.panel_size} integers in [0, {config.num_values})"
        + ("; a blank is -1" if config.train_features else ""),
        "query": "the panel to predict, the last of the grid, as its column shows it",
        "rules": "the rule of each feature"
        + f", or `{config.label_names[-1]}`" * (not config.all_scored),
        "permutations": "position m of the panels of column c shows feature `permutations[c][m]`",
        "split": "name of the split",
        "seed": "seed of the instances"
        + (" and of the split's combinations" if config.split_seed is None else ""),
        "index": "number of the instance; with split and seed its address in hyla",
    }
    if settings.labels:
        docs |= {
            "ambiguous": "whether readings of the context prescribe different query panels",
            "num_answers": "how many query panels some reading prescribes",
            "query_posterior": "probability of `query` given the context",
            "map_answer": "the most probable query panel given the context",
            "map_posterior": "its probability",
        }
    return docs


def _instance_arrays(instances: Instances, config: SravenConfig) -> dict[str, pa.Array]:
    panels = instances.panels.flatten(1, 2).to(torch.int8)
    return {
        "context": nested_lists(panels[:, :-1]),
        "query": nested_lists(panels[:, -1]),
        "rules": named_lists(config.label_names, instances.rules),
        "permutations": nested_lists(instances.permutations.to(torch.int8)),
    }


def _label_arrays(instances: Instances, solution: Solution) -> dict[str, pa.Array]:
    count = len(instances.rules)
    owners = torch.arange(count, device=solution.num_answers.device).repeat_interleave(
        solution.num_answers
    )
    query = instances.panels[:, -1, -1]
    is_query = (solution.candidates == query[owners]).all(-1)
    # One candidate at most equals the query, so this puts probabilities in place; it adds nothing.
    query_posterior = solution.posterior.new_zeros(count).index_add(
        0, owners, solution.probabilities * is_query
    )
    return {
        "ambiguous": pa.array(as_numpy(ambiguous_by_definition(solution))),
        "num_answers": pa.array(as_numpy(solution.num_answers.int())),
        "query_posterior": pa.array(as_numpy(query_posterior)),
        "map_answer": nested_lists(solution.answer.to(torch.int8)),
        "map_posterior": pa.array(as_numpy(solution.posterior)),
    }
