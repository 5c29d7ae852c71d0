"""Members with different attentions in one population: each is what it would be alone."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from golden_files import relative_error
from hyla.attention import resolve_spec
from hyla.attention.start import _cached_moments
from hyla.training import (
    Interrupted,
    company_key,
    load_run,
    run_path,
    train,
    train_together,
)
from hyla.training.population.mixing import _sums_of_members
from hyla.training.run.errors import ApartError
from hyla.training.run.loop import _Loop
from hyla.training.run.reading import read_provenance
from hyla.training.run.stop import Stopped
from tiny_runs import different_members, tiny_config, tiny_population

ATTENTIONS = ["hyla", "hyla", "softmax", "linear.rms4", "hyla_plus_softmax", "hyla.expected2"]
# After ten steps at these rates HYLA as printed has made percents of a rounding, on SRAVEN.
STEPS = 4


def mixed(task: str, **options):
    return tiny_population(task, different_members(6), attentions=ATTENTIONS, **options)


def with_attention(config, name: str, **changes):
    return replace(config, model=replace(config.model, attention=name), **changes)


def config_that_mixes(**changes):
    config = tiny_config(**changes)
    return replace(config, model=replace(config.model, attention_dropout=0.0))


def tiny_runs() -> list:
    config = config_that_mixes()
    members = different_members(5)
    return [
        with_attention(config, "hyla", members=tuple(members[:2])),
        with_attention(config, "softmax", members=tuple(members[2:3])),
        with_attention(config, "linear", members=tuple(members[3:])),
    ]


def logged(path) -> list[dict]:
    """What a run logged, without the clock."""
    found = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{name: v for name, v in record.items() if name != "seconds"} for record in found]


@pytest.mark.parametrize("task", ["fuzzy", "sraven"])
def test_a_member_trains_as_it_would_among_its_like(task):
    together = mixed(task)
    together.train(STEPS)
    losses, scores = together.mean_losses(), together.evaluate("ood", 16)
    scales = together.branch_scales(4)
    for index, (member, name) in enumerate(zip(different_members(6), ATTENTIONS, strict=True)):
        alone = tiny_population(task, [member], model={"attention": name})
        alone.train(STEPS)
        assert relative_error(losses[index], alone.mean_losses()[0]) < 1e-5
        # Adam makes steps of rounding where a gradient is zero, as those of a softmax's key biases.
        assert relative_error(together.parameters[index], alone.parameters[0]) < 5e-3
        for metric, values in alone.evaluate("ood", 16).items():
            assert float(scores[metric][index]) == pytest.approx(
                float(values[0]), rel=1e-4, abs=1e-4, nan_ok=True
            )
        assert scales[index][0].attention == pytest.approx(
            alone.branch_scales(4)[0][0].attention, rel=1e-3
        )
        model = together.member_model(index)
        assert model.config.attention == name
    # The test could not fail if attention made no difference.
    other = tiny_population(task, [different_members(6)[2]], model={"attention": "hyla"})
    other.train(STEPS)
    assert relative_error(losses[2], other.mean_losses()[0]) > 1e-3


def test_members_start_from_what_they_would_start_from_alone():
    together = mixed("fuzzy")
    for index, name in enumerate(ATTENTIONS):
        member = different_members(6)[index]
        alone = tiny_population("fuzzy", [member], model={"attention": name})
        assert together.parameters[index].equal(alone.parameters[0])


def test_a_compiler_sees_through_the_first_of_a_process():
    """Whose expected deviation is computed while fake tensors are about."""

    def sums(q, k, v):
        def of_member(q, k, v):
            methods = "hyla 1, hyla.expected2 1"
            return _sums_of_members(q, k, v, None, methods, causal=False, backend="reference")

        return torch.vmap(of_member)(q, k, v)

    operands = torch.randn(3, 2, 2, 5, 4, 4)
    _cached_moments.cache_clear()
    compiled = torch.compile(sums, backend="aot_eager", fullgraph=True)(*operands)
    assert compiled.equal(sums(*operands))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch's own compiler
def test_compiling_changes_rounding_only():
    eager, compiled = mixed("sraven", compile=False), mixed("sraven", compile=True)
    _cached_moments.cache_clear()
    for population in (compiled, eager):
        population.train(STEPS)
    assert relative_error(compiled.mean_losses(), eager.mean_losses()) < 1e-5
    assert relative_error(compiled.parameters, eager.parameters) < 5e-3
    for name, values in compiled.evaluate("ood", 32).items():
        torch.testing.assert_close(
            values, eager.evaluate("ood", 32)[name], rtol=1e-4, atol=1e-4, equal_nan=True
        )


def assert_same_log(got: Path, want: Path) -> None:
    for one, other in zip(logged(got), logged(want), strict=True):
        assert one.keys() == other.keys()
        for name, values in other.items():
            if name != "branch_scales":
                assert one[name] == pytest.approx(values, rel=1e-3, abs=1e-3, nan_ok=True), name


def test_runs_that_train_together_leave_what_they_would_leave_alone(tmp_path):
    configs = tiny_runs()
    summaries = train_together(configs, root=tmp_path / "together", device="cpu")
    for config, summary in zip(configs, summaries, strict=True):
        alone = train(config, root=tmp_path / "alone", device="cpu")
        assert summary.keys() == alone.keys()
        # The seconds are everybody's.
        assert summary["models"] == sum(len(each.members) for each in configs)
        assert alone["models"] == len(config.members)
        assert len(summary["members"]) == len(config.members)
        for got, want in zip(summary["members"], alone["members"], strict=True):
            assert got.pop("metrics") == pytest.approx(want.pop("metrics"), rel=1e-3, abs=1e-4)
            assert got == want
    folders = sorted((tmp_path / "alone").iterdir())
    for alone in folders:
        together = tmp_path / "together" / alone.name
        assert {p.name for p in together.iterdir()} == {p.name for p in alone.iterdir()}
        assert json.loads((together / "config.json").read_text()) == json.loads(
            (alone / "config.json").read_text()
        )
        [start] = read_provenance(together)
        assert sorted([*start["beside"], alone.name]) == [folder.name for folder in folders]
        assert "beside" not in read_provenance(alone)[0]
        assert_same_log(together, alone)
        run = load_run(together)
        for place in range(len(run.config.members)):
            model, other = run.model(place), load_run(alone).model(place)
            for name, parameter in model.named_parameters():
                torch.testing.assert_close(parameter, other.get_parameter(name), rtol=0, atol=1e-4)


@pytest.mark.parametrize("whole", [False, True], ids=["a member", "all of a run"])
def test_what_diverges_leaves_the_other_runs_alone(tmp_path, whole):
    first, *others = tiny_runs()
    diverging = replace(first.members[1], learning_rate=1e30)
    members = (diverging,) if whole else (first.members[0], diverging)
    configs = [replace(first, members=members), *others]
    with pytest.raises(Interrupted):  # and what was saved of it goes on beside the others
        train_together(configs, root=tmp_path, device="cpu", until=10)
    summaries = train_together(configs, root=tmp_path, device="cpu")
    found = [[m["diverged_at"] for m in summary["members"]] for summary in summaries]
    goes_on = [member is not diverging for member in members]
    assert [[step is None for step in run] for run in found] == [goes_on, [True], [True] * 2]
    alone = train(configs[1], root=tmp_path / "alone", device="cpu")
    [got], [want] = summaries[1]["members"], alone["members"]
    assert got["metrics"] == pytest.approx(want["metrics"], rel=1e-3, abs=1e-4)


def test_what_was_interrupted_goes_on_together_or_alone(tmp_path):
    configs = tiny_runs()
    whole = train_together(configs, root=tmp_path / "whole", device="cpu")
    with pytest.raises(Interrupted):
        train_together(configs, root=tmp_path / "parts", device="cpu", until=10)
    alone = train(configs[1], root=tmp_path / "parts", device="cpu")
    rest = [configs[0], configs[2]]
    again = train_together(rest, root=tmp_path / "parts", device="cpu")
    for got, want in zip([again[0], alone, again[1]], whole, strict=True):
        for one, other in zip(got["members"], want["members"], strict=True):
            assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-3, abs=1e-4)
    for config in configs:
        assert_same_log(run_path(config, tmp_path / "parts"), run_path(config, tmp_path / "whole"))


def test_runs_at_different_steps_do_not_train_together(tmp_path):
    configs = tiny_runs()
    with pytest.raises(Interrupted):
        train(configs[0], root=tmp_path, device="cpu", until=10)
    with pytest.raises(ApartError, match="not at the same step"):
        train_together(configs, root=tmp_path, device="cpu")
    train(configs[0], root=tmp_path, device="cpu")
    with pytest.raises(ApartError, match=r"fuzzy-hyla-.* finished before: leave it out"):
        train_together(configs, root=tmp_path, device="cpu")
    # Nothing is held by those that did not begin, nor said of them.
    assert [len(read_provenance(run_path(each, tmp_path))) for each in configs] == [2, 0, 0]
    train(configs[1], root=tmp_path, device="cpu")
    [start] = read_provenance(run_path(configs[1], tmp_path))
    assert "beside" not in start


def test_runs_of_which_one_was_stopped_before_its_record_do_not_train_together(
    tmp_path, monkeypatch
):
    """They are at one step, and only the one still has the losses that lead there to log."""
    first, second, _ = tiny_runs()
    every = first.evaluation.every
    with pytest.raises(Interrupted):
        train(first, root=tmp_path, device="cpu", until=every)

    def stop(self):
        self.stop.request("SIGTERM")
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(_Loop, "_before_batch", stop)
        with pytest.raises(Interrupted, match=f"stopped at step {every} "):
            train(second, root=tmp_path, device="cpu")
    for configs in ([first, second], [second, first]):
        with pytest.raises(ApartError, match="some have logged the losses"):
            train_together(configs, root=tmp_path, device="cpu")


def test_company_is_everything_but_the_attention_and_the_members():
    config = config_that_mixes()
    other = with_attention(config, "softmax.rms4", members=tuple(different_members(2)))
    assert company_key(config) == company_key(other) is not None
    assert company_key(replace(config, batch_size=5)) != company_key(config)
    assert company_key(replace(config, steps=25)) != company_key(config)
    fused = replace(config, model=replace(config.model, backend="fused"))
    assert company_key(fused) != company_key(config)
    with pytest.raises(ValueError, match=r"alone: these differ in model\.backend$"):
        train_together([other, fused], device="cpu")
    longer = replace(other, model=replace(other.model, num_layers=3))
    with pytest.raises(ValueError, match=r"alone: these differ in model\.num_layers$"):
        train_together([config, longer], device="cpu")
    with pytest.raises(ValueError, match="one of these runs is there twice"):
        train_together([config, config], device="cpu")
    with pytest.raises(ValueError, match="nothing to train"):
        train_together([], device="cpu")


@pytest.mark.parametrize(
    ("attention", "dropout", "why"),
    [
        ("hyla", 0.1, "it has attention dropout"),
        ("hyla_deep", 0.0, "its value network has a weight of its own"),
    ],
)
def test_what_trains_among_its_like_alone_says_why(attention, dropout, why):
    config = config_that_mixes()
    assert company_key(config) is not None
    shape = replace(config.model, attention=attention, attention_dropout=dropout)
    config = replace(config, model=shape)
    assert company_key(config) is None
    with pytest.raises(ValueError, match=why):
        train_together([config, replace(config, members=config.members[:1])], device="cpu")
    model = {"attention": attention, "attention_dropout": dropout}
    with pytest.raises(ValueError, match=why):
        tiny_population(
            "fuzzy", different_members(2), model=model, attentions=[attention, "softmax"]
        )


def test_every_member_has_an_attention_by_name():
    with pytest.raises(ValueError, match="its attention is not a preset"):
        tiny_population("fuzzy", different_members(2), attentions=["softmax", resolve_spec("hyla")])
    with pytest.raises(ValueError, match="1 attentions for 2 members"):
        tiny_population("fuzzy", different_members(2), attentions=["hyla"])
