"""What is measured of trained models: each once, of those that are here, and told apart."""

import dataclasses
import functools
import shutil
from pathlib import Path

import pytest
import torch

from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.latent_panels import of_the_best
from hyla.lab.measuring import MODEL, Measurement, Measuring, NotAvailableError
from hyla.lab.methods import results_of
from hyla.lab.plan.measure import measure
from hyla.lab.registry import load
from hyla.results.conditions import Conditions
from hyla.results.runs import Row
from hyla.results.selection import Estimate
from hyla.results.tables import Tables
from stored_models import write_models


def _about_models(measured: list[Row]) -> Measurement:
    return Measurement(name="codes", measure=lambda measuring: measured, key=MODEL)


def test_rows_of_a_model_are_replaced_together_and_others_stay(tmp_path: Path):
    def rows(seed: int, *values: float) -> list[Row]:
        return [{"attention": "hyla", "seed": seed, "value": value} for value in values]

    tables = Tables(tmp_path / "store", Conditions(scale="smoke"))
    for measured in (rows(0, 0.1, 0.2, 0.3), rows(1, 0.4), rows(0, 0.5, 0.6)):
        experiment = Experiment(name="", title="", shows="", measurement=_about_models(measured))
        assert measure(experiment, tables, root=tmp_path, device="cpu") == len(measured)
    found = [(row["seed"], row["value"]) for row in tables.measured("codes")]
    assert found == [(1, 0.4), (0, 0.5), (0, 0.6)]


def test_models_join_a_table_of_others_and_are_measured_once(tmp_path: Path):
    """A measurement takes minutes: what the table has is not measured again unless asked for."""
    store, runs = tmp_path / "store", tmp_path / "runs"
    smoke = Conditions(scale="smoke")
    tables = write_models(store, "fig5b", lambda method: Estimate(0.5, 0.01), conditions=smoke)
    tables.add_measured("codes", [{"attention": "hyla", "seed": seed} for seed in range(3)])
    measured: list[tuple[str, int]] = []

    def count(measuring: Measuring) -> list[Row]:
        rows = [
            {"attention": str(cell.config.model.attention), "seed": row["seed"]}
            for cell in measuring.cells
            for row in measuring.wanted(cell)
        ]
        measured.extend((row["attention"], row["seed"]) for row in rows)
        return rows

    experiment = dataclasses.replace(
        load("fig5b"), measurement=Measurement(name="codes", measure=count, key=MODEL)
    )
    here = functools.partial(measure, experiment, tables, root=runs, device="cpu")
    assert here(again=False) is None
    (runs / "sraven-hyla").mkdir(parents=True)
    assert here(again=False) is None  # these are in the table
    (runs / "sraven-softmax").mkdir()
    assert here(again=False) == 3
    assert measured == [("softmax", seed) for seed in range(3)]
    known = {(row["attention"], row["seed"]) for row in tables.measured("codes")}
    assert known == {(method, seed) for method in ("hyla", "softmax") for seed in range(3)}
    other = [row | {"run": "another"} for row in tables.measured("codes") if row["seed"] == 0]
    tables.add_measured("codes", other, key=MODEL)
    assert here(again=False) == 2  # others of seed 0 are picked now
    shutil.rmtree(runs / "sraven-hyla")
    assert here(again=True) == 3  # what is here; the others stay
    assert len(tables.measured("codes")) == 6


def test_a_table_of_runs_takes_what_was_trained_since(tmp_path: Path):
    """Nobody else says that there are more: no experiment asks for those."""
    tables, runs = Tables(tmp_path / "store", Conditions(scale="smoke")), tmp_path / "runs"

    def names(measuring: Measuring) -> list[Row]:
        if not measuring.root.exists():
            raise NotAvailableError("no runs")
        return [{"run": path.name} for path in sorted(measuring.root.iterdir())]

    of_runs = Measurement(name="losses", measure=names, key=("run",), of_runs=True)
    experiment = Experiment(name="", title="", shows="", measurement=of_runs)
    here = functools.partial(measure, experiment, tables, root=runs, device="cpu", again=False)
    for run in ("first", "second"):
        (runs / run).mkdir(parents=True)
        here()
        assert tables.measured("losses")[-1]["run"] == run
    shutil.rmtree(runs)
    assert here() is None  # what is not here stays in the table
    assert [row["run"] for row in tables.measured("losses")] == ["first", "second"]
    with pytest.raises(NotAvailableError):
        here(again=True)
    runs.mkdir()
    assert here() is None  # nor is it told as measured where there is nothing to measure


def test_a_table_of_runs_takes_none_that_no_commit_has(tmp_path: Path, capsys):
    """Nobody asked for these by name, so that nobody else looked at where they come from."""
    tables = Tables(tmp_path / "store", Conditions(scale="laptop"))
    rows = [
        {"run": name, "git_commit": commit} for name, commit in (("a", "1f"), ("b", "2f-dirty"))
    ]
    of_runs = Measurement(name="losses", measure=lambda m: rows, key=("run",), of_runs=True)
    experiment = Experiment(name="", title="", shows="", measurement=of_runs)
    here = functools.partial(measure, experiment, tables, root=tmp_path, device="cpu")
    assert here(any_origin=False) == 1
    assert [row["run"] for row in tables.measured("losses")] == ["a"]
    assert "losses leaves 1 runs" in capsys.readouterr().out
    assert here(any_origin=True) == 2
    assert here(any_origin=False) == 1  # the other, once taken, stays
    assert [row["run"] for row in tables.measured("losses")] == ["b", "a"]


def test_codes_are_measured_of_models_that_are_here(tmp_path: Path):
    smoke = Conditions(scale="smoke")
    tables = write_models(tmp_path, "fig5b", lambda m: Estimate(0.5, 0.01), conditions=smoke)
    with pytest.raises(NotAvailableError, match="copy their run directories there"):
        measure(load("fig5b"), tables, root=tmp_path / "runs", device="cpu")


def test_codes_are_shown_of_the_best_that_is_known(tmp_path: Path):
    """Where a better one joins the table, the codes of the best before are still in it."""
    smoke = Conditions(scale="smoke")
    tables = write_models(tmp_path, "fig5b", lambda m: Estimate(0.5, 0.01), conditions=smoke)
    rows = tables.measured("models-sraven")
    for row in rows:
        row["validation/accuracy"] = {0: 0.6, 1: 0.9, 2: 0.7}[row["seed"]]
    tables.add_measured("models-sraven", rows)
    results = results_of(load("fig5b"), tables)
    [cell] = [cell for cell in results.cells if cell.config.model.attention == "hyla"]
    measuring = functools.partial(
        Measuring, conditions=smoke, cells=[cell], root=tmp_path, device=torch.device("cpu")
    )
    assert measuring().best(cell) is None
    assert measuring(stored={("hyla", 0): None, ("hyla", 2): None}).best(cell)["seed"] == 2
    of_run = {("hyla", 0): "sraven-hyla", ("hyla", 1): "sraven-hyla"}
    assert measuring(stored=of_run).best(cell)["seed"] == 1
    # Its rows are of a model that was picked before.
    assert measuring(stored=of_run | {("hyla", 1): "another"}).best(cell)["seed"] == 0

    point = {"what": "embedding", "attention": "hyla", "x": 0.0, "y": 0.0}
    codes = [{**point, "seed": seed} for seed in (2, 1, 1)]
    assert [row["seed"] for row in of_the_best(results, codes)] == [1, 1]
    assert [row["seed"] for row in of_the_best(results, codes[:1])] == [2]
