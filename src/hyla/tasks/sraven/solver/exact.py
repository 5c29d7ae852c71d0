"""The exact solver of SRAVEN: all readings of an instance, and what they say about its answer.

A *reading* of an instance divides the positions of its columns into M threads, so that every
position of every column lies in one, and gives each thread a rule that fits what is shown of it.
Each rule then prescribes an entry of the query panel.

Few threads fit any rule: of 64 in the paper's setting, six or seven. The solver lists those, and
puts readings together from them one position of the first column after the other. Partial readings
that agree in what matters from there on (the positions used, how often each rule was used, the
entries prescribed) are merged and their probabilities added up, so that even an instance with
hundreds of millions of readings, such as a grid of zeros, is no trouble.

The probability of a reading is that of its tasks under the generator: all multisets of M rules are
equally likely, laid onto the features in random order, hence the weight Π n_r! of a reading that
uses rule r n_r times; all orders of the columns are equally likely; and rule r fills a grid in one
of `count` ways, all equally likely, hence another 1 / count for each thread. The hidden entry
follows from the others, so it costs no factor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int, Int64
from torch import Tensor

from hyla.tasks.splits import Combination
from hyla.tasks.sraven.checks import check_panels
from hyla.tasks.sraven.config import SravenConfig
from hyla.tasks.sraven.rules import RULES
from hyla.tasks.sraven.solver.grouping import distinct, log_sum_groups
from hyla.tasks.sraven.solver.readings import (
    Reading,
    fitting_threads,
    list_readings,
    why_unreadable,
)
from hyla.tasks.sraven.threads import narrowed, prescriptions, thread_context

_WORKING_SET = {"cpu": 2**20, "cuda": 2**26}  # threads × instances looked at together
_MOST_EXTENSIONS = {"cpu": 2**23, "cuda": 2**26}  # of partial readings, looked at together
_MOST_THREADS = 2**26  # of one instance
_LARGEST_CODE = 2**62
_MOST_DIGITS = 2**16  # of an alphabet that holds all values, whether they occur or not


class Answer(NamedTuple):
    """A query panel that some reading prescribes."""

    panel: tuple[int, ...]
    """Its values, in the order shown."""
    probability: float
    """Its posterior probability given the context."""


class Solution(NamedTuple):
    """What can be known about the query panels of a batch of instances."""

    answer: Int64[Tensor, "b m"]
    """The most probable query panel (maximum a posteriori), as shown; of equally probable ones the
    first in lexicographic order."""
    posterior: Float64[Tensor, "b"]
    """The probability of that answer under the generative process, given the context."""
    num_answers: Int64[Tensor, "b"]
    """How many different query panels some reading prescribes."""
    candidates: Int64[Tensor, "n m"]
    """All those panels, instance after instance, each instance's from most to least probable."""
    probabilities: Float64[Tensor, "n"]
    """The posterior of each candidate; those of one instance sum to one."""

    def answers(self, index: int) -> list[Answer]:
        """The candidates of instance `index`, most probable first."""
        index = range(len(self.num_answers))[index]
        end = int(self.num_answers[: index + 1].sum())
        own = slice(end - int(self.num_answers[index]), end)
        pairs = zip(self.candidates[own].tolist(), self.probabilities[own].tolist(), strict=True)
        return [Answer(tuple(panel), probability) for panel, probability in pairs]


class _Alphabet(NamedTuple):
    """How an answer is written as one integer: its values are digits, the first the leading one."""

    values: Int64[Tensor, "base"]
    """What the digits stand for, in increasing order."""
    weights: Int64[Tensor, "m"]
    """What a digit is worth at each position."""

    @property
    def num_codes(self) -> int:
        """How many answers can be written."""
        return len(self.values) ** len(self.weights)


class _Pairs(NamedTuple):
    """Threads with a rule that fits them, ordered by position in column 1, then by instance."""

    used: Int64[Tensor, "pairs"]
    """The positions in the columns after the first, as bits."""
    rule: Int64[Tensor, "pairs"]
    contribution: Int64[Tensor, "pairs"]
    """What the prescribed value adds to the code of an answer."""
    starts: Int64[Tensor, "m n"]
    """Where the pairs of each position and instance begin ..."""
    counts: Int64[Tensor, "m n"]
    """... and how many there are."""
    alphabet: _Alphabet


class _Partial(NamedTuple):
    """Partial readings of a batch, one a row; the merged ones of an instance are all different."""

    instance: Int64[Tensor, "rows"]
    used: Int64[Tensor, "rows"]
    """Positions used in the columns after the first, as bits."""
    rules: Int64[Tensor, "rows"]
    """How often each rule was used, as digits to the base M + 1."""
    answer: Int64[Tensor, "rows"]
    """The entries prescribed so far, in the alphabet of the pairs."""
    log_weight: Float64[Tensor, "rows"]


class Solver:
    """Finds all readings of SRAVEN instances, and the posterior of every answer.

    Exact. The time grows with the M^G threads and with how many partial readings fit.
    """

    def __init__(
        self,
        config: SravenConfig,
        *,
        combinations: Sequence[Combination] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Solve instances of `config`.

        `combinations` restricts the multisets of rules that may occur, for an observer who knows a
        side of the split (`Sraven.manifest(seed).sides`); without it all are equally likely.
        """
        config.refuse_distractors("the solver")
        self.config = config
        self.device = torch.device(device)
        M, K, G = config.num_features, config.num_values, config.grid_size
        R = len(config.rules)
        for what, size in {
            "2 ** (num_features * (grid_size - 1))": 2 ** (M * (G - 1)),
            "(num_features + 1) ** len(rules)": (M + 1) ** R,
        }.items():
            if size > _LARGEST_CODE:
                raise ValueError(
                    f"the solver needs {what} to be at most 2^62, got {size}; lower num_features"
                )
        few = K <= _MOST_DIGITS and K**M <= _LARGEST_CODE
        self._all_values = self._alphabet(torch.arange(K)) if few else None
        self._rule_weights = torch.tensor(
            [(M + 1) ** r for r in range(R)], dtype=torch.int64, device=self.device
        )
        self._log_likelihoods = torch.tensor(
            [-math.log(RULES[name].count(K, G)) for name in config.rules],
            dtype=torch.float64,
            device=self.device,
        )
        self._combinations = (
            None if combinations is None else {tuple(sorted(c)) for c in combinations}
        )
        codes = [sum((M + 1) ** r for r in combination) for combination in combinations or ()]
        self._allowed = torch.tensor(codes, dtype=torch.int64, device=self.device)

    def __call__(
        self, panels: Int[Tensor, "b rows columns m"], *, permuted: bool = True
    ) -> Solution:
        """Solve a batch; the entries of the query panel (the last) are ignored.

        `permuted=False` is for instances known to show the features in the same order in all
        columns. An instance that no reading fits is a ValueError that says which one and why.
        """
        check_panels(panels, self.config)
        M, G = self.config.num_features, self.config.grid_size
        if permuted and M**G > _MOST_THREADS:
            raise ValueError(
                f"{M} features in {G} permuted columns make {M**G:,} threads, more than the "
                f"{_MOST_THREADS:,} that the solver can look at; lower num_features or grid_size, "
                "or pass permuted=False if all columns show the features in the same order"
            )
        chunk = max(1, self._limit(_WORKING_SET) // (M**G if permuted else M))
        solutions = [
            self._solve(part.to(self.device), permuted=permuted, first=chunk * number)
            for number, part in enumerate(panels.split(chunk))
        ]
        return _join(solutions)

    def readings(
        self, panels: Int[Tensor, "rows columns m"], *, permuted: bool = True
    ) -> list[Reading]:
        """All readings of one instance, most probable first.

        Each is listed, so an instance that fits nearly anything (a grid of zeros) has very many.
        """
        self(panels.unsqueeze(0), permuted=permuted)  # complains if there is none
        threads = fitting_threads(panels, self.config, permuted=permuted)
        return list_readings(threads, self.config, combinations=self._combinations)

    def _solve(
        self, panels: Int[Tensor, "n rows columns m"], *, permuted: bool, first: int
    ) -> Solution:
        M = self.config.num_features
        pairs = self._pairs(panels, permuted=permuted)
        if pairs.alphabet.num_codes > _LARGEST_CODE:
            if len(panels) == 1:
                base = len(pairs.alphabet.values)
                raise ValueError(
                    f"instance {first} has more answers than the solver can number: {base} values "
                    f"fit somewhere among its {M} features, and {base}^{M} is not at most 2^62; "
                    "lower num_features or num_values"
                )
            return self._solve_halves(panels, permuted=permuted, first=first)
        instances = torch.arange(len(panels), device=self.device)
        nothing = torch.zeros_like(instances)
        partial = _Partial(instances, nothing, nothing, nothing, nothing.to(torch.float64))
        for position in range(M):
            # Where values are few a reading can go on in many ways, and memory would not do.
            extensions = int(pairs.counts[position][partial.instance].sum())
            if extensions > self._limit(_MOST_EXTENSIONS) and len(panels) > 1:
                return self._solve_halves(panels, permuted=permuted, first=first)
            extended = self._extend(partial, pairs, position)
            partial = self._merge(extended, len(panels), pairs.alphabet)
        if self._combinations is not None:
            kept = torch.isin(partial.rules, self._allowed)
            partial = _Partial(*(field[kept] for field in partial))
        # What matters in the end is the answer alone.
        answers = partial._replace(rules=torch.zeros_like(partial.rules))
        partial = self._merge(answers, len(panels), pairs.alphabet)
        num_answers = torch.bincount(partial.instance, minlength=len(panels))
        if not bool(num_answers.all()):
            unsolved = int((num_answers == 0).int().argmax())
            threads = fitting_threads(panels[unsolved], self.config, permuted=permuted)
            reason = why_unreadable(threads, self.config, permuted=permuted)
            raise ValueError(f"instance {first + unsolved} has no reading: {reason}")
        return self._rank(partial, num_answers, pairs.alphabet)

    def _solve_halves(
        self, panels: Int[Tensor, "n rows columns m"], *, permuted: bool, first: int
    ) -> Solution:
        """Solve instances apart that are too much together."""
        half = len(panels) // 2
        return _join(
            [
                self._solve(panels[:half], permuted=permuted, first=first),
                self._solve(panels[half:], permuted=permuted, first=first + half),
            ]
        )

    def _limit(self, limits: Mapping[str, int]) -> int:
        return limits["cuda" if self.device.type == "cuda" else "cpu"]

    def _rank(
        self, complete: _Partial, num_answers: Int64[Tensor, "n"], alphabet: _Alphabet
    ) -> Solution:
        evidence = log_sum_groups(complete.log_weight, complete.instance, len(num_answers))
        probabilities = (complete.log_weight - evidence[complete.instance]).exp()
        # Probabilities that differ by rounding alone count as equal; sorting is stable, and rows
        # come in the order of their answers.
        order = (-probabilities * 2**40).round().argsort(stable=True)
        order = order[complete.instance[order].argsort(stable=True)]
        digits = complete.answer[order].unsqueeze(-1) // alphabet.weights
        candidates = alphabet.values[digits.remainder(len(alphabet.values))]
        probabilities = probabilities[order]
        best = num_answers.cumsum(0) - num_answers
        return Solution(
            answer=candidates[best],
            posterior=probabilities[best],
            num_answers=num_answers,
            candidates=candidates,
            probabilities=probabilities,
        )

    def _pairs(self, panels: Int[Tensor, "n rows columns m"], *, permuted: bool) -> _Pairs:
        M, G = self.config.num_features, self.config.grid_size
        n = len(panels)
        threads = (M,) * (G if permuted else 1)
        grids = narrowed(panels.permute(2, 1, 3, 0), num_values=self.config.num_values)
        context = thread_context(grids, num_values=self.config.num_values, permuted=permuted)
        found = []
        for r, (fits, value) in enumerate(prescriptions(context, self.config.rules)):
            indices = fits.expand(*threads, n).nonzero(as_tuple=True)
            *positions, instance = indices
            if not permuted:
                positions = positions * G
            used = sum(p.new_ones(()) << (p + M * c) for c, p in enumerate(positions[1:]))
            rule = torch.full_like(instance, r)
            prescribed = value.expand(*threads, n)[indices].to(torch.int64)
            found.append((positions[0] * n + instance, used, rule, prescribed, positions[-1]))
        group, used, rule, prescribed, last = (
            torch.cat(field) for field in zip(*found, strict=True)
        )
        alphabet, digit = self._all_values, prescribed
        if alphabet is None:  # those that occur are few
            values, digit = prescribed.unique(return_inverse=True)
            alphabet = self._alphabet(values)
        contribution = digit * alphabet.weights[last]
        order = group.argsort()
        counts = torch.bincount(group, minlength=M * n)
        return _Pairs(
            used=used[order],
            rule=rule[order],
            contribution=contribution[order],
            starts=(counts.cumsum(0) - counts).view(M, n),
            counts=counts.view(M, n),
            alphabet=alphabet,
        )

    def _alphabet(self, values: Int64[Tensor, "base"]) -> _Alphabet:
        M = self.config.num_features
        # Where a code would not fit it is not used, and any weight will do.
        weights = [min(len(values) ** (M - 1 - m), _LARGEST_CODE) for m in range(M)]
        return _Alphabet(values.to(self.device), torch.tensor(weights, device=self.device))

    def _extend(self, partial: _Partial, pairs: _Pairs, position: int) -> _Partial:
        """Every partial reading with every thread that begins at `position` and does not cross."""
        counts = pairs.counts[position][partial.instance]
        rows = torch.arange(len(counts), device=self.device).repeat_interleave(counts)
        before = counts.cumsum(0) - counts
        begin = pairs.starts[position][partial.instance] - before
        chosen = torch.arange(len(rows), device=self.device) + begin[rows]
        free = ((partial.used[rows] & pairs.used[chosen]) == 0).nonzero().squeeze(-1)
        rows, chosen = rows[free], chosen[free]
        rule = pairs.rule[chosen]
        rules = partial.rules[rows]
        weight = self._rule_weights[rule]
        occurrences = (rules // weight).remainder(self.config.num_features + 1) + 1
        return _Partial(
            instance=partial.instance[rows],
            used=partial.used[rows] | pairs.used[chosen],
            rules=rules + weight,
            answer=partial.answer[rows] + pairs.contribution[chosen],
            log_weight=partial.log_weight[rows]
            + self._log_likelihoods[rule]
            + occurrences.to(torch.float64).log(),
        )

    def _merge(self, partial: _Partial, num_instances: int, alphabet: _Alphabet) -> _Partial:
        """Partial readings that differ in their weight alone become one."""
        M, G = self.config.num_features, self.config.grid_size
        first, group = distinct(
            (partial.instance, num_instances),
            (partial.answer, alphabet.num_codes),
            (partial.used, 2 ** (M * (G - 1))),
            (partial.rules, (M + 1) ** len(self.config.rules)),
        )
        log_weight = log_sum_groups(partial.log_weight, group, len(first))
        merged = _Partial(*(field[first] for field in partial))
        return merged._replace(log_weight=log_weight)


def _join(solutions: Sequence[Solution]) -> Solution:
    return Solution(*(torch.cat(field) for field in zip(*solutions, strict=True)))
