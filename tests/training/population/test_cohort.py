"""A run that does not fit into memory is split, and nothing else changes."""

from collections.abc import Sequence

import pytest
import torch

from hyla.training import Evaluation
from hyla.training.population import Population
from hyla.training.population.cohort import Cohort, Model
from tiny_runs import different_members, tiny_population

MODELS = [Model(member, "hyla") for member in different_members(6)]
EVALUATION = Evaluation(splits=("ood",), every=8, instances=8, final_instances=16)
MODEL = {"attention_dropout": 0.1, "num_layers": 1}


def built(models: Sequence[Model]) -> Population:
    return tiny_population("fuzzy", [model.member for model in models], model=MODEL)


class SmallGpu:
    """Builds populations of at most `room` models, and runs out of memory above that."""

    def __init__(self, room: int):
        self.room = room

    def __call__(self, models: Sequence[Model], beside: Population | None) -> Population:
        if len(models) > self.room:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return built(models)


def cohort(room: int) -> tuple[Cohort, list[str]]:
    said: list[str] = []
    return Cohort(MODELS[:5], EVALUATION, SmallGpu(room), said.append), said


def sizes(cohort: Cohort) -> list[int]:
    return [len(part.members) for part in cohort.parts]


def assert_same_state(got: Cohort, want: Cohort) -> None:
    state = got.tensors()
    assert state.keys() == want.tensors().keys()
    for name, tensor in want.tensors().items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-5, atol=1e-6, msg=name)


def test_what_fits_is_one_population_and_says_nothing():
    whole, said = cohort(5)
    assert sizes(whole) == [5]
    assert said == []


@pytest.mark.parametrize(
    ("room", "want"), [(4, [3, 2]), (3, [3, 2]), (2, [2, 2, 1]), (1, [1, 1, 1, 1, 1])]
)
def test_a_split_is_announced_and_keeps_the_order(room, want):
    split, said = cohort(room)
    assert sizes(split) == want
    assert [member for part in split.parts for member in part.members] == different_members(5)
    assert "5 models do not fit into the GPU's memory together: training 3 at a time" in said[0]


def test_a_part_that_leaves_no_room_for_the_others_is_split_too():
    def crowded(models: Sequence[Model], beside: Population | None) -> Population:
        if len(models) == 6 or (len(models) == 3 and beside is not None):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return built(models)

    assert sizes(Cohort(MODELS, EVALUATION, crowded, lambda message: None)) == [2, 2, 2]


def test_the_split_changes_no_numbers():
    whole, _ = cohort(5)
    split, _ = cohort(2)
    for both in (whole, split):
        both.train(6)
        both.train(2)
    assert split.step == whole.step == 8
    assert_same_state(split, whole)
    assert split.mean_losses() == pytest.approx(whole.mean_losses(), rel=1e-5)
    assert split.diverged_at() == whole.diverged_at() == [None] * 5
    want = whole.evaluate(final=True)
    assert want.keys() == {"ood/loss", "ood/r2"}
    for name, values in split.evaluate(final=True).items():
        assert len(values) == 5
        assert values == pytest.approx(want[name], rel=1e-4)


@pytest.mark.parametrize("rooms", [(5, 2), (2, 5), (3, 1)])
def test_a_state_loads_under_another_split(rooms):
    first, _ = cohort(rooms[0])
    first.train(4)
    state = {name: tensor.clone() for name, tensor in first.tensors().items()}
    second, _ = cohort(rooms[1])
    second.resume(4, state, {})
    assert second.step == 4
    for name, tensor in second.tensors().items():
        assert tensor.equal(state[name]), name
    first.train(4)
    second.train(4)
    assert_same_state(second, first)


def test_one_model_that_does_not_fit_is_an_error_that_says_what_to_do():
    with pytest.raises(RuntimeError, match=r"Even one model .* smaller batch_size"):
        cohort(0)


def test_another_error_is_not_taken_for_a_full_memory():
    def broken(models: Sequence[Model], beside: Population | None) -> Population:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        Cohort(MODELS[:5], EVALUATION, broken, print)
