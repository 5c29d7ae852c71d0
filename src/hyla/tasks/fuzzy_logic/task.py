"""Fuzzy logic functions in disjunctive normal form, inferred in context (paper, section 3)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from hyla._errors import check_positive
from hyla.tasks.base import (
    Batch,
    Manifest,
    Sampler,
    Task,
    check_combinable,
    pick_combinations,
    stack_combinations,
)
from hyla.tasks.fuzzy_logic.objective import Regression
from hyla.tasks.randomness import (
    Keys,
    RandomStream,
    counters,
    random_words,
    to_integers,
    to_uniform,
)
from hyla.tasks.registry import register_task
from hyla.tasks.splits import check_listable, split_combinations

if TYPE_CHECKING:
    from hyla.tasks.fuzzy_logic.study import FuzzyStudy

_SIDE_OF_SPLIT = {
    "train": "train",
    "validation": "train",
    "test": "train",
    "ood": "ood",
    "unknown_terms": "unknown_terms",
    "test_fixed_context": "train",
    "test_fixed_query": "train",
    "ood_fixed_context": "ood",
    "ood_fixed_query": "ood",
}


@dataclass(frozen=True, kw_only=True)
class FuzzyLogicConfig:
    """Size and split of the fuzzy logic task; the defaults are the paper's."""

    num_variables: int = 4
    """L: there are 2^L terms."""
    num_terms: int = 2
    """K: distinct terms in a function."""
    sequence_length: int = 32
    """Examples in context, the query included."""
    held_out_fraction: float = field(default=0.7, metadata={"shape": False})
    """Share of the combinations of known terms that training never shows."""

    def __post_init__(self) -> None:
        check_positive(num_variables=self.num_variables, sequence_length=self.sequence_length)
        check_combinable(num_terms=self.num_terms)
        if self.sequence_length < 2:
            raise ValueError(
                "sequence_length must be at least 2, because R² compares with the variance of a "
                f"function's values, got {self.sequence_length}"
            )
        if self.num_terms > self.num_known_terms:
            raise ValueError(
                f"num_terms must be at most {self.num_known_terms}, the known terms of "
                f"num_variables={self.num_variables}, got {self.num_terms}"
            )

    @property
    def num_unknown_terms(self) -> int:
        """The last quarter of the terms, which training never shows."""
        return 2**self.num_variables // 4

    @property
    def num_known_terms(self) -> int:
        """The terms that training functions are composed of."""
        return 2**self.num_variables - self.num_unknown_terms


@register_task("fuzzy")
class FuzzyLogic(Task[Sampler]):
    """Predict a function of L variables at a query point from its values at T - 1 others.

    A function is the disjunction (max) of K terms; a term is the conjunction (min) of all L
    variables, some of them negated (1 - x). Bit i of a term's index, the lowest first, says whether
    variable i is negated. (Another order of the bits would only rename variables.)

    Batches:
      - `inputs` [B, T, L + 1]: each token holds a point and the function's value there; the last
        token is the query, whose value is 0 instead.
      - `targets` [B, T]: the function's values at all points, the query's included.
      - `labels` [B, K]: the terms, in ascending order.

    Splits: `train`; `validation` and `test`, new
    instances of training combinations; `ood`, held-out combinations of
    known terms; `unknown_terms`, combinations of terms that never occur in training (absent if the
    last quarter of the terms holds fewer than K). `test_fixed_context`, `ood_fixed_context` show
    every task at the same T - 1 context points and a new query; `test_fixed_query`,
    `ood_fixed_query` the converse. A seed's fixed points are the same in all of these.
    """

    title = "fuzzy logic"
    config_class = FuzzyLogicConfig
    presets = Path(__file__).with_name("presets.yaml")
    searched = MappingProxyType({"learning_rate": (1e-3, 3e-3), "weight_decay": (0.1, 0.03)})

    def __init__(self, config: FuzzyLogicConfig) -> None:
        self.config = config

    @property
    def objective(self) -> Regression:
        """Squared error of the query; R² is the score."""
        return Regression()

    @property
    def study(self) -> FuzzyStudy:
        """Which function is asked for at the query point."""
        from hyla.tasks.fuzzy_logic.study import FuzzyStudy

        return FuzzyStudy(self)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        has_unknown = self.config.num_unknown_terms >= self.config.num_terms
        return tuple(s for s in _SIDE_OF_SPLIT if s != "unknown_terms" or has_unknown)

    @property
    def input_dim(self) -> int:
        """The variables and the function's value."""
        return self.config.num_variables + 1

    @property
    def output_dim(self) -> int:
        """The function's value."""
        return 1

    @property
    def sequence_length(self) -> int:
        """Examples, the query included."""
        return self.config.sequence_length

    @property
    def num_queries(self) -> int:
        """The last token alone is predicted."""
        return 1

    def manifest(self, seed: int) -> Manifest:
        """The combinations of terms in `train`, `ood` and `unknown_terms`."""
        check_listable(
            math.comb(self.config.num_known_terms, self.config.num_terms),
            f"num_variables={self.config.num_variables} and num_terms={self.config.num_terms}",
        )
        known, unknown = (
            list(itertools.combinations(terms, self.config.num_terms))
            for terms in (
                range(self.config.num_known_terms),
                range(self.config.num_known_terms, 2**self.config.num_variables),
            )
        )
        split = split_combinations(
            known, held_out_fraction=self.config.held_out_fraction, seed=seed
        )
        return Manifest(
            task="fuzzy logic",
            seed=seed,
            constituents=tuple(
                term_name(term, self.config.num_variables)
                for term in range(2**self.config.num_variables)
            ),
            sides={"train": split.train, "ood": split.held_out, "unknown_terms": tuple(unknown)},
        )

    def _build_sampler(
        self, split: str, *, seeds: Sequence[int], batch_size: int, device: torch.device | str
    ) -> Sampler:
        return _FuzzyLogicSampler(
            self.config,
            split,
            seeds=seeds,
            combinations=stack_combinations(
                [self.manifest(seed) for seed in seeds], _SIDE_OF_SPLIT[split], device=device
            ),
            batch_size=batch_size,
        )


def term_name(term: int, num_variables: int) -> str:
    """A term in the paper's notation, for example `x1∧¬x2` for term 2 of two variables."""
    return "∧".join(f"{'¬' * (term >> i & 1)}x{i + 1}" for i in range(num_variables))


def term_negations(
    num_variables: int, *, device: torch.device | str = "cpu"
) -> Float[Tensor, "terms l"]:
    """For every term, 1 for the variables that it negates and 0 for the others."""
    terms = torch.arange(2**num_variables, device=device)
    variables = torch.arange(num_variables, device=device)
    return ((terms[:, None] >> variables) & 1).to(torch.float32)


def evaluate(
    negations: Float[Tensor, "*b k l"], points: Float[Tensor, "*b l t"]
) -> Float[Tensor, "*b t"]:
    """The values of functions, given by the negations of their K terms, at points of their own."""
    # |x - 1| = 1 - x for the negated variables, |x - 0| = x for the others.
    literals = (points.unsqueeze(-3) - negations.unsqueeze(-1)).abs_()  # [..., K, L, T]
    return literals.amin(dim=-2).amax(dim=-2)


class _FuzzyLogicSampler(Sampler):
    def __init__(
        self,
        config: FuzzyLogicConfig,
        split: str,
        *,
        seeds: Sequence[int],
        combinations: Int64[Tensor, "p n k"],
        batch_size: int,
    ) -> None:
        device = combinations.device
        super().__init__(batch_size=batch_size, device=device)
        self._config = config
        self._combinations = combinations
        self._stream = RandomStream(seeds=seeds, name=f"fuzzy logic/{split}", device=device)
        self._combination_counter = counters(0, 1, device=device)
        self._point_counters = counters(
            1, config.num_variables * config.sequence_length, device=device
        )
        self._negations = term_negations(config.num_variables, device=device)
        self._fixed = self._fixed_positions(split)
        fixed_stream = RandomStream(seeds=seeds, name="fuzzy logic/fixed points", device=device)
        instance_zero = torch.zeros(1, dtype=torch.int64, device=device)
        self._fixed_points = self._points(fixed_stream.keys(instance_zero))

    def __call__(self, index: int | Int64[Tensor, ""]) -> Batch:
        keys = self._stream.keys(self._instance_numbers(index))
        choice = to_integers(
            random_words(keys, self._combination_counter), self._combinations.shape[1]
        )
        terms = pick_combinations(self._combinations, choice)
        points = self._points(keys)
        points[..., self._fixed] = self._fixed_points[..., self._fixed]
        targets = evaluate(self._negations[terms], points)
        return Batch(_tokens(points, targets), targets, terms)

    def _fixed_positions(self, split: str) -> slice:
        query = self._config.sequence_length - 1
        if split.endswith("fixed_context"):
            return slice(0, query)
        if split.endswith("fixed_query"):
            return slice(query, query + 1)
        return slice(0, 0)

    def _points(self, keys: Keys) -> Float[Tensor, "p b l t"]:
        # The sequence is the innermost axis: it is the longest, so the loops over it are fast.
        addresses = Keys(keys.first.unsqueeze(-1), keys.second.unsqueeze(-1))
        uniform = to_uniform(random_words(addresses, self._point_counters))
        return uniform.unflatten(-1, (self._config.num_variables, self._config.sequence_length))


def _tokens(
    points: Float[Tensor, "p b l t"], targets: Float[Tensor, "p b t"]
) -> Float[Tensor, "p b t l+1"]:
    shown = F.pad(targets[..., :-1], (0, 1))  # the query's value is what is asked for
    return torch.cat((points.mT, shown.unsqueeze(-1)), dim=-1)
