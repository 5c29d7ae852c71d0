"""Swapping codes: what a model answers if layers work with the code of another rule.

The edit that `hyla.latents.Swaps` makes for thousands of instances, for one: the last feature of a
puzzle whose columns are not permuted, at the pairs of the study.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from hyla._errors import nearest
from hyla.explorer import schemas
from hyla.explorer.codes import Atlas, PairList, pairs_of, record
from hyla.explorer.gallery import Gallery, Subject
from hyla.explorer.puzzles import Puzzle, puzzle_for
from hyla.explorer.refusals import RefusedError
from hyla.latents import Specimens, edited, replaced
from hyla.latents.capture import run

Verdict: TypeAlias = Literal["follows", "stays", "copies", "same", "other"]


class Donation(NamedTuple):
    """What is given to the layers, and whose it is."""

    codes: Tensor
    """[layers, pairs, heads]"""
    donor: schemas.DonorShown | None = None


def swap(gallery: Gallery, atlas: Atlas, request: schemas.SwapRequest) -> schemas.Swap:
    """Answer a puzzle with and without a donor's code."""
    subject = atlas.subject
    pairs, names = pairs_of(subject, None, None), subject.sraven.config.rules
    puzzle = _unpermuted(puzzle_for(gallery, subject, request.id))
    layers = _layers(subject, request.layers)
    match request.donor:
        case schemas.DonorPuzzle(id=id):
            donor = _unpermuted(puzzle_for(gallery, subject, id))
            rule = _last_rule(donor)
        case schemas.DonorRule(rule=name):
            donor, rule = None, _rule_number(names, name)
    match request.code:
        case "zero":
            donation = Donation(torch.zeros_like(atlas.recording(pairs).codes[:, 0]))
        case "rule mean":
            donation = _mean_of_rule(atlas, pairs, rule)
        case "instance" if donor is not None:
            donation = _of_puzzle(subject, pairs, donor)
        case _:
            donation = _of_some_instance(atlas, pairs, rule, number=puzzle.problem.index)
    own, others = (_prescribed(subject, puzzle, r) for r in (_last_rule(puzzle), rule))
    assert own is not None  # its own rule made the row
    after = predict(subject, puzzle.inputs, pairs, layers, donation.codes)
    verdict, sentence = _judge(after.values[-1], own, others, donation.donor)
    return schemas.Swap(
        before=predict(subject, puzzle.inputs, pairs, [], donation.codes),
        after=after,
        own_rule=names[_last_rule(puzzle)],
        donor_rule=names[rule],
        own_prescribes=own,
        donor_prescribes=others,
        donor=donation.donor,
        verdict=verdict,
        sentence=sentence,
    )


def predict(
    subject: Subject, inputs: Tensor, pairs: PairList, layers: Sequence[int], codes: Tensor
) -> schemas.Prediction:
    """Return the model's answer to one instance with these codes [layers, pairs, heads]."""
    edits = {layer: replaced(codes[layer], pairs) for layer in layers}
    with subject.model() as model, edited(model, edits):
        logits = run(model, inputs)
    probabilities = logits[0, -subject.task.num_queries :].softmax(dim=-1)
    return schemas.Prediction(
        values=probabilities.argmax(dim=-1).tolist(), probabilities=probabilities[-1].tolist()
    )


# --- what is asked for ---------------------------------------------------------------------------


def _unpermuted(puzzle: Puzzle) -> Puzzle:
    if puzzle.problem.permuted:
        raise RefusedError(
            "codes are swapped between puzzles whose columns are not permuted, as only there all "
            "features keep their places: take one with permuted=false"
        )
    return puzzle


def _last_rule(puzzle: Puzzle) -> int:
    """Return the number of the rule that gives the last place its value."""
    return puzzle.problem.config.rules.index(puzzle.problem.rules[-1])


def _rule_number(names: Sequence[str], name: str) -> int:
    if name not in names:
        raise RefusedError(
            f"{name!r} is no rule{nearest(name, names)}; choose from {', '.join(names)}"
        )
    return names.index(name)


def _layers(subject: Subject, asked: Sequence[int]) -> list[int]:
    number = subject.config.model.num_layers
    if max(asked) >= number:
        raise RefusedError(f"{subject.id} has {number} layers, counted from 0; got {max(asked)}")
    return sorted(set(asked))


def _prescribed(subject: Subject, puzzle: Puzzle, rule: int) -> int | None:
    """Return what a rule makes of the last feature's last row; None for nothing."""
    specimen = Specimens(
        inputs=puzzle.inputs,
        operations=torch.tensor([_last_rule(puzzle)]),
        answers=torch.tensor([float(puzzle.problem.answer[-1])]),
        labels={},
        decodable={},
        predictors={},
    )
    value = float(subject.study.prescribed(specimen, torch.tensor([rule])))
    return None if math.isnan(value) else int(value)


# --- donors --------------------------------------------------------------------------------------


def _mean_of_rule(atlas: Atlas, pairs: PairList, rule: int) -> Donation:
    """As in the study, of what the model solves: what it does not perform, it has no code for."""
    solved = _solved(atlas, pairs) & (atlas.instances.labels[:, -1] == rule)
    if not solved.any():
        name = atlas.subject.sraven.config.rules[rule]
        raise RefusedError(
            f"{atlas.subject.id} answered no instance of {name} right, so there is no mean code "
            "of those: take the code of an instance, or another rule"
        )
    return Donation(atlas.recording(pairs).codes[:, solved].mean(dim=1))


def _of_puzzle(subject: Subject, pairs: PairList, donor: Puzzle) -> Donation:
    recorded = record(subject, donor.inputs, pairs)
    shown = _shown(donor.shown, list(donor.problem.answer), int(recorded.predictions[0, -1]))
    return Donation(recorded.codes[:, 0], shown)


def _of_some_instance(atlas: Atlas, pairs: PairList, rule: int, *, number: int) -> Donation:
    """Take one with this rule, if possible one that is solved; another for each number."""
    recording = atlas.recording(pairs)
    with_rule = atlas.instances.labels[:, -1] == rule
    if not with_rule.any():
        raise RefusedError("no instance at hand has this rule: name a puzzle as the donor")
    solved = with_rule & _solved(atlas, pairs)
    candidates = (solved if solved.any() else with_rule).nonzero()[:, 0]
    chosen = int(candidates[number % len(candidates)])
    inputs, targets = atlas.instances.inputs[chosen], atlas.instances.targets[chosen]
    panels = inputs.argmax(dim=-1).unflatten(0, (-1, len(targets)))[:-1].tolist()
    answer = int(recording.predictions[chosen, -1])
    return Donation(recording.codes[:, chosen], _shown(panels, targets.tolist(), answer))


def _solved(atlas: Atlas, pairs: PairList) -> Tensor:
    return atlas.recording(pairs).predictions[:, -1] == atlas.instances.targets[:, -1]


def _shown(panels: list[schemas.Panel], target: schemas.Panel, answer: int) -> schemas.DonorShown:
    return schemas.DonorShown(
        panels=panels, target=target, answer=answer, correct=answer == target[-1]
    )


# --- what it did ---------------------------------------------------------------------------------


def _judge(
    answer: int, own: int, others: int | None, donor: schemas.DonorShown | None
) -> tuple[Verdict, str]:
    """Compare an answer with what both rules prescribe, in the order of `hyla.latents.Swaps`."""
    if others is not None and own == others:
        return "same", f"Both rules prescribe {own} here: this puzzle cannot tell them apart."
    if answer == others:
        return "follows", f"The answer is now {answer}, as the donor's rule prescribes."
    if answer == own:
        return "stays", f"The answer is {answer}, as the puzzle's own rule prescribes."
    if donor is not None and answer == donor.target[-1]:
        return "copies", f"The answer is now {answer}: the donor's own answer, not its rule."
    expected = "nothing" if others is None else str(others)
    return "other", (
        f"The answer is now {answer}; the own rule prescribes {own}, the donor's {expected}."
    )
