"""Figure 6: of the language runs, those of the scale, judged by what their losses say."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from hyla.figures.drawing import Lines
from hyla.lab.estimate import language_seconds
from hyla.lab.experiments.language.fig6 import EXPERIMENT
from hyla.lab.measuring import Measuring, NotAvailableError
from hyla.lab.plan.measure import measure as measure_into
from hyla.lab.registry import load
from hyla.lab.report.costs import Costs
from hyla.lab.report.first_page import headlines
from hyla.lab.report.pages import write_all
from hyla.lab.report.sections import Section, build
from hyla.lab.verdicts import NOT, REPRODUCED, TOO_FEW, UNDECIDED, judge
from hyla.nn.decoders import decoder_config
from hyla.results.conditions import Conditions
from hyla.results.runs import Row
from hyla.results.tables import Results, Tables
from hyla.training.language import load_language_preset
from stored_models import PAPER

IMPROVES = "Language modelling: HYLA improves over linear attention."
CLOSE = "Language modelling: HYLA performs closely to softmax attention (nearer than to linear)."


def measure(root: Path, scale: str, said: list[str]) -> list[Row]:
    measuring = Measuring(
        conditions=Conditions(scale=scale),
        cells=(),
        root=root,
        device=torch.device("cpu"),
        say=said.append,
    )
    assert EXPERIMENT.measurement is not None
    return EXPERIMENT.measurement.measure(measuring)


def test_runs_of_another_scale_are_left_out_and_named(tmp_path: Path):
    pytest.importorskip("sentencepiece")
    said: list[str] = []
    rows = measure(tmp_path, "smoke", said)
    names = {row["run"] for row in rows}
    assert len(names) == 3
    assert said == []
    with pytest.raises(NotAvailableError, match="language model of paper scale"):
        measure(tmp_path, "paper", said)
    assert len(said) == 3
    assert all("num_layers 2 instead of 6" in line for line in said)

    # One that has the size of the paper's, however short, belongs to its scale.
    first = sorted(names)[0]
    shutil.copytree(tmp_path / first, tmp_path / "as-large")
    file = tmp_path / "as-large" / "config.json"
    config = json.loads(file.read_text())
    sizes = {"num_layers": 6, "embed_dim": 512, "qk_dim": 512, "v_dim": 512, "num_heads": 8}
    config["model"] |= {**sizes, "mlp_dim": 2048, "sequence_length": 512}
    file.write_text(json.dumps(config))
    said.clear()
    assert {row["run"] for row in measure(tmp_path, "paper", said)} == {"as-large"}
    assert {line.split()[3] for line in said} == names

    # One that began with the weights of another saw more than its own tokens.
    file.write_text(json.dumps(config | {"conversion": {"source": "0", "distil_steps": 1}}))
    said.clear()
    with pytest.raises(NotAvailableError):
        measure(tmp_path, "paper", said)
    assert any("as-large" in line and "weights of another run" in line for line in said)


def test_runs_that_were_trained_since_join_the_table_by_themselves(tmp_path: Path):
    tables, runs = Tables(tmp_path / "store", PAPER), tmp_path / "runs"
    preset = load_language_preset("paper")
    for attention in ("hyla", "softmax"):
        folder = runs / attention
        folder.mkdir(parents=True)
        settings = preset["model"] | {"attention": attention}
        model = dataclasses.asdict(decoder_config("paper", vocab_size=512, **settings))
        del model["input_dim"], model["output_dim"]  # the corpus's
        member = {"seed": 0, "learning_rate": 1e-3, "weight_decay": 0.1, "warmup_steps": 1}
        config = {
            "task_name": "language",
            **{name: preset[name] for name in ("steps", "batch_size", "precision")},
            **{"corpus": "0123456789", "member": member, "model": model},
        }
        (folder / "config.json").write_text(json.dumps(config))
        record = {"step": 1, "tokens": 512, "seconds": 1.0, "validation/loss": 2.3}
        (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
        measure_into(EXPERIMENT, tables, root=runs, device="cpu", again=False)
        assert tables.measured("fig6")[-1]["attention"] == attention
    assert len(tables.measured("fig6")) == 2


def evaluations(
    attention: str,
    loss: float,
    *,
    seed: int = 0,
    learning_rate: float = 1e-3,
    finished: bool = True,
) -> list[Row]:
    run = {
        "run": f"{attention}-{seed}-{learning_rate}",
        "attention": attention,
        "group": "6 layers of 512, 1,500 steps, corpus 0123",
        "precision": "bf16",
        "seed": seed,
        "learning_rate": learning_rate,
        "weight_decay": 0.1,
        "warmup_steps": 150,
        "finished": finished,
        "device": "a device",
    }
    return [
        {
            **run,
            "step": step,
            "tokens": 1e6 * step,
            "seconds": step,
            "validation/loss": value,
            "validation/perplexity": math.exp(value),
        }
        for step, value in ((1, loss + 1), (2, loss))
    ]


def section_of(store: Path, rows: list[Row]) -> Section:
    Tables(store, PAPER).add_measured("fig6", rows)
    [section] = build(store)
    return section


@pytest.mark.parametrize(
    ("hyla", "softmax", "linear", "improves", "close"),
    [
        (2.30, 2.25, 2.60, REPRODUCED, REPRODUCED),
        (2.20, 2.25, 2.60, REPRODUCED, REPRODUCED),
        (2.55, 2.25, 2.60, REPRODUCED, NOT),
        # The worst by far, and nearer to softmax: what a comparison of distances alone calls close.
        (3.123, 2.304, 2.246, NOT, NOT),
        (2.595, 2.25, 2.60, UNDECIDED, NOT),
        (2.42, 2.25, 2.60, REPRODUCED, UNDECIDED),
    ],
)
def test_close_to_softmax_is_not_merely_a_distance(
    hyla: float, softmax: float, linear: float, improves: str, close: str
):
    losses = {"hyla": hyla, "softmax": softmax, "linear": linear}
    rows = [
        row
        for attention, loss in losses.items()
        for seed, offset in enumerate((-0.01, 0.0, 0.01))
        for row in evaluations(attention, loss + offset, seed=seed)
    ]
    found = judge(EXPERIMENT.claims(Results(conditions=PAPER, cells=(), rows=rows, ceilings={})))
    assert {verdict.claim: verdict.status for verdict in found} == {
        IMPROVES: improves,
        CLOSE: close,
    }


@pytest.mark.parametrize("diverged", ["hyla", "softmax", "linear"])
def test_what_diverged_is_told_and_reproduces_nothing(tmp_path: Path, diverged: str):
    rows = [
        row
        for attention, loss in (("hyla", 2.3), ("softmax", 2.25), ("linear", 2.6))
        for seed in (0, 1, 2)
        for row in evaluations(attention, math.nan if attention == diverged else loss, seed=seed)
    ]
    section = section_of(tmp_path, rows)
    assert {verdict.claim for verdict in section.verdicts} == {IMPROVES, CLOSE}
    assert all(f"{diverged} diverged" in verdict.number for verdict in section.verdicts)
    compared = {IMPROVES: {"hyla", "linear"}, CLOSE: {"hyla", "softmax", "linear"}}
    for verdict in section.verdicts:
        assert verdict.status == (NOT if diverged in compared[verdict.claim] else REPRODUCED)


def test_one_seed_is_too_few(tmp_path: Path):
    rows = [
        row
        for attention, loss in (("hyla", 2.3), ("softmax", 2.25), ("linear", 2.6))
        for row in evaluations(attention, loss)
    ]
    rows += evaluations("hyla", 2.3, seed=1, finished=False)  # not a second one yet
    section = section_of(tmp_path, rows)
    assert [verdict.status for verdict in section.verdicts] == [TOO_FEW, TOO_FEW]
    assert all("n = 1" in verdict.number for verdict in section.verdicts)
    assert section.origin == "4 models; device a device"


def test_a_verdict_takes_more_seeds_at_the_tokens_that_were_trained(tmp_path: Path):
    rows = [
        row
        for attention, seeds in (("hyla", 1), ("softmax", 3), ("linear", 2))
        for seed in range(seeds)
        for row in evaluations(attention, 2.3, seed=seed)
    ]
    rows += evaluations("softmax", 2.1, learning_rate=3e-3)  # which no other was given
    section = section_of(tmp_path, rows)
    tokens = max(row["tokens"] for row in rows)
    seconds = language_seconds({"hyla": 2 * tokens, "linear": tokens})
    assert [claim.needed for claim in section.claims] == [(3, pytest.approx(seconds))] * 2
    lines = headlines([section], Costs(tmp_path))
    [line] = [line for line in lines if line.headline.experiment == "fig6"]
    assert line.where == "paper scale, bf16; for a verdict 3 more models, about 0 GPU minutes"

    rows = [row for row in rows if row["attention"] != "softmax" or row["seed"] == 0]
    needed = {claim.text: claim.needed for claim in section_of(tmp_path, rows).claims}
    assert needed[IMPROVES] == (3, pytest.approx(seconds))
    more = seconds + language_seconds({"softmax": 2 * tokens})
    assert needed[CLOSE] == (5, pytest.approx(more))


def test_the_report_says_in_what_precision_they_trained(tmp_path: Path):
    """That of the preset, which is not the one that the folder's other models trained in."""
    rows = [row for method in ("hyla", "softmax") for row in evaluations(method, 2.3)]
    tables = Tables(tmp_path, PAPER)
    measure_into(load("tableA3"), tables, root=tmp_path, device="cpu")
    tables.add_measured("fig6", rows)
    write_all(tmp_path, say=lambda line: None)
    parts = (tmp_path / "report.md").read_text().split("## paper scale, ")
    assert [part.split()[0] for part in parts[1:]] == ["bf16", "float32"]
    assert "### Figure 6" in parts[1]
    assert "### Table A3" in parts[2]

    other = [{**row, "precision": "float32"} for row in rows]
    tables.add_measured("fig6", [*rows, *other])
    [heading] = {s.heading for s in build(tmp_path) if s.experiment.name == "fig6"}
    assert heading == "paper scale, bf16 and float32"


def test_every_rate_has_a_row_and_the_best_one_a_curve(tmp_path: Path):
    rows = [
        *evaluations("hyla", 2.3, seed=0),
        *evaluations("hyla", 2.5, seed=1),
        *evaluations("hyla", 2.6, learning_rate=3e-3),
        *evaluations("hyla", 2.0, learning_rate=1e-2, finished=False),
    ]
    section = section_of(tmp_path, rows)
    assert section.table is not None
    assert [[*row[1:5], row[6]] for row in section.table.rows] == [
        ["HYLA", "0.001", "0.1", "2.4000 ± 0.1000", "2"],
        ["HYLA", "0.003", "0.1", "2.6000", "1"],
    ]
    assert last_losses(section) == {"HYLA": pytest.approx(2.4)}


def test_methods_are_compared_at_rates_that_all_were_given(tmp_path: Path):
    rows = [
        *evaluations("hyla", 2.3),
        *evaluations("linear", 2.6),
        *evaluations("softmax", 2.4),
        *evaluations("softmax", 2.2, learning_rate=3e-3),
        *evaluations("hyla.expected2", 2.1, learning_rate=3e-3),
    ]
    section = section_of(tmp_path, rows)
    assert last_losses(section) == {
        "HYLA": pytest.approx(2.3),
        "Softmax attention": pytest.approx(2.4),
        "Linear attention": pytest.approx(2.6),
        "HYLA (expected2)": pytest.approx(2.1),
    }
    assert all("softmax 2.4000" in verdict.number for verdict in section.verdicts)


def last_losses(section) -> dict[str, float]:
    over_tokens = section.figure.panels[0][0]
    assert isinstance(over_tokens, Lines)
    return {line.name: line.y[-1] for line in over_tokens.series}
