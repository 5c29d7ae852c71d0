"""Studies know what operations prescribe."""

import pytest
import torch

from hyla.latents import study_of
from hyla.tasks import FuzzyLogic, Sraven, SravenConfig
from tiny_runs import FUZZY, tiny_task

TASKS = {
    "sraven": Sraven(SravenConfig()),
    "sraven with distractors": Sraven(SravenConfig(num_features=2, num_distractors=1)),
    "fuzzy": FuzzyLogic(FUZZY),
}


@pytest.mark.parametrize("name", TASKS)
def test_the_own_operation_prescribes_the_answer(name):
    study = study_of(TASKS[name])
    for split in (study.known, study.unseen):
        specimens = study.sample(split, seed=3, instances=256)
        prescribed = study.prescribed(specimens, specimens.operations)
        torch.testing.assert_close(prescribed, specimens.answers)
        assert study.agree(prescribed, specimens.answers).all()
        assert {study.operations[i] for i in specimens.operations.tolist()} == set(
            specimens.labels[study.operation].tolist()
        )


def test_splits_of_a_study_have_no_composition_in_common():
    task = TASKS["sraven"]
    study = study_of(task)
    seen = [
        {tuple(sorted(rules)) for rules in batch.labels.tolist()}
        for split in (study.known, study.unseen)
        for batch in [task.batch(split, seed=0, index=0, batch_size=512)]
    ]
    assert not seen[0] & seen[1]


def test_fuzzy_codes_are_read_at_one_query_and_exchanged_between_queries():
    study = study_of(TASKS["fuzzy"])
    read, swapped = (
        study.sample(split, seed=0, instances=16).inputs[..., :-1]
        for split in (study.unseen, study.swapped[1])
    )
    assert (read[:, -1] == read[0, -1]).all()
    assert len(swapped[:, -1].unique(dim=0)) == 16
    assert (swapped[:, :-1] == swapped[0, :-1]).all()
    assert study.decoded == ((study.known, study.unseen), study.swapped)


def test_sraven_rules_on_the_inputs_of_others():
    study = study_of(TASKS["sraven"])
    specimens = study.sample(study.known, seed=0, instances=512)
    grid = specimens.inputs.argmax(dim=-1).view(-1, 3, 3, 4)
    first, second = grid[:, 2, 0, -1], grid[:, 2, 1, -1]
    expected = {
        "constant": second,
        "progression-2": (second - 2) % 8,
        "addition": (first + second) % 8,
        "subtraction": (first - second) % 8,
    }
    each = torch.zeros_like(specimens.operations)
    for name, values in expected.items():
        found = study.prescribed(specimens, each + study.operations.index(name))
        assert torch.equal(found, values.float())
    # A set of three that the first two rows do not show cannot be completed.
    number = study.operations.index("distribute_three")
    found = study.prescribed(specimens, each + number)
    assert found[specimens.operations != number].isnan().float().mean() > 0.9
    assert specimens.operands.equal(first * 8 + second)


def test_the_pairs_of_sraven_are_the_same_feature_of_its_row():
    study = study_of(TASKS["sraven"])
    assert study.pairs["row"] == [(-1, -9), (-1, -5)]
    specimens = study.sample(study.known, seed=0, instances=4)
    panels = specimens.inputs.argmax(dim=-1).view(-1, 9, 4)
    for query, key in study.pairs["row"]:
        assert query == -1
        place = 36 + key
        assert place % 4 == 3
        values = specimens.inputs.argmax(dim=-1)[:, place]
        assert torch.equal(values, panels[:, place // 4, 3])


def test_counterfactuals_are_the_same_points_of_another_function():
    study = study_of(tiny_task("fuzzy"))
    specimens = study.sample(study.unseen, seed=0, instances=64)
    others = specimens.operations.roll(1)
    remade = study.counterfactuals(specimens, others)
    assert remade is not None
    assert torch.equal(remade[..., :-1], specimens.inputs[..., :-1])
    assert torch.equal(remade[:, -1], specimens.inputs[:, -1])
    same = study.counterfactuals(specimens, specimens.operations)
    torch.testing.assert_close(same, specimens.inputs)
    changed = (remade != specimens.inputs).any(dim=-1).any(dim=-1)
    assert torch.equal(changed, others != specimens.operations)


def test_terms_are_labelled_in_every_way():
    study = study_of(tiny_task("fuzzy"))
    specimens = study.sample(study.known, seed=0, instances=32)
    terms = specimens.decodable["terms"]
    assert (terms.sum(axis=1) == 2).all()
    for slot in ("term 1", "term 2"):
        rows = range(len(terms))
        assert (terms[rows, specimens.decodable[slot]] == 1).all()


def test_other_tasks_have_no_study():
    class NewTask(FuzzyLogic):
        @property
        def study(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            return None

    with pytest.raises(ValueError, match="no study of NewTask"):
        study_of(NewTask(FUZZY))
