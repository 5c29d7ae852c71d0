"""Language models on a GPU: compiled bf16 training against the CPU, and the fused loss."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hyla.nn.decoders import decoder_config
from hyla.tasks.language.corpus import Tokens
from hyla.training.language.config import Execution, LanguageConfig, LanguageEvaluation
from hyla.training.language.loss import cross_entropies, mean_cross_entropy
from hyla.training.language.steps import Steps
from hyla.training.population import Member
from hyla.training.run.ranks import Ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),  # of torch's compiler
    pytest.mark.filterwarnings("ignore:.*TensorFloat32.*:UserWarning"),
]
VOCAB_SIZE = 512
TOKENS = Tokens([np.random.default_rng(0).integers(64, size=50_000, dtype=np.uint16)])


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()


def steps(attention: str, device: str, precision: str, **execution) -> Steps:
    config = LanguageConfig(
        corpus="random",
        model=decoder_config(
            "mini", vocab_size=VOCAB_SIZE, sequence_length=128, attention=attention
        ),
        member=Member(learning_rate=1e-3, warmup_steps=2),
        steps=100,
        batch_size=16,
        evaluation=LanguageEvaluation(every=1, sequences=1, final_sequences=1),
        log_every=1,
        precision=precision,
    )
    return Steps(config, TOKENS, Execution(**execution), Ranks(device))


def losses(made: Steps, count: int = 3) -> list[float]:
    # Three: a relative change of the parameters by 1e-7 has grown to 7e-4 in the fifth loss.
    found = []
    for _ in range(count):
        made.take()
        found.extend(made.mean_losses())
    return found


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 5e-4), ("bf16", 3e-2)])
@pytest.mark.parametrize("attention", ["hyla", "softmax", "linear"])
def test_losses_are_those_of_the_cpu(attention, precision, tolerance):
    expected = losses(steps(attention, "cpu", "float32", backend="reference"))
    got = losses(steps(attention, "cuda", precision))
    assert expected[-1] < expected[0]
    assert got == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("execution", [{"micro_batch": 4}, {"recompute": True}], ids=str)
def test_how_it_is_computed_does_not_matter(execution):
    expected = losses(steps("hyla", "cuda", "bf16"))
    assert losses(steps("hyla", "cuda", "bf16", **execution)) == pytest.approx(expected, abs=1e-2)


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("rows", [64, 1000])
def test_the_loss_in_bf16(compile, rows):
    torch.manual_seed(0)
    hidden = torch.randn(200, 64, device="cuda", requires_grad=True)
    weight = (torch.randn(1000, 64, device="cuda") / 8).requires_grad_()
    targets = torch.randint(1000, (200,), device="cuda")
    exact = F.cross_entropy(hidden @ weight.T, targets)
    wanted = torch.autograd.grad(exact, (hidden, weight))
    with torch.autocast("cuda", torch.bfloat16):
        plain = F.cross_entropy(hidden @ weight.T, targets)
        ours = mean_cross_entropy(hidden, weight, None, targets, rows=rows, compile=compile)
        each = cross_entropies(hidden, weight, None, targets, rows=rows)
    for mean in (ours, each.mean()):
        torch.testing.assert_close(mean.detach(), exact.detach(), rtol=0, atol=2e-3)
    got = torch.autograd.grad(ours, (hidden, weight))
    usual = torch.autograd.grad(plain, (hidden, weight))
    for gradient, other, want in zip(got, usual, wanted, strict=True):
        scale = want.abs().max()
        # At most twice the error of the same precision in plain PyTorch.
        assert (gradient - want).abs().max() / scale <= max(
            2 * (other - want).abs().max() / scale, 4e-3
        )


@pytest.mark.alone
def test_logits_never_exist_all_at_once():
    hidden = torch.randn(65_536, 256, device="cuda", requires_grad=True)
    weight = torch.randn(32_000, 256, device="cuda", requires_grad=True)
    targets = torch.randint(32_000, (65_536,), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    with torch.autocast("cuda", torch.bfloat16):
        mean_cross_entropy(hidden, weight, None, targets, compile=True).backward()
    all_logits = 65_536 * 32_000 * 2
    assert torch.cuda.max_memory_allocated() < 1.5 * all_logits
    assert math.isfinite(float(weight.grad.norm()))


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-3), ("bf16", 0.05)])
def test_branches_are_measured_before_the_model_is_compiled(precision, tolerance):
    looked, plain = (steps("hyla", "cuda", precision) for _ in range(2))
    expected = steps("hyla", "cpu", "float32", backend="reference").branch_scales(8)[0]
    for block, wanted in zip(looked.branch_scales(8)[0], expected, strict=True):
        assert vars(block) == pytest.approx(vars(wanted), rel=tolerance)
    assert losses(looked) == pytest.approx(losses(plain), rel=1e-3)
