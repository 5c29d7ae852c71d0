"""Every run measures its branches before the first step: once, and without changing any number."""

import json

import pytest
import torch

from hyla.attention.spec import PRESETS, AttentionSpec, resolve_spec
from hyla.nn import BranchScales, branch_scales
from hyla.results.runs import curve_rows, read_run
from hyla.training import Interrupted, Member, train
from hyla.training.population.cohort import Cohort
from hyla.training.run import branches
from hyla.training.run.branches import warning
from hyla.training.run.directory import RunDirectory
from hyla.training.run.reading import read_branch_scales, read_metrics
from hyla.training.run.stop import StopRequest
from tiny_runs import (
    assert_same_run,
    different_members,
    run_path,
    scale_records,
    tiny_config,
    tiny_model,
    tiny_population,
    tiny_task,
)

DROWNED = [
    BranchScales(stream=0.32, attention=38.7, between=38.7, feed_forward=0.65),
    BranchScales(stream=38.7, attention=40.0, between=55.0, feed_forward=0.65),
]
SOUND = [BranchScales(stream=0.32, attention=0.43, between=0.54, feed_forward=0.65)]


def config_of(attention: str):
    """A run of a model wide enough that HYLA's branch drowns its stream and softmax's does not."""
    sizes = {"embed_dim": 32, "qk_dim": 16, "v_dim": 16, "num_heads": 4}
    model = tiny_model(tiny_task("fuzzy"), attention=attention, attention_dropout=0.1, **sizes)
    return tiny_config(model=model)


def test_the_line_says_where_how_much_and_what_to_do():
    line = warning(DROWNED, attention="hyla")
    assert line == (
        "the attention branch of block 1 is 38.7 where the stream is 0.32 (121 times) and drowns "
        "it: attention hyla.expected2 keeps it small (see docs/findings.md)"
    )
    assert "trains all the same" in str(warning(DROWNED, attention="linear"))
    assert warning(SOUND, attention="softmax") is None


def test_the_advice_changes_the_output_alone_and_can_be_followed(monkeypatch):
    def own(scores, mask, eps):
        return scores

    spec = AttentionSpec(normalisation=own, value="hidden")
    monkeypatch.setitem(PRESETS, "mine", spec)
    for attention, advised in {
        "hyla.silu": "hyla.silu.expected2",
        "hyla.rms4": "hyla.expected2",
        "mine.silu": "mine.silu.rms4",  # what to expect of its codes is not known
    }.items():
        assert f"attention {advised} keeps" in str(warning(DROWNED, attention=attention))
        assert resolve_spec(advised).phi == resolve_spec(attention).phi
    assert "keeps it small" not in str(warning(DROWNED, attention="mine.rms4"))


def test_who_follows_the_advice_is_not_given_it_again():
    line = warning(DROWNED, attention=branches.RECOMMENDED)
    assert line is not None
    assert "keeps it small" not in line


def test_a_small_stream_is_no_large_branch():
    """Token embeddings start far below 1, and softmax attention is fine with that."""
    embedded = BranchScales(stream=0.06, attention=0.28, between=0.29, feed_forward=0.65)
    assert warning([embedded], attention="softmax") is None


def test_a_feed_forward_branch_can_drown_the_stream_too():
    blocks = [BranchScales(stream=0.5, attention=0.5, between=0.7, feed_forward=7.0)]
    line = warning(blocks, attention="softmax")
    assert line is not None
    assert line.startswith("the feed-forward branch of block 1 is 7 where the stream is 0.7 (10 ")
    assert line.endswith(": initialise it smaller")


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_each_member_is_measured_on_its_own_first_batch(precision):
    members = different_members(3)
    population = tiny_population("sraven", members, batch_size=64, precision=precision)
    got = population.branch_scales(32)
    task = tiny_task("sraven")
    for i, member in enumerate(members):
        batch = task.batch("train", seed=member.seed, index=0, batch_size=64)
        want = branch_scales(population.member_model(i), batch.inputs[:32])
        assert len(got[i]) == len(want) == 2
        for one, other in zip(got[i], want, strict=True):
            tolerance = 1e-4 if precision == "float32" else 0.03
            assert vars(one) == pytest.approx(vars(other), rel=tolerance)


def test_measuring_uses_no_random_numbers_and_changes_no_state():
    population = tiny_population("fuzzy", [Member(seed=1)], model={"attention_dropout": 0.5})
    generator = torch.get_rng_state()
    state = {name: tensor.clone() for name, tensor in population.state().items()}
    population.branch_scales(4)
    assert torch.equal(torch.get_rng_state(), generator)
    for name, tensor in population.state().items():
        assert torch.equal(tensor, state[name]), name


def test_the_numbers_of_a_run_are_those_of_one_that_does_not_look(tmp_path, monkeypatch):
    train(tiny_config(), root=tmp_path / "looks", device="cpu")
    found = scale_records(tmp_path / "looks")
    record = {"member": found[0]["branch_scales"]["member"], "blocks": []}

    def log_unseen(run, *arguments, **options):
        run.log_branch_scales(record)

    monkeypatch.setattr(
        "hyla.training.population.cohort.Cohort.branch_scales", lambda self, count: []
    )
    monkeypatch.setattr(branches, "log_branches", log_unseen)
    train(tiny_config(), root=tmp_path / "does not", device="cpu")
    path = run_path(tmp_path / "does not") / "metrics.jsonl"
    path.write_text(json.dumps(found[0]) + "\n" + path.read_text().partition("\n")[2])
    assert_same_run(tmp_path / "does not", tmp_path / "looks")


@pytest.mark.parametrize(("attention", "drowned"), [("hyla", True), ("softmax", False)])
def test_a_run_logs_it_and_says_when_the_stream_drowns(tmp_path, capsys, attention, drowned):
    config = config_of(attention)
    train(config, root=tmp_path, device="cpu")
    said = capsys.readouterr().out
    assert ("drowns it" in said) == drowned
    assert said.count("keeps it small (see docs/findings.md)") == drowned
    path = run_path(tmp_path)
    found = read_branch_scales(path)
    assert found is not None
    assert found["member"] in map(str, config.members)
    assert len(found["blocks"]) == 2
    [first, _] = [BranchScales(**block) for block in found["blocks"]]
    assert (first.attention_ratio > 3) == drowned


def test_the_member_that_is_worst_off_is_logged(tmp_path):
    fine = [BranchScales(stream=1.0, attention=2.0, between=2.2, feed_forward=0.6)]
    said: list[str] = []
    with RunDirectory.open(tmp_path, "fuzzy-hyla", {"steps": 1}) as run:
        branches.log_branches(
            run, ["a", "b", "c"], [fine, DROWNED, SOUND], attention="hyla", say=said.append
        )
        found = read_branch_scales(run.path)
    assert found is not None
    assert found["member"] == "b"
    assert [BranchScales(**block) for block in found["blocks"]] == DROWNED
    assert len(said) == 1


def test_no_reader_of_metrics_takes_it_for_one(tmp_path):
    train(tiny_config(), root=tmp_path, device="cpu")
    path = run_path(tmp_path)
    assert json.loads((path / "metrics.jsonl").read_text().partition("\n")[0])["step"] == 0
    assert min(record["step"] for record in read_metrics(path)) == 5
    rows = curve_rows(read_run(path))
    assert not any("branch_scales" in row for row in rows)
    assert {row["step"] for row in rows} == {5, 8, 10, 15, 16, 20, 24}


def test_a_run_of_an_earlier_version_has_none(tmp_path):
    with RunDirectory.open(tmp_path, "fuzzy-hyla", {"steps": 1}) as run:
        run.log({"step": 5, "loss": [0.5]})
        assert read_branch_scales(run.path) is None
        assert run.metrics() == [{"step": 5, "loss": [0.5]}]


def test_what_an_earlier_version_has_begun_is_not_measured_later(tmp_path, monkeypatch, capsys):
    """The branches of a model that has learned are not those of its start."""
    config = config_of("hyla")
    cohort_train, enter, stops = Cohort.train, StopRequest.__enter__, []
    monkeypatch.setattr(StopRequest, "__enter__", lambda s: stops.append(s) or enter(s))
    with monkeypatch.context() as patch:
        patch.setattr(Cohort, "train", lambda s, n: cohort_train(s, n) or stops[0].request("test"))
        with pytest.raises(Interrupted, match="stopped at step 1"):
            train(config, root=tmp_path, device="cpu")
    (run_path(tmp_path) / "metrics.jsonl").write_text("")
    capsys.readouterr()
    train(config, root=tmp_path, device="cpu")
    assert "drowns it" not in capsys.readouterr().out
    assert scale_records(tmp_path) == []


def test_a_run_stopped_before_its_first_step_says_it_once(tmp_path, capsys):
    config = config_of("hyla")
    with pytest.raises(Interrupted, match="stopped at step 0"):
        train(config, root=tmp_path, device="cpu", max_seconds=0)
    assert "drowns it" in capsys.readouterr().out
    train(config, root=tmp_path, device="cpu")
    assert "drowns it" not in capsys.readouterr().out
    assert len(scale_records(tmp_path)) == 1
