"""One odd folder among the runs: it is listed with what is wrong, and takes nothing else down."""

import itertools
import os
import tracemalloc
from pathlib import Path

import pytest
from explorer_fixtures import client_of
from hostile_runs import add_hostile_folders, add_run

from hyla.explorer import curves
from hyla.explorer.runs import RunFolder

pytestmark = pytest.mark.skipif(os.name == "nt", reason="named pipes, names that are bytes")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> tuple[Path, list[str]]:
    root = tmp_path_factory.mktemp("hostile")
    bad = add_hostile_folders(root)
    add_run(root / "sound")
    return root, bad


def test_every_folder_is_listed_as_a_run_or_with_a_reason(gallery, hostile):
    root, bad = hostile
    client = client_of(gallery, root)
    answer = client.get("/api/runs")
    assert answer.status_code == 200
    found = answer.json()
    assert [one["id"] for one in found["skipped"]] == bad
    assert all(one["reason"] for one in found["skipped"])
    assert [one["id"] for one in found["runs"]] == [
        "not-utf-8-\\udcff\\udcfe",
        "odd-metrics",
        "sound",
    ]
    sound = found["runs"][2]
    assert (sound["step"], sound["metrics"]) == (3, {"loss": 0.375, "ood/r2": pytest.approx(0.15)})


def test_their_curves_are_drawn_or_refused_with_a_reason(gallery, hostile):
    root, bad = hostile
    client = client_of(gallery, root)
    for id in (*bad, "odd-metrics"):
        answer = client.get("/api/curves", params={"run": id})
        if answer.status_code != 200:
            assert answer.status_code == 409
            assert f"{id} cannot be read" in answer.json()["error"]
        else:
            assert answer.json()["series"]
            assert id in ("infinite", "odd-metrics")  # whose log is sound
    for id in ("sound", "not-utf-8-\\udcff\\udcfe"):
        answer = client.get("/api/curves", params={"run": id})
        assert answer.json()["series"]["loss"]["steps"] == [1, 2, 3]


def test_a_run_is_read_again_once_it_has_changed(tmp_path):
    run = add_run(tmp_path / "young")
    folder = RunFolder(tmp_path)
    assert [one.step for one in folder.runs().runs] == [3]
    with (run / "metrics.jsonl").open("a") as log:
        log.write('{"step": 4, "loss": [0.5]}\n')
    assert [one.step for one in folder.runs().runs] == [4]
    assert folder.curves("young").series["loss"].steps == [1, 2, 3, 4]
    (run / "metrics.jsonl").unlink()
    assert [one.id for one in folder.runs().skipped] == ["young"]


def test_of_a_long_log_only_the_end_is_read_for_the_list(tmp_path):
    add_run(tmp_path / "long", lines=300_000)
    tracemalloc.start()
    try:
        [one] = RunFolder(tmp_path).runs().runs
        assert tracemalloc.get_traced_memory()[1] < 30e6  # of a file of 17 MB
    finally:
        tracemalloc.stop()
    assert one.step == 300_000
    assert one.metrics.keys() == {"loss", "ood/r2"}


def test_a_log_too_long_to_be_drawn_is_refused(gallery, tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "MOST_RECORDS", 50)
    add_run(tmp_path / "long", lines=51)
    add_run(tmp_path / "short", lines=50)
    client = client_of(gallery, tmp_path)
    assert client.get("/api/curves", params={"run": "short"}).status_code == 200
    answer = client.get("/api/curves", params={"run": "long"})
    assert answer.status_code == 409
    assert "more than 50 records" in answer.json()["error"]
    monkeypatch.setattr(curves, "MOST_BYTES", 1000)
    (tmp_path / "short" / "more").touch()  # which is no reason to read it again ...
    assert client.get("/api/curves", params={"run": "short"}).status_code == 200
    os.utime(tmp_path / "short" / "metrics.jsonl", ns=(1, 1))  # ... but this is
    answer = client.get("/api/curves", params={"run": "short"})
    assert "bytes are more than 1,000" in answer.json()["error"]


def test_points_are_thinned_evenly(tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "MOST_POINTS", 10)
    for lines in (10, 11, 45, 1000):
        add_run(tmp_path / str(lines), lines=lines)
        steps = curves.series_of(tmp_path / str(lines))["loss"].steps
        assert steps[0] == 1
        assert 5 <= len(steps) <= 10
        assert len({after - before for before, after in itertools.pairwise(steps)}) == 1
        assert steps[-1] > 0.8 * lines


def test_45_requests_for_a_store_with_pipes_leave_the_server_alive(gallery, hostile):
    client = client_of(gallery, hostile[0])
    for _ in range(45):
        assert client.get("/api/runs").status_code == 200
