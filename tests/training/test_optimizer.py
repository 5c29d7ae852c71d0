"""AdamW and its schedule against torch.optim and the authors' numbers."""

import math

import pytest
import torch
from torch import Tensor

from golden_files import load, ours, relative_error
from hyla.nn import Transformer, TransformerConfig
from hyla.tasks import Batch
from hyla.tasks.sraven.objective import Classification
from hyla.training.optimizer import adamw_, decay_mask, scheduled_rate

# --- schedule -----------------------------------------------------------------------------------


def rates(peak: float, warmup: float, total: int, steps: int) -> Tensor:
    settings = {"peak": torch.tensor([peak]), "warmup": torch.tensor([float(warmup)])}
    return torch.cat(
        [scheduled_rate(torch.tensor(step), **settings, total=total) for step in range(steps)]
    )


@pytest.mark.parametrize("name", ["softmax", "linear", "hyla"])
def test_schedule_is_the_authors(name):
    want = load(f"transformer_{name}")["out.lrs"]
    assert relative_error(rates(3e-3, 2, 20, len(want)), want) < 1e-6


def test_schedule_by_hand():
    """Warmup 10 of 100: the cosine runs from 10 to 90, where a tenth of the peak is left."""
    got = rates(2.0, 10, 100, 101)
    torch.testing.assert_close(got[:11], torch.arange(11) * 0.2)
    assert float(got[50]) == pytest.approx(2 * 0.55, rel=1e-6)
    cosine = 0.5 * (1 + math.cos(math.pi * 0.25))
    assert float(got[30]) == pytest.approx(2 * (0.1 + 0.9 * cosine), rel=1e-6)
    torch.testing.assert_close(got[90:], torch.full((11,), 0.2))
    assert got[89] > 0.2


def test_without_warmup_the_first_rate_is_the_peak():
    got = rates(1.0, 0, 50, 51)
    assert got[0] == 1
    assert (got.diff() < 0).all()
    assert float(got[-1]) == pytest.approx(0.1)


@pytest.mark.parametrize("warmup", [0, 1, 9, 10, 11, 19, 20, 50])
@pytest.mark.parametrize("total", [1, 20])
def test_schedule_makes_sense_whatever_the_warmup(warmup, total):
    got = rates(1.0, warmup, total, total + 5)
    assert got.isfinite().all()
    assert (got >= 0).all()
    assert (got <= 1).all()
    rising, falling = got[: warmup + 1], got[warmup:]
    assert (rising.diff() > 0).all()
    assert (falling.diff() <= 0).all()
    assert (falling >= 0.1 - 1e-6).all()
    if warmup < len(got):
        assert got[warmup] == 1


def test_each_member_has_its_own_schedule():
    together = scheduled_rate(
        torch.tensor(7),
        peak=torch.tensor([1e-3, 3e-3, 1e-3]),
        warmup=torch.tensor([0.0, 10.0, 5.0]),
        total=40,
    )
    want = [rates(p, w, 40, 8)[7] for p, w in ((1e-3, 0), (3e-3, 10), (1e-3, 5))]
    torch.testing.assert_close(together, torch.stack(want))


# --- AdamW --------------------------------------------------------------------------------------

SETTINGS = [(1e-3, 0.0), (3e-3, 0.1), (3e-2, 1.0), (1e-3, 0.1)]  # learning rate, weight decay
DECAYED = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 1.0])


def gradients_of(steps: int) -> Tensor:
    """Of very different sizes, from entry to entry and from step to step."""
    sizes = 10.0 ** torch.tensor([0, -3, 2, 1, -8, -5])
    return torch.randn(steps, len(SETTINGS), len(DECAYED)) * sizes


def rate_factor(step: int) -> float:
    """Some schedule: the rate differs from step to step."""
    return 1 + step % 3


class Ours:
    """A population of parameter rows under `adamw_`."""

    def __init__(self, start: Tensor):
        self.parameters = start.clone()
        self.first, self.second = torch.zeros_like(start), torch.zeros_like(start)
        self.step = torch.tensor(0)

    def update(self, gradients: Tensor, alive: Tensor | None = None) -> Tensor:
        learning_rates, decays = torch.tensor(SETTINGS).unbind(1)
        updated = adamw_(
            self.parameters,
            self.first,
            self.second,
            gradients,
            step=self.step,
            rate=learning_rates * rate_factor(int(self.step)),
            weight_decay=decays,
            decayed=DECAYED,
            alive=torch.ones(len(SETTINGS), dtype=torch.bool) if alive is None else alive,
        )
        self.step += 1
        return updated


def test_adamw_is_torchs_member_by_member():
    start, gradients = torch.randn(len(SETTINGS), len(DECAYED)), gradients_of(200)
    population = Ours(start)
    for step, gradient in enumerate(gradients):
        assert population.update(gradient).all()
        if step in (0, 1, 2, 20, 199):
            for member, (rate, decay) in enumerate(SETTINGS):
                want = torchs_adamw(start[member], gradients[: step + 1, member], rate, decay)
                assert relative_error(population.parameters[member], want) < 1e-6
    # The test would not notice the mask if decay made no difference.
    undecayed = torchs_adamw(start[2], gradients[:, 2], 3e-2, 0.0)
    assert (population.parameters[2] - undecayed)[DECAYED == 1].abs().max() > 0.1


def torchs_adamw(start: Tensor, gradients: Tensor, rate: float, decay: float) -> Tensor:
    """Where torch.optim.AdamW takes a row, in float64."""
    exempt = DECAYED == 0
    parts = [start[~exempt].double().requires_grad_(), start[exempt].double().requires_grad_()]
    optimizer = torch.optim.AdamW(
        [{"params": parts[:1], "weight_decay": decay}, {"params": parts[1:], "weight_decay": 0.0}]
    )
    for step, gradient in enumerate(gradients.double()):
        parts[0].grad, parts[1].grad = gradient[~exempt], gradient[exempt]
        for group in optimizer.param_groups:
            group["lr"] = rate * rate_factor(step)
        optimizer.step()
    end = torch.empty_like(start)
    end[~exempt], end[exempt] = (part.detach().float() for part in parts)
    return end


def test_dead_members_do_not_move_and_do_not_disturb():
    start, gradients = torch.randn(len(SETTINGS), len(DECAYED)), gradients_of(5)
    everyone, some = Ours(start), Ours(start)
    alive = torch.tensor([True, False, True, True])
    for gradient in gradients:
        everyone.update(gradient)
        poisoned = gradient.clone()
        poisoned[1] = math.nan
        assert some.update(poisoned, alive).equal(alive)
    assert some.parameters[1].equal(start[1])
    assert not some.first[1].any()
    assert not some.second[1].any()
    assert some.parameters[alive].equal(everyone.parameters[alive])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_update_that_would_not_be_finite_is_not_made(bad):
    population = Ours(torch.randn(len(SETTINGS), len(DECAYED)))
    population.update(gradients_of(1)[0])
    before = [t.clone() for t in (population.parameters, population.first, population.second)]
    gradient = gradients_of(1)[0]
    gradient[2, 4] = bad
    assert population.update(gradient).tolist() == [True, True, False, True]
    now = (population.parameters, population.first, population.second)
    for tensor, old in zip(now, before, strict=True):
        assert tensor[2].equal(old[2])
        assert not tensor[[0, 1, 3]].equal(old[[0, 1, 3]])


# --- decay exemption and parity with the authors ------------------------------------------------


def golden_config(attention: str) -> TransformerConfig:
    return TransformerConfig(
        input_dim=8,
        output_dim=8,
        sequence_length=9,
        embed_dim=24,
        qk_dim=16,
        v_dim=16,
        mlp_dim=48,
        num_heads=4,
        num_layers=2,
        attention=attention,
    )


def test_what_weight_decay_spares():
    """All vectors except the q/k/v biases, which are matrices in the authors' layout."""
    mask = decay_mask(dict(Transformer(golden_config("hyla")).named_parameters()))
    spared = {name for name, decayed in mask.items() if not decayed}
    assert spared == {
        "embedding.bias",
        "head.bias",
        "final_norm.weight",
        "final_norm.bias",
        *(
            f"blocks.{i}.{name}"
            for i in range(2)
            for name in (
                "attention.out_proj.bias",
                "attention_norm.weight",
                "attention_norm.bias",
                "feed_forward.up.bias",
                "feed_forward.down.bias",
                "feed_forward_norm.weight",
                "feed_forward_norm.bias",
            )
        ),
    }
    assert mask["blocks.0.attention.q_proj.bias"]
    assert mask["blocks.0.relative_bias.table"]


@pytest.mark.parametrize("name", ["softmax", "linear", "hyla"])
def test_five_training_steps_match_the_authors(name):
    golden = load(f"transformer_{name}")
    model = Transformer(golden_config(name))
    model.load_state_dict(ours("param0", golden))
    names = [n for n, _ in model.named_parameters()]
    mask = decay_mask(dict(model.named_parameters()))
    decayed = torch.cat(
        [torch.full((model.get_parameter(n).numel(),), float(mask[n])) for n in names]
    )
    row = torch.cat([p.detach().flatten() for p in model.parameters()]).unsqueeze(0)
    first, second = torch.zeros_like(row), torch.zeros_like(row)
    objective = Classification(num_queries=4, rule_names=())

    losses = []
    for step, (x, y) in enumerate(zip(golden["in.x"], golden["in.y"], strict=True)):
        torch.nn.utils.vector_to_parameters(row[0], model.parameters())
        targets = torch.tensor(y).long()
        batch = Batch(torch.tensor(x), targets, targets)
        loss = objective.loss(model(batch.inputs), batch)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        adamw_(
            row,
            first,
            second,
            torch.cat([g.flatten() for g in gradients]).unsqueeze(0),
            step=torch.tensor(step),
            rate=scheduled_rate(
                torch.tensor(step), peak=torch.tensor([3e-3]), warmup=torch.tensor([2.0]), total=20
            ),
            weight_decay=torch.tensor([0.1]),
            decayed=decayed,
            alive=torch.tensor([True]),
        )
        losses.append(loss.detach())

    assert relative_error(torch.stack(losses), golden["out.losses"]) < 1e-5
    torch.nn.utils.vector_to_parameters(row[0], model.parameters())
    for parameter, want in ours("param5", golden).items():
        got = model.get_parameter(parameter)
        if name == "softmax" and parameter.endswith("k_proj.bias"):
            # Its gradient is rounding noise, which Adam blows up: only the steps' size is known.
            assert got.abs().max() <= float(rates(3e-3, 2, 20, 5).sum())
        else:
            assert relative_error(got, want) < 1e-4, parameter
