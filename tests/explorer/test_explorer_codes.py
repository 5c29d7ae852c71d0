"""Codes, maps and swaps over the wire, beside what hyla.latents says."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from explorer_fixtures import client_of, subject_of
from fastapi.testclient import TestClient

from hyla.explorer import codes
from hyla.explorer.codes import Atlas, pairs_of, record
from hyla.explorer.gallery import Gallery
from hyla.explorer.puzzles import find_puzzle, new_puzzle
from hyla.explorer.swaps import predict
from hyla.latents import Swaps, record_codes
from hyla.latents.measures.geometry import cosine_similarities, mean_codes

MODEL = "sraven-tiny"


@pytest.fixture(autouse=True)
def _few_instances(monkeypatch):
    monkeypatch.setattr(codes, "INSTANCES", 64)


@pytest.fixture(scope="module")
def id(gallery: Gallery) -> str:
    subject = gallery[MODEL]
    return new_puzzle(
        subject, seed=3, split="held-out", permuted=False, rules="subtraction,addition"
    ).id


def get(client: TestClient, path: str, expect: int = 200, **params):
    answer = client.get(f"/api/sraven/{path}", params=params)
    assert answer.status_code == expect, answer.text
    return answer.json()


def test_codes_are_those_that_record_codes_finds(client, gallery, id):
    found = get(client, "code", model=MODEL, id=id, query=17, key=5)
    with gallery[MODEL].lent() as model:
        table = record_codes(model, find_puzzle(gallery, id).inputs, pairs=[(17, 5)])
    for layer in found["layers"]:
        np.testing.assert_allclose(
            layer["codes"], table.where(layer=layer["layer"]).codes, rtol=1e-5
        )


def test_without_a_pair_the_studys_are_shown(client, id):
    found = get(client, "code", model=MODEL, id=id)
    assert found["pairs"] == [[17, 13], [17, 15]]
    assert np.shape(found["layers"][0]["codes"]) == (2, 2)
    cosines = [one["cosine"] for one in found["layers"][1]["nearest"]]
    assert cosines == sorted(cosines, reverse=True)
    assert len(cosines) == 8


def test_the_rule_is_that_of_the_querys_feature(client, gallery):
    shown = get(client, "instance", model=MODEL, seed=3, rules="addition,constant")
    problem = find_puzzle(gallery, shown["id"]).problem
    for token in (0, 1, 3, 17):
        column, place = (token // 2) % 3, token % 2
        want = problem.rules[problem.permutations[column][place]]
        assert get(client, "code", model=MODEL, id=shown["id"], query=token, key=0)["rule"] == want


def test_means_and_cosines_are_those_of_the_geometry(gallery):
    subject = gallery[MODEL]
    atlas, pairs = Atlas(subject), pairs_of(subject, None, None)
    names = np.array(subject.sraven.config.rules)[atlas.instances.labels[:, -1].numpy()]
    with subject.lent() as model:
        table = record_codes(model, atlas.instances.inputs, pairs=pairs, labels={"rule": names})
    shown = atlas.map(1, pairs)
    means = (
        mean_codes(table, "rule")
        .query("layer == 1")
        .pivot(index="rule", columns="coordinate", values="value")
    )
    cosines = cosine_similarities(table, "rule").query("layer == 1")
    of_rule = dict(zip(shown.rules, atlas.means(1, pairs).tolist(), strict=True))
    for rule, row in means.iterrows():
        np.testing.assert_allclose(of_rule[str(rule)], row.to_numpy(), rtol=1e-4, atol=1e-6)
    for one in cosines.to_dict("records"):
        got = shown.cosine[shown.rules.index(one["first"])][shown.rules.index(one["second"])]
        assert got == pytest.approx(one["similarity"], abs=1e-4)
    assert [point.rule for point in shown.points] == names.tolist()
    assert [point.split for point in shown.points] == ["seen"] * 32 + ["held-out"] * 32


def test_an_instance_of_the_map_is_placed_where_it_is(gallery):
    subject = gallery[MODEL]
    atlas, pairs = Atlas(subject), pairs_of(subject, None, None)
    puzzle = new_puzzle(subject, seed=0, split="seen", permuted=False, rules=None)
    # One of the map's own instances is among its nearest neighbours at no distance.
    atlas.instances.inputs[5] = puzzle.inputs[0]
    place, point = atlas.place(1, puzzle, pairs), atlas.map(1, pairs).points[5]
    assert (place.x, place.y) == pytest.approx((point.x, point.y), abs=1e-2)


def test_a_map_is_made_once(client, monkeypatch):
    calls = []
    embed = codes.embed
    monkeypatch.setattr(codes, "embed", lambda found: calls.append(1) or embed(found))
    first, second = (get(client, "map", model=MODEL, layer=1, query=17, key=1) for _ in range(2))
    assert first == second
    assert len(calls) == 1


def test_maps_are_made_one_at_a_time(client, monkeypatch):
    """Each takes a core for seconds: many would leave nothing for puzzles."""
    lock, most = threading.Lock(), []

    def embed(found):
        assert lock.acquire(blocking=False), "another map is being made"
        time.sleep(0.02)
        lock.release()
        most.append(1)
        return np.zeros((len(found), 2))

    monkeypatch.setattr(codes, "embed", embed)
    with ThreadPoolExecutor(4) as threads:
        asked = [
            threads.submit(get, client, "map", model=MODEL, layer=1, query=16, key=key)
            for key in range(4)
        ]
        assert all(one.result() for one in asked)
    assert len(most) == 4


def test_a_model_that_diverged_is_refused(tmp_path):
    subject = subject_of("sraven", id="diverged")
    with subject.lent() as model, torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1e30)
    client = client_of(Gallery([subject]), tmp_path)
    id = get(client, "instance", model="diverged")["id"]
    for path, asked in (("answers", {"id": id}), ("code", {"id": id}), ("map", {"layer": 1})):
        assert "no finite numbers" in get(client, path, 409, model="diverged", **asked)["error"]


def test_codes_that_are_all_alike_lie_in_one_place(client, id):
    # What is asked for is no input, so in the first layer nothing tells instances apart.
    points = get(client, "map", model=MODEL, layer=0, query=17, key=17)["points"]
    assert {(point["x"], point["y"]) for point in points} == {(0.0, 0.0)}
    place = get(client, "place", model=MODEL, layer=0, id=id, query=17, key=17)
    assert place == {"x": 0.0, "y": 0.0}


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"layer": 9}, 404),
        ({"layer": -1}, 422),
        ({"layer": 0, "query": 3}, 409),
        ({"layer": 0, "query": 99, "key": 0}, 409),
    ],
)
def test_layers_and_tokens_that_there_are_not(client, query, status):
    assert "error" in get(client, "map", status, model=MODEL, **query)


# --- swaps ---------------------------------------------------------------------------------------


def swap(client: TestClient, expect: int = 200, **body):
    answer = client.post("/api/sraven/swap", json=body)
    assert answer.status_code == expect, answer.text
    return answer.json()


def test_the_edit_is_that_of_swaps():
    subject = subject_of("sraven")
    with subject.lent() as model:
        swaps = Swaps(model, subject.study, seed=0, instances=32, solved_only=False)
        donation = swaps.donation("donor")
        want = swaps.predictions(donation, [0, 1])
    pairs = pairs_of(subject, None, None)
    for i in donation.received.nonzero()[:8, 0].tolist():
        given = torch.stack([donation.codes[layer][i] for layer in (0, 1)])
        got = predict(subject, swaps.recipients.inputs[i : i + 1], pairs, [0, 1], given)
        assert got.values[-1] == want[i]


def test_a_donor_puzzles_code(client, gallery, id):
    donor = new_puzzle(gallery[MODEL], seed=9, split="seen", permuted=False, rules=None)
    found = swap(client, model=MODEL, id=id, layers=[1], donor={"id": donor.id}, code="instance")
    subject, pairs = gallery[MODEL], pairs_of(gallery[MODEL], None, None)
    given = record(subject, donor.inputs, pairs).codes[:, 0]
    want = predict(subject, find_puzzle(gallery, id).inputs, pairs, [1], given)
    assert found["after"] == want.model_dump()
    assert found["donor"]["target"] == list(donor.problem.answer)
    assert found["donor_rule"] == donor.problem.rules[-1]


def test_its_own_code_changes_nothing(client, id):
    found = swap(client, model=MODEL, id=id, layers=[0, 1], donor={"id": id}, code="instance")
    assert found["before"]["values"] == found["after"]["values"]
    assert found["before"]["probabilities"] == pytest.approx(found["after"]["probabilities"])
    assert found["own_prescribes"] == found["donor_prescribes"]


def test_no_code_is_the_ablation(client, gallery, id):
    found = swap(client, model=MODEL, id=id, layers=[0], donor={"rule": "constant"}, code="zero")
    assert found["donor"] is None
    assert found["after"]["probabilities"] != found["before"]["probabilities"]


def test_what_the_donors_rule_prescribes(client, gallery, id):
    problem = find_puzzle(gallery, id).problem
    first, second, _ = problem.rows(1)[-1]
    for rule, want in (
        ("addition", (first + second) % 4),
        ("subtraction", (first - second) % 4),
        ("constant", second),
        ("progression+1", (second + 1) % 4),
    ):
        found = swap(client, model=MODEL, id=id, layers=[0], donor={"rule": rule}, code="instance")
        assert found["donor_prescribes"] == want
        assert found["own_prescribes"] == problem.answer[-1]
        assert found["donor_rule"] == rule
        assert len(found["donor"]["panels"]) == 8


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"layers": [5]}, 409, "has 2 layers"),
        ({"layers": []}, 422, "layers"),
        ({"donor": {"rule": "adition"}}, 409, "did you mean 'addition'"),
        ({"donor": {}}, 422, "donor"),
        ({"code": "other"}, 422, "code"),
        ({"layers": ["0"]}, 422, "layers"),
        ({"more": 1}, 422, "more"),
    ],
)
def test_swaps_that_cannot_be(client, id, changes, status, reason):
    body = {"model": MODEL, "id": id, "layers": [0], "donor": {"rule": "addition"}, "code": "zero"}
    assert reason in swap(client, status, **body | changes)["error"]


def test_requests_at_the_same_time_do_not_mix(client, id):
    """Codes are recorded and edited by hooks on models that all requests share."""
    body = {"id": id, "donor": {"rule": "constant"}, "code": "zero"}

    def ask(number: int):
        model = (MODEL, "sraven-softmax")[number % 2]
        match number % 3:
            case 0:
                return get(client, "answers", model=model, id=id)
            case 1:
                return get(client, "code", model=model, id=id)
        return swap(client, model=model, layers=[number % 2], **body)

    one_by_one = [ask(number) for number in range(6)]
    with ThreadPoolExecutor(6) as threads:
        together = list(threads.map(ask, range(48)))
    assert together == one_by_one * 8


def test_permuted_puzzles_are_not_swapped(client):
    id = get(client, "instance", model=MODEL, seed=3, permuted=True)["id"]
    found = swap(
        client, 409, model=MODEL, id=id, layers=[0], donor={"rule": "constant"}, code="zero"
    )
    assert "permuted=false" in found["error"]
