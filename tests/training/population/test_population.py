"""A population is P separate models: nobody sees who trains beside them."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from golden_files import relative_error
from hyla.tasks.fuzzy_logic.objective import Regression
from hyla.training import Member, Population
from hyla.training.optimizer import decay_mask, scheduled_rate
from tiny_runs import different_members, tiny_population

CASES = [
    pytest.param("fuzzy", {"attention": "hyla"}, id="hyla-fuzzy"),
    pytest.param("sraven", {"attention": "softmax", "attention_dropout": 0.1}, id="softmax-sraven"),
    pytest.param("fuzzy", {"attention": "hyla", "num_key_heads": 1}, id="shared-keys-fuzzy"),
]


def losses_by_step(population: Population, steps: int) -> torch.Tensor:
    losses = []
    for _ in range(steps):
        population.train(1)
        losses.append(population.mean_losses())
    return torch.stack(losses, dim=1)  # [P, steps]


def alone(population: Population, index: int, task: str, model: dict) -> Population:
    return tiny_population(task, [population.members[index]], model=model)


@pytest.mark.parametrize(("task", "model"), CASES)
def test_a_member_trains_as_it_would_alone(task, model):
    together = tiny_population(task, different_members(12), model=model)
    losses = losses_by_step(together, 100)
    for index in (0, 7):
        single = alone(together, index, task, model)
        single_losses = losses_by_step(single, 100)
        assert relative_error(losses[index], single_losses[0]) < 1e-5
        assert relative_error(together.parameters[index], single.parameters[0]) < 1e-4
        # The test could not fail if all members were the same.
        assert relative_error(together.parameters[index], together.parameters[3]) > 0.1


@pytest.mark.parametrize(("task", "model"), CASES)
def test_training_is_a_plain_loop_over_a_plain_model(task, model):
    """One member against nn.Module, autograd and torch.optim.AdamW, written out."""
    member = different_members(5)[4]
    population = tiny_population(task, [member], model=model, batch_size=8)
    plain = population.member_model(0).train()
    exempt = [n for n, decayed in decay_mask(dict(plain.named_parameters())).items() if not decayed]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for n, p in plain.named_parameters() if n not in exempt]},
            {"params": [p for n, p in plain.named_parameters() if n in exempt], "weight_decay": 0},
        ],
        weight_decay=member.weight_decay,
    )
    want = []
    for step in range(10):
        batch = population.task.batch("train", seed=member.seed, index=step, batch_size=8)
        noise = None
        if population._dropout is not None:
            noise = population._dropout(torch.tensor(step))[0]
            assert 0 <= noise.min() < noise.max() < 1
        logits = plain(batch.inputs, dropout_noise=noise)
        if task == "fuzzy":
            loss = F.mse_loss(logits[:, -1, 0], batch.targets[:, -1])
        else:
            loss = F.cross_entropy(logits[:, -2:].flatten(0, 1), batch.targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        rate = scheduled_rate(
            torch.tensor(step),
            peak=torch.tensor([member.learning_rate]),
            warmup=torch.tensor([float(member.warmup_steps)]),
            total=100,
        )
        for group in optimizer.param_groups:
            group["lr"] = float(rate)
        optimizer.step()
        want.append(loss.detach())

    assert relative_error(losses_by_step(population, 10)[0], torch.stack(want)) < 1e-4
    trained = population.member_model(0)
    for name, parameter in plain.named_parameters():
        if name.endswith("k_proj.bias") and model["attention"] == "softmax":
            continue  # its gradient is rounding noise, which Adam blows up
        assert relative_error(trained.get_parameter(name), parameter.detach()) < 1e-3, name


def test_dropout_is_on_in_training_and_off_in_evaluation():
    members = different_members(2)
    dropped = tiny_population("fuzzy", members, model={"attention_dropout": 0.5})
    kept = tiny_population("fuzzy", members)
    for name, values in kept.evaluate("test", 32).items():
        assert values.equal(dropped.evaluate("test", 32)[name])
    assert not losses_by_step(kept, 1).equal(losses_by_step(dropped, 1))


def test_mean_losses_are_the_mean_since_the_last_call():
    by_step = losses_by_step(tiny_population("fuzzy", different_members(3)), 12)
    population = tiny_population("fuzzy", different_members(3))
    population.train(5)
    torch.testing.assert_close(population.mean_losses(), by_step[:, :5].mean(1))
    population.train(3)
    population.train(4)
    torch.testing.assert_close(population.mean_losses(), by_step[:, 5:].mean(1))


# --- state --------------------------------------------------------------------------------------


def copied_state(population: Population) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in population.state().items()}


def assert_same_state(got: Population, want: Population) -> None:
    for name, tensor in want.state().items():
        assert got.state()[name].equal(tensor), name


def test_a_restored_population_continues_bit_for_bit():
    members = different_members(3)
    model = {"attention_dropout": 0.1}
    straight = tiny_population("sraven", members, model=model)
    straight.train(7)
    middle = copied_state(straight)
    straight.train(9)
    # Other seeds: everything it starts with is replaced, except what follows from its members.
    resumed = tiny_population("sraven", members, model=model)
    resumed.train(2)
    resumed.load_state(middle)
    resumed.train(9)
    assert_same_state(resumed, straight)
    assert int(resumed.step) == 16


def test_state_names_parameters_as_the_model_does():
    population = tiny_population("fuzzy", different_members(2))
    state = population.state()
    for name, parameter in population.member_model(1).named_parameters():
        for kind in ("parameters", "first_moment", "second_moment"):
            assert state[f"{kind}/{name}"].shape == (2, *parameter.shape)
        assert state[f"parameters/{name}"][1].equal(parameter)


class ReturnsLogits(Regression):
    """An objective whose only metric are the logits themselves."""

    def sums(self, logits, batch):
        return {"logits": logits}

    def finish(self, sums):
        return sums


@pytest.mark.parametrize(("task", "model"), CASES)
def test_member_model_reproduces_the_population(task, model):
    population = tiny_population(task, different_members(3), model=model)
    population.train(5)
    batch = population.task.sampler("ood", seeds=population._seeds, batch_size=8)(0)
    population.objective = ReturnsLogits()
    together = population.evaluate("ood", 8)["logits"]
    queries = population.task.num_queries
    for index in range(3):
        single = population.member_model(index).eval()
        torch.testing.assert_close(
            single(batch.inputs[index])[:, -queries:], together[index, :, -queries:]
        )
        with torch.no_grad():  # a copy: what is done to it does not reach the population
            single.head.weight.fill_(7.0)
    assert not (population.parameters == 7.0).any()


# --- evaluation ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "model"), CASES)
def test_evaluation_is_that_of_the_members_on_the_splits_first_instances(task, model):
    population = tiny_population(task, different_members(3), model=model)
    population.train(3)
    metrics = population.evaluate("ood", 48)
    assert population.objective.headline in metrics
    for index, member in enumerate(population.members):
        batch = population.task.batch("ood", seed=member.seed, index=0, batch_size=48)
        logits = population.member_model(index).eval()(batch.inputs).detach()
        want = population.objective.finish(population.objective.sums(logits, batch))
        for name, value in want.items():
            torch.testing.assert_close(metrics[name][index], value, equal_nan=True)


def test_evaluation_is_deterministic_and_touches_nothing():
    population = tiny_population("fuzzy", different_members(2), model={"attention_dropout": 0.1})
    population.train(4)
    before = copied_state(population)
    first = population.evaluate("test", 40)
    population.evaluate("ood", 16)
    assert all(
        values.equal(population.evaluate("test", 40)[name]) for name, values in first.items()
    )
    for name, tensor in before.items():
        assert population.state()[name].equal(tensor), name

    untouched = tiny_population("fuzzy", different_members(2), model={"attention_dropout": 0.1})
    untouched.train(4)
    untouched.train(4)
    population.train(4)
    assert_same_state(population, untouched)


def test_evaluation_data_does_not_depend_on_training():
    """At equal weights, a population that trained on other batches scores the same."""
    members = different_members(2)
    trained = tiny_population("fuzzy", members, batch_size=16)
    trained.train(9)
    fresh = tiny_population("fuzzy", members, batch_size=4)
    fresh.load_state(trained.state())
    for name, values in trained.evaluate("test", 24).items():
        assert values.equal(fresh.evaluate("test", 24)[name])


def test_evaluation_in_several_batches_is_that_of_one(monkeypatch):
    population = tiny_population("sraven", different_members(2))
    whole = population.evaluate("test", 96)
    monkeypatch.setattr("hyla.training.population.population.EVALUATION_BATCH", 32)
    for name, values in population.evaluate("test", 96).items():
        torch.testing.assert_close(values, whole[name], equal_nan=True)
    # Rounded up: 70 instances are three batches of 32.
    for name, values in population.evaluate("test", 70).items():
        torch.testing.assert_close(values, whole[name], equal_nan=True)


# --- divergence ---------------------------------------------------------------------------------


def without(state: dict[str, torch.Tensor], member: int) -> dict[str, torch.Tensor]:
    keep = [i for i in range(3) if i != member]
    return {name: t if t.ndim == 0 else t[keep] for name, t in state.items()}


def assert_others_did_not_notice(population: Population, member: int, steps: int) -> None:
    healthy = tiny_population("fuzzy", different_members(3))
    healthy.train(steps)
    want = without(healthy.state(), member)
    for name, tensor in without(population.state(), member).items():
        assert tensor.equal(want[name]), name


def test_an_absurd_learning_rate_freezes_that_member_alone():
    members = different_members(3)
    members[1] = dataclasses.replace(members[1], learning_rate=1e30)
    population = tiny_population("fuzzy", members)
    population.train(20)
    step = int(population.diverged_at[1])
    assert 0 < step < 20
    assert population.diverged_at.tolist() == [-1, step, -1]
    assert population.alive.tolist() == [True, False, True]
    assert population.parameters.isfinite().all()
    assert_others_did_not_notice(population, 1, 20)

    frozen = population.parameters[1].clone()
    population.train(5)
    assert population.parameters[1].equal(frozen)
    assert int(population.diverged_at[1]) == step

    replayed = tiny_population("fuzzy", members)
    replayed.train(step)
    assert replayed.parameters[1].equal(frozen)
    assert replayed.alive.all()
    replayed.train(1)
    assert replayed.alive.tolist() == [True, False, True]


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e25])
def test_a_non_finite_loss_freezes_that_member_alone(value):
    """Also one that has a finite gradient: the square of 1e25 is too large, its slope is not."""
    population = tiny_population("fuzzy", different_members(3))
    population.train(4)
    sample = population._sample

    def sample_with_a_bad_target(step):
        batch = sample(step)
        batch.targets[1, 0, -1] = value if int(step) == 6 else batch.targets[1, 0, -1]
        return batch

    population._sample = sample_with_a_bad_target  # pyright: ignore[reportAttributeAccessIssue]
    population.train(2)
    last_good = population.parameters[1].clone()
    population.train(10)  # whose losses would be finite again
    assert population.diverged_at.tolist() == [-1, 6, -1]
    assert population.parameters[1].equal(last_good)
    assert population.first_moment.isfinite().all()
    assert population.second_moment.isfinite().all()
    assert_others_did_not_notice(population, 1, 16)


def test_a_finite_loss_with_a_non_finite_gradient_freezes_before_the_update():
    population = tiny_population("fuzzy", different_members(3))
    population.train(4)
    before = population.parameters[1].clone()
    losses = population._losses

    def losses_with_a_bad_gradient(views, batch, noise):
        zero = views[0][1].sum() * 0
        infinite_slope = zero.sqrt()  # and the value 0
        return losses(views, batch, noise) + F.pad(infinite_slope.view(1), (1, 1))

    population._losses = losses_with_a_bad_gradient
    population.train(3)
    assert population.diverged_at.tolist() == [-1, 4, -1]
    assert population.parameters[1].equal(before)
    assert population.parameters.isfinite().all()
    assert_others_did_not_notice(population, 1, 7)


# --- precision and compilation ------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of `flags` itself
def test_bf16_computes_in_bf16_and_stays_close():
    members = different_members(2)
    # Softmax: RMSHead divides by scores that may be close to 0, and doubles the error of bf16.
    exact = tiny_population("sraven", members, model={"attention": "softmax"})
    rough = tiny_population("sraven", members, model={"attention": "softmax"}, precision="bf16")
    # Without oneDNN: its AMX kernels end in SIGILL on virtual machines that only announce AMX.
    with torch.backends.mkldnn.flags(enabled=False):
        want, got = losses_by_step(exact, 10), losses_by_step(rough, 10)
        assert rough.evaluate("test", 16)["loss"].isfinite().all()
    assert not got.equal(want)
    assert relative_error(got, want) < 0.02
    assert rough.parameters.dtype == torch.float32


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match=r"precision 'bf61' is unknown \(did you mean 'bf16'\?\)"):
        tiny_population("fuzzy", different_members(1), precision="bf61")


def test_the_matmul_precision_is_put_back():
    before = torch.get_float32_matmul_precision()
    population = tiny_population("fuzzy", [Member(warmup_steps=0)], precision="tf32")
    population.train(1)
    population.evaluate("test", 8)
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch's own compiler
def test_compiling_changes_rounding_only():
    members = different_members(3)
    model = {"attention_dropout": 0.1, "num_layers": 1}
    eager = tiny_population("fuzzy", members, model=model, compile=False)
    compiled = tiny_population("fuzzy", members, model=model, compile=True)
    assert relative_error(losses_by_step(compiled, 20), losses_by_step(eager, 20)) < 1e-4
    scores = compiled.evaluate("ood", 32)
    for name, values in eager.evaluate("ood", 32).items():
        torch.testing.assert_close(scores[name], values, rtol=1e-3, atol=1e-4)
