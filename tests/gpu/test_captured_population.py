"""The captured step on a real GPU: right numbers, independent members, too little memory."""

import gc
from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch

from hyla.training import Interrupted, config_from_tree, load_preset, merge, train
from hyla.training.population import Population, stacked_linear
from hyla.training.run.stop import StopRequest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.long,
    # What the compiler advises.
    pytest.mark.filterwarnings("ignore:TensorFloat32.*:UserWarning"),
    pytest.mark.filterwarnings(r"ignore:\s*Online softmax is disabled:UserWarning"),
]


def config(task="fuzzy", scale="smoke", **changes):
    return config_from_tree(merge(load_preset(task, scale), changes))


def population(settings, device="cuda", **options):
    torch.compiler.reset()
    return Population(
        settings.build_task(),
        settings.model,
        settings.members,
        total_steps=settings.steps,
        batch_size=settings.batch_size,
        device=device,
        **options,
    )


@pytest.mark.parametrize(
    "attention",
    ["hyla", "hyla.expected2", "softmax", "hyla_deep.expected"],  # the last one has no kernel
)
def test_the_captured_step_trains_as_the_cpu_does(attention):
    settings = config("sraven", model={"attention": attention}, members={"seed": [0, 1]})
    captured, plain = population(settings), population(settings, "cpu")
    for one in (captured, plain):
        one.train(20)
    assert int(captured.step) == 20
    torch.testing.assert_close(
        captured.mean_losses().cpu(), plain.mean_losses(), rtol=1e-4, atol=1e-5
    )
    # Not the parameters: where a gradient is zero but for rounding (softmax's key bias), AdamW
    # turns the rounding into steps of full size.
    scores = captured.evaluate("ood", 600)["loss"].cpu()
    torch.testing.assert_close(scores, plain.evaluate("ood", 600)["loss"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("attention", ["hyla.expected2", "hyla_deep.expected"])
def test_the_compiled_gradient_is_the_eager_one(attention):
    """At the paper's size: the compiler takes other kernels for small tensors."""
    model = {"attention": attention, "backend": "reference"}
    settings = config("sraven", "paper", model=model, members={"seed": [0, 1, 2]})
    compiled, eager = (population(settings, compile=choice) for choice in (True, False))
    for one in (compiled, eager):
        one.train(1)
    got = compiled.state()
    for name, truth in eager.state().items():
        if name.startswith("first_moment/"):  # a tenth of the gradient
            assert (got[name] - truth).norm() <= 1e-2 * truth.norm() + 1e-6, name


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_branches_are_measured_beside_the_captured_step(precision):
    """The numbers of the CPU, and neither the graph nor the compiler notices."""
    tolerance = 1e-3 if precision == "float32" else 0.05
    settings = config("sraven", "paper", members={"seed": [0, 1]})
    looked, plain = (population(settings, precision=precision) for _ in range(2))
    looked.prepare()
    found = looked.branch_scales(32)
    expected = population(settings, "cpu").branch_scales(32)
    for member, other in zip(found, expected, strict=True):
        for block, wanted in zip(member, other, strict=True):
            assert vars(block) == pytest.approx(vars(wanted), rel=tolerance)
    for one in (looked, plain):
        one.train(5)
    torch.testing.assert_close(
        looked.mean_losses(), plain.mean_losses(), rtol=tolerance / 100, atol=0
    )


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_members_of_different_attentions_train_as_among_their_like(precision, blocks):
    """Few steps: HYLA as printed soon makes percents of a rounding."""
    if blocks and precision == "float32":
        pytest.skip("the blocks' kernels compute in tf32 and bf16")
    tolerance = {"float32": 1e-4, "tf32": 5e-3, "bf16": 2e-2}[precision]
    attentions = ["hyla", "hyla", "softmax", "softmax", "linear.rms4", "hyla.expected2"]
    attentions += ["linear_rmshead_nonlinear_value", "hyla_residual"]
    settings = config("sraven", "paper", members={"seed": list(range(8))})
    options = {"precision": precision, "fused_blocks": blocks}
    mixed = population(settings, attentions=attentions, **options)
    mixed.train(3)
    losses, scores = mixed.mean_losses(), mixed.evaluate("ood", 256)["loss"]
    gradients = mixed.first_moment.clone()
    for name in dict.fromkeys(attentions):
        own = [index for index, other in enumerate(attentions) if other == name]
        changes = {"model": {"attention": name}, "members": {"seed": own}}
        alone = population(config("sraven", "paper", **changes), compile=False, **options)
        alone.train(3)
        torch.testing.assert_close(losses[own], alone.mean_losses(), rtol=tolerance, atol=0)
        torch.testing.assert_close(
            scores[own], alone.evaluate("ood", 256)["loss"], rtol=tolerance, atol=0
        )
        size = alone.first_moment.norm(dim=-1)
        error = (gradients[own] - alone.first_moment).norm(dim=-1)
        assert (error <= 20 * tolerance * size).all(), name
        # Another member of the population is further off than that.
        other = (gradients[own[0] - 1] - alone.first_moment[0]).norm()
        assert other > 20 * tolerance * size[0], name


def test_a_member_does_not_depend_on_its_company():
    alone = config(members={"seed": [2]})
    among = config(members={"seed": [0, 1, 2, 3]})
    results = []
    for settings, index in ((alone, 0), (among, 2)):
        trained = population(settings)
        trained.train(30)
        results.append(trained.mean_losses()[index])
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_weight_gradients_in_parts_train_as_whole_ones(monkeypatch):
    """At the paper's size, as sums of a few tokens are left whole."""
    settings = config("sraven", "paper", members={"seed": [0, 1]})
    losses = []
    for tiles in (512, 0):
        monkeypatch.setattr(stacked_linear, "TILES_WANTED", tiles)
        trained = population(settings)
        trained.train(10)
        losses.append(trained.mean_losses())
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)


def test_a_diverged_member_is_frozen_inside_the_graph():
    settings = config(members={"seed": [0], "learning_rate": [1e-3, 1e30]})
    trained = population(settings)
    trained.train(20)
    assert trained.alive.tolist() == [True, False]
    assert trained.diverged_at[1] >= 0
    assert trained.parameters.isfinite().all()


def test_a_run_resumes_on_the_gpu(tmp_path, monkeypatch):
    settings = config(steps=40, members={"seed": [0, 1]})
    whole = train(settings, root=tmp_path / "whole", device="cuda")
    with monkeypatch.context() as patch:
        looks = iter(range(1000))
        patch.setattr(StopRequest, "requested", property(lambda self: next(looks) > 8))
        with pytest.raises(Interrupted, match="continues from there"):
            train(settings, root=tmp_path / "cut", device="cuda")
    cut = train(settings, root=tmp_path / "cut", device="cuda")
    for one, other in zip(whole["members"], cut["members"], strict=True):
        assert one["metrics"]["ood/r2"] == pytest.approx(other["metrics"]["ood/r2"], rel=1e-2)


class Recorded(Population):
    """A population that writes down what memory its preparation took, and how that ended."""

    attempts: ClassVar[list[str]] = []

    def prepare(self, splits: Sequence[str] = ()) -> None:
        torch.cuda.reset_peak_memory_stats()
        before, outcome = torch.cuda.memory_reserved(), "out of the ordinary"
        try:
            super().prepare(splits)
            outcome = "fits"
        except Exception as error:
            outcome = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            raise
        finally:
            peak = torch.cuda.max_memory_reserved()
            taken = f"{before / 2**20:.0f} MiB before, {peak / 2**20:.0f} MiB at its peak"
            self.attempts.append(f"{len(self.members)} models: {taken}: {outcome}")


def memory_of(settings) -> int:
    """Bytes that the allocator takes from the device to prepare the population."""
    free_memory()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    population(settings).prepare(settings.evaluation.splits)
    taken = torch.cuda.max_memory_reserved() - before
    free_memory()
    return taken


def free_memory() -> None:
    gc.collect()  # a population refers to itself
    torch.cuda.empty_cache()


@pytest.mark.alone
def test_too_little_memory_splits_the_population(tmp_path, capsys, monkeypatch):
    # Each size of population would be compiled anew: minutes, and nothing about memory.
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr("hyla.training.population.training.Population", Recorded)
    monkeypatch.setattr(Recorded, "attempts", [])
    settings = {
        "model": {"attention": "softmax"},
        "steps": 3,
        "log_every": 3,
        "evaluation": {"every": 3, "instances": 128, "final_instances": 128, "splits": ["ood"]},
    }
    one, eight = (
        config("sraven", "paper", members={"seed": list(range(size))}, **settings)
        for size in (1, 8)
    )
    alone, together = memory_of(one), memory_of(eight)
    # One at a time fits: what one part's graph keeps, what the next one's rehearsal takes, and the
    # states of all. Eight at once do not.
    limit = torch.cuda.memory_reserved() + 2 * alone + 2**27
    found = f"one takes {alone / 2**20:.0f} MiB, eight {together / 2**20:.0f} MiB; "
    found += f"{limit / 2**20:.0f} MiB are allowed"
    assert together > limit, found
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        summary = train(eight, root=tmp_path, device="cuda")
    except Exception as error:
        lines = [found, *Recorded.attempts, capsys.readouterr().out, torch.cuda.memory_summary()]
        pytest.fail("\n".join([f"{type(error).__name__}: {error}", *lines]), pytrace=False)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert len(summary["members"]) == 8
    said = capsys.readouterr().out
    assert "do not fit into the GPU's memory together: training 4 at a time" in said, found
