"""Search on the code: it starts at the plain model, explains the examples, and leaves the rest."""

import pytest
import torch

from hyla.latents import edited
from hyla.latents.search import Example, searched
from hyla.nn import Transformer
from tiny_runs import tiny_model, tiny_task

STEPS = 12


@pytest.fixture(params=["softmax", "hyla"])
def model(request) -> Transformer:
    torch.manual_seed(0)
    return Transformer(tiny_model(tiny_task("sraven"), attention=request.param)).eval()


@pytest.fixture
def example() -> Example:
    batch = tiny_task("sraven").batch("train", seed=0, index=0, batch_size=6)
    return Example(batch.inputs, batch.targets)


def test_no_step_is_the_plain_model(model, example):
    [change] = searched(model, [example], steps=0)
    with torch.no_grad(), edited(model, change.edits()):
        changed = model(example.inputs)
    with torch.no_grad():
        torch.testing.assert_close(changed, model(example.inputs))


def test_the_examples_of_every_instance_are_explained_better(model, example):
    first, *between, last = searched(model, [example], steps=STEPS)
    assert len(between) == STEPS - 1
    unexplained = ~first.explained
    assert unexplained.any()
    assert (last.losses < first.losses)[unexplained].all()


def test_gradients_reach_the_change_alone(model, example):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    *_, last = searched(model, [example], steps=2)
    assert all(layer.abs().sum() > 0 for layer in last.layers)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_it_works_where_gradients_are_off(model, example):
    with torch.no_grad():
        *_, last = searched(model, [example], steps=1)
    assert all(layer.abs().sum() > 0 for layer in last.layers)


def test_instances_do_not_see_each_other(model, example):
    *_, together = searched(model, [example], steps=3)
    alone = Example(example.inputs[2:3], example.targets[2:3])
    *_, single = searched(model, [alone], steps=3)
    for one, all_ in zip(single.layers, together.layers, strict=True):
        torch.testing.assert_close(one, all_[2:3], rtol=1e-3, atol=1e-4)


def test_who_explains_the_examples_is_left_alone(model, example):
    with torch.no_grad():
        answers = model(example.inputs)[:, -example.targets.shape[1] :].argmax(-1)
    answers[3:] = (answers[3:] + 1) % 4
    *_, last = searched(model, [Example(example.inputs, answers)], steps=2, learning_rate=1e-4)
    assert last.explained.tolist() == [True] * 3 + [False] * 3
    for layer in last.layers:
        assert (layer[:3] == 0).all()
        assert (layer[3:] != 0).any(1).all()


def test_every_pair_may_have_a_change_of_its_own(model, example):
    *_, last = searched(model, [example], steps=1, per_pair=True)
    tokens = example.inputs.shape[1]
    for layer in last.layers:
        assert layer.shape == (6, 2, tokens, tokens)
    # What the last layer does at other tokens than the queries' plays no part in the answer.
    of_queries = last.layers[-1][:, :, -example.targets.shape[1] :]
    assert (of_queries != 0).any()
    assert (last.layers[-1][:, :, : -example.targets.shape[1]] == 0).all()
