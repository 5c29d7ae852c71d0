"""Swapping codes: what a model answers if layers work with the code of another rule.

The edit that `hyla.latents.Swaps` makes for thousands of instances, for one: the last feature of a
puzzle whose columns are not permuted, at the pairs of the study.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hyla.explorer.codes import Atlas, PairList
from hyla.explorer.donors import Donor, donor_of, find_donor, operands_of
from hyla.explorer.gallery import Exhibit, Gallery, study_pairs
from hyla.explorer.puzzles import Puzzle, puzzle_for, rule_number
from hyla.explorer.swap_rates import counted
from hyla.explorer.web import schemas
from hyla.explorer.web.refusals import RefusedError
from hyla.latents import Specimens, edited, replaced
from hyla.latents.capture import run


class Donation(NamedTuple):
    """What is given to the layers, and whose it is."""

    codes: Tensor
    """[layers, pairs, heads]"""
    rule: int | None
    """Whose code it is; None for no code."""
    donor: schemas.DonorShown | None = None


def swap(gallery: Gallery, atlas: Atlas, request: schemas.SwapRequest) -> schemas.Swap:
    """Answer a puzzle with and without a donor's code."""
    subject = atlas.subject
    names = subject.sraven.config.rules
    pairs = tuple(study_pairs(subject, request.pairs))
    puzzle = _unpermuted(puzzle_for(gallery, subject, request.id))
    layers = _layers(subject, request.layers)
    donation = _donation(gallery, atlas, request, puzzle, pairs)
    own_rule, rule, donor = _last_rule(puzzle), donation.rule, donation.donor
    own = _prescribed(subject, puzzle, own_rule)
    assert own is not None  # its own rule made the row
    others = None if rule is None else _prescribed(subject, puzzle, rule)
    before = predict(subject, puzzle.inputs, pairs, [], donation.codes)
    after = predict(subject, puzzle.inputs, pairs, layers, donation.codes)
    verdict, sentence = judge(
        before.values[-1],
        after.values[-1],
        own=own,
        others=others,
        same_rule=rule == own_rule,
        donor=donor,
    )
    return schemas.Swap(
        before=before,
        after=after,
        own_rule=names[own_rule],
        donor_rule=None if rule is None else names[rule],
        own_prescribes=own,
        donor_prescribes=others,
        donor=donor,
        verdict=verdict,
        sentence=sentence,
        counted=counted(
            subject.id,
            request.code,
            pairs=request.pairs,
            same_rule=rule == own_rule,
            same_operands=donor is not None and donor.same_operands,
        ),
    )


def predict(
    subject: Exhibit, inputs: Tensor, pairs: PairList, layers: Sequence[int], codes: Tensor
) -> schemas.Prediction:
    """Return the model's answer to one instance with these codes [layers, pairs, heads]."""
    edits = {layer: replaced(codes[layer], pairs) for layer in layers}
    with subject.lent() as model, edited(model, edits):
        logits = run(model, inputs)
    probabilities = subject.finite(logits[0, -subject.task.num_queries :]).softmax(dim=-1)
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


def _layers(subject: Exhibit, asked: Sequence[int]) -> list[int]:
    number = subject.config.model.num_layers
    if max(asked) >= number:
        raise RefusedError(f"{subject.id} has {number} layers, counted from 0; got {max(asked)}")
    return sorted(set(asked))


def _prescribed(subject: Exhibit, puzzle: Puzzle, rule: int) -> int | None:
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


def _donation(
    gallery: Gallery, atlas: Atlas, request: schemas.SwapRequest, puzzle: Puzzle, pairs: PairList
) -> Donation:
    subject, names = atlas.subject, atlas.subject.sraven.config.rules
    match request.donor:
        case schemas.DonorPuzzle(id=id):
            named = _unpermuted(puzzle_for(gallery, subject, id))
            rule, same_operands = _last_rule(named), False
        case schemas.DonorRule(rule=name, same_operands=same_operands):
            named, rule = None, rule_number(names, name)
    match request.code:
        case "zero":
            about = subject.description
            return Donation(torch.zeros(about.layers, len(pairs), about.heads), None)
        case "rule mean":
            return Donation(_mean_of_rule(atlas, pairs, rule), rule)
    if named is not None:
        donor = donor_of(subject, named, pairs)
    else:
        wanted = operands_of(puzzle) if same_operands else None
        donor = find_donor(subject, puzzle, rule, pairs, wanted) or find_donor(
            subject, puzzle, rule, pairs, None
        )
        assert donor is not None  # some combination has this rule
    return Donation(donor.codes, rule, _shown(donor, puzzle, same_operands))


def _mean_of_rule(atlas: Atlas, pairs: PairList, rule: int) -> Tensor:
    """As in the study, of what the model solves: what it does not perform, it has no code for."""
    recording, instances = atlas.recording(pairs), atlas.instances
    solved = recording.predictions[:, -1] == instances.targets[:, -1]
    chosen = solved & (instances.labels[:, -1] == rule)
    if not chosen.any():
        name = atlas.subject.sraven.config.rules[rule]
        raise RefusedError(
            f"{atlas.subject.id} answered no instance of {name} right, so there is no mean code "
            "of those: take the code of an instance, or another rule"
        )
    return recording.codes[:, chosen].mean(dim=1)


def _shown(donor: Donor, recipient: Puzzle, same_operands: bool) -> schemas.DonorShown:
    """Return what a person gets to see; with a note if the operands should have been the same."""
    problem, operands = donor.puzzle.problem, operands_of(recipient)
    same = operands_of(donor.puzzle) == operands
    note = (
        f"No puzzle was found that applies {problem.rules[-1].replace('_', ' ')} to "
        f"{' and '.join(map(str, operands))}: this donor has other operands."
    )
    return schemas.DonorShown(
        id=donor.puzzle.id,
        panels=donor.puzzle.shown,
        target=list(problem.answer),
        answer=donor.answer,
        correct=donor.solved,
        same_operands=same,
        note=note if same_operands and not same else None,
    )


# --- what it did ---------------------------------------------------------------------------------


def judge(
    before: int,
    after: int,
    *,
    own: int,
    others: int | None,
    same_rule: bool,
    donor: schemas.DonorShown | None,
) -> tuple[schemas.Verdict, str]:
    """Say what a swap did, of what `hyla.latents.Swaps` would count; otherwise why it is not told.

    `own` and `others` are what the own and the donor's rule prescribe for this puzzle.
    """
    if before != own:
        return "undecided", (
            f"The model is wrong before the swap, too: it answers {before}, its own rule "
            f"prescribes {own}. Take a puzzle that it answers right."
        )
    if donor is not None and not donor.correct:
        return "undecided", (
            f"The model is wrong about the donor's own puzzle: it answers {donor.answer}, right is "
            f"{donor.target[-1]}. What it does not perform, it has no code for: take another donor."
        )
    if own == others and not same_rule:
        return "undecided", f"Both rules prescribe {own} here: this puzzle cannot tell them apart."
    copied = donor is not None and after == donor.target[-1]
    if after == own:
        sentence = f"The answer is still {own}, as the puzzle's own rule prescribes."
        as_well = " It is the donor's own answer as well: copying would look the same."
        return "stays", sentence + as_well * copied
    if after == others:
        sentence = f"The answer is now {after}, as the donor's rule prescribes."
        return "follows", sentence + _caveat(donor) * copied
    if copied:
        return "copies", (
            f"The answer is now {after}: the donor's own answer, and not what its rule prescribes "
            "here."
        )
    also = ", and so does the donor's" if same_rule else ""
    also = f", the donor's {others}" if others not in (None, own) else also
    return "other", f"The answer is now {after}; the own rule prescribes {own}{also}."


def _caveat(donor: schemas.DonorShown | None) -> str:
    """Say why following a donor's rule may be copying its answer, where both are the same."""
    if donor is not None and donor.same_operands:
        return (
            " With the same operands this is the donor's own answer by construction: following its "
            "rule and copying its answer look the same."
        )
    return " It is the donor's own answer as well, by chance: copying would look the same."
