"""Puzzles: SRAVEN instances by an id that a link can carry, their answers, and their explanation.

An id names the shape of the puzzle (`identity.shape_key`), its rules as a sorted multiset, whether
columns are permuted, and a seed: `0123abcd.0057.p.42`. It says nothing of a model.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hyla._errors import nearest
from hyla.explorer.gallery import Exhibit, Gallery
from hyla.explorer.web import schemas
from hyla.explorer.web.refusals import NotThereError, RefusedError
from hyla.tasks.randomness import digest_words
from hyla.tasks.splits import Combination
from hyla.tasks.sraven import (
    Solver,
    SravenConfig,
    SravenSampler,
    ambiguous_by_authors,
    ambiguous_by_definition,
    encode,
)
from hyla.tasks.sraven.problem import Problem, problem_of

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"  # an id names rules by one of these
_SIDES: dict[schemas.Split, str] = {"seen": "train", "held-out": "ood"}
_SHOWN_ANSWERS = 5


class Puzzle(NamedTuple):
    """One instance and its id."""

    id: str
    rules: Combination
    problem: Problem

    @property
    def panels(self) -> Tensor:
        """The grid [rows, columns, M]; the last panel is the answer."""
        return torch.tensor(self.problem.panels)

    @property
    def inputs(self) -> Tensor:
        """What a model reads [1, T, K]."""
        return encode(self.panels, num_values=self.problem.config.num_values).unsqueeze(0)

    @property
    def shown(self) -> list[schemas.Panel]:
        """The panels but for the answer."""
        return [list(panel) for row in self.problem.panels for panel in row][:-1]

    def rule_at(self, token: int) -> str:
        """Return the rule of the feature that a token shows."""
        config = self.problem.config
        panel, place = divmod(token, config.panel_size)
        return self.problem.rules[self.problem.permutations[panel % config.grid_size][place]]


# --- which puzzle --------------------------------------------------------------------------------


def new_puzzle(
    subject: Exhibit, *, seed: int, split: schemas.Split, permuted: bool, rules: str | None
) -> Puzzle:
    """Return the puzzle of a seed: with these rules, or with some of the side of the split."""
    config = subject.sraven.config
    if rules is not None:
        chosen = _parse_rules(rules, config)
    else:
        side = subject.sraven.manifest(subject.seed).sides[_SIDES[split]]
        chosen = side[digest_words(f"explorer/{seed}", 1)[0] % len(side)]
    return build(subject, chosen, permuted=permuted, seed=seed)


def find_puzzle(gallery: Gallery, id: str) -> Puzzle:
    """Return the puzzle of an id, if some model knows puzzles of its shape."""
    shape, digits, kind, seed = id.split(".")
    subject = gallery.first(shape=shape)
    if subject is None:
        raise NotThereError(
            f"no model here knows puzzles like {id}: start the explorer with the run that it is "
            "from, or take a new puzzle"
        )
    config = subject.sraven.config
    rules = tuple(map(_DIGITS.index, digits))
    sound = len(rules) == config.num_features and list(rules) == sorted(rules)
    if not sound or rules[-1] >= len(config.rules) or int(seed) > schemas.MAX_SEED:
        raise NotThereError(f"there is no puzzle {id}: take a new one")
    return build(subject, rules, permuted=kind == "p", seed=int(seed))


def puzzle_for(gallery: Gallery, subject: Exhibit, id: str) -> Puzzle:
    """Return the puzzle of an id, to be shown to this model."""
    puzzle = find_puzzle(gallery, id)
    if subject.sraven and not id.startswith(subject.shape):
        raise RefusedError(
            f"{subject.id} learned puzzles of another size: take a new puzzle for it"
        )
    return puzzle


def split_of(subject: Exhibit, puzzle: Puzzle) -> schemas.Split:
    """Whether training showed the model this combination of rules."""
    held_out = subject.sraven.manifest(subject.seed).sides["ood"]
    return "held-out" if puzzle.rules in held_out else "seen"


def shown_puzzle(subject: Exhibit, puzzle: Puzzle) -> schemas.Instance:
    """Return what a person gets to see."""
    config = puzzle.problem.config
    return schemas.Instance(
        id=puzzle.id,
        seed=puzzle.problem.index,
        split=split_of(subject, puzzle),
        permuted=puzzle.problem.permuted,
        panels=puzzle.shown,
        grid=config.grid_size,
        features=config.num_features,
        values=config.num_values,
    )


def build(subject: Exhibit, rules: Combination, *, permuted: bool, seed: int) -> Puzzle:
    """Return the puzzle of a seed with these rules."""
    config, split = subject.sraven.config, _split(permuted)
    sampler = _sampler(config, split, rules, batch_size=1)
    problem = problem_of(sampler, seed, config=config, split=split, seed=0)
    digits = "".join(_DIGITS[rule] for rule in rules)
    id = f"{subject.shape}.{digits}.{'p' if permuted else 'o'}.{seed}"
    return Puzzle(id, rules, problem)


def unpermuted(subject: Exhibit, rules: Combination, *, seeds: int) -> tuple[Tensor, Tensor]:
    """Return panels [N, rows, columns, M] and rules [N, M] of the puzzles of seeds 0 ... N - 1.

    An instance is a function of its number: these are those that `build` makes, all at once.
    """
    sampler = _sampler(subject.sraven.config, _split(False), rules, batch_size=seeds)
    panels, features, _ = sampler.instances(0)
    return panels[0], features[0]


def _split(permuted: bool) -> str:
    # A stream of its own: none of these instances was trained on or scored.
    return "explorer" if permuted else "explorer_unpermuted"


def _sampler(
    config: SravenConfig, split: str, rules: Combination, *, batch_size: int
) -> SravenSampler:
    return SravenSampler(
        config, split, seeds=[0], combinations=torch.tensor([[rules]]), batch_size=batch_size
    )


def _parse_rules(text: str, config: SravenConfig) -> Combination:
    rules = [rule_number(config.rules, name.strip()) for name in text.split(",")]
    if len(rules) != config.num_features:
        raise RefusedError(
            f"a puzzle has {config.num_features} rules, one a feature; got {len(rules)}"
        )
    return tuple(sorted(rules))


def rule_number(names: Sequence[str], name: str) -> int:
    """Return the place of a rule among those of some puzzles."""
    if name not in names:
        raise RefusedError(
            f"{name!r} is no rule of these puzzles{nearest(name, names)}; "
            f"choose from {', '.join(names)}"
        )
    return names.index(name)


# --- answers -------------------------------------------------------------------------------------


def answers(subject: Exhibit, puzzle: Puzzle) -> schemas.Answers:
    """Return the answers of model and solver."""
    return schemas.Answers(
        split=split_of(subject, puzzle),
        model=_model_answer(subject, puzzle),
        solver=_solver_answer(puzzle),
    )


@torch.no_grad()
def _model_answer(subject: Exhibit, puzzle: Puzzle) -> schemas.ModelAnswer:
    with subject.lent() as model:
        logits = model(puzzle.inputs, last=subject.task.num_queries)
    assert isinstance(logits, Tensor)
    probabilities = subject.finite(logits[0]).softmax(dim=-1)
    values = probabilities.argmax(dim=-1).tolist()
    return schemas.ModelAnswer(
        values=values,
        probabilities=probabilities.tolist(),
        correct=tuple(values) == puzzle.problem.answer,
    )


def _solver_answer(puzzle: Puzzle) -> schemas.SolverAnswer:
    config, permuted = puzzle.problem.config, puzzle.problem.permuted
    panels = puzzle.panels.unsqueeze(0)
    solution = Solver(config)(panels, permuted=permuted)
    weights = solution.probabilities[:, None, None]
    each_value = torch.nn.functional.one_hot(solution.candidates, config.num_values)
    values = solution.answer[0].tolist()
    return schemas.SolverAnswer(
        values=values,
        probabilities=(each_value * weights).sum(dim=0).tolist(),
        posterior=float(solution.posterior),
        correct=tuple(values) == puzzle.problem.answer,
        num_answers=int(solution.num_answers),
        answers=[
            schemas.Candidate(values=list(panel), probability=probability)
            for panel, probability in solution.answers(0)[:_SHOWN_ANSWERS]
        ],
        ambiguous_by_definition=bool(ambiguous_by_definition(solution)),
        ambiguous_by_authors=bool(ambiguous_by_authors(panels, config, permuted=permuted)),
    )


# --- explanation ---------------------------------------------------------------------------------


def reveal(puzzle: Puzzle) -> schemas.Reveal:
    """Return the answer, and how each of its features comes about."""
    problem = puzzle.problem
    columns = range(problem.config.grid_size)
    return schemas.Reveal(
        target=list(problem.answer),
        features=[
            schemas.RevealedFeature(
                feature=feature,
                rule=rule,
                sentence=_sentence(rule, problem.rows(feature), problem.config.num_values),
                rows=[list(row) for row in problem.rows(feature)],
                positions=[problem.position(feature, column) for column in columns],
            )
            for feature, rule in enumerate(problem.rules)
        ],
    )


def _sentence(rule: str, rows: Sequence[schemas.Panel | tuple[int, ...]], num_values: int) -> str:
    """Say what a rule does, with the values of the last row."""
    *given, last = rows[-1]
    shown, modulo = ", ".join(map(str, given)), f"modulo {num_values}"
    if rule.startswith("progression"):
        step = int(rule.removeprefix("progression"))
        way = "grows" if step > 0 else "falls"
        return (
            f"The value {way} by {abs(step)} ({modulo}) from panel to panel: {shown}, then {last}."
        )
    match rule:
        case "constant":
            return f"All panels of a row show the same value: {last}."
        case "addition":
            return f"The last panel is the sum ({modulo}): {' + '.join(map(str, given))} = {last}."
        case "subtraction":
            return f"The last panel is the rest ({modulo}): {' − '.join(map(str, given))} = {last}."
        case "distribute_three":
            values = ", ".join(map(str, sorted(rows[0])))
            return f"Every row shows {values} in some order: after {shown}, {last} is missing."
        case "minimum" | "maximum":
            which = "least" if rule == "minimum" else "greatest"
            return f"The last panel is the {which} of the others: {shown} give {last}."
    return f"The rule {rule}: {shown}, then {last}."
