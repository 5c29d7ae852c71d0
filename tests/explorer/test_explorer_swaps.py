"""Whose code a swap takes, what is said of it, and what thousands gave, beside hyla.latents."""

import csv
from collections import Counter
from pathlib import Path

import pytest
import torch
from explorer_fixtures import subject_of
from fastapi.testclient import TestClient

import count_swaps
from hyla.explorer import codes, donors, swap_rates
from hyla.explorer.donors import find_donor, operands_of
from hyla.explorer.gallery import Gallery, study_pairs
from hyla.explorer.packed import read_description, shipped_models
from hyla.explorer.puzzles import Puzzle, build, find_puzzle, new_puzzle, split_of, unpermuted
from hyla.explorer.swaps import judge
from hyla.explorer.web import schemas
from hyla.latents import Swaps, edited, replaced
from hyla.latents.capture import run, run_recorded
from hyla.latents.measures.swaps import CODES

MODEL = "sraven-tiny"


@pytest.fixture(autouse=True)
def _few_instances(monkeypatch):
    monkeypatch.setattr(codes, "INSTANCES", 64)


@pytest.fixture(scope="module")
def puzzle(gallery: Gallery) -> Puzzle:
    """One whose last row begins with different values, and so follows no `constant` there."""
    made = (
        new_puzzle(gallery[MODEL], seed=seed, split="seen", permuted=False, rules=None)
        for seed in range(100)
    )
    return next(one for one in made if len(set(operands_of(one))) == 2)


def swap(client: TestClient, puzzle: Puzzle, **changes):
    body = {
        "model": MODEL,
        "id": puzzle.id,
        "layers": [0, 1],
        "donor": {"rule": "addition"},
        "code": "instance",
    }
    answer = client.post("/api/sraven/swap", json=body | changes)
    assert answer.status_code == 200, answer.text
    return answer.json()


# --- donors --------------------------------------------------------------------------------------


def test_puzzles_made_at_once_are_those_of_the_ids(gallery):
    panels, rules = unpermuted(gallery[MODEL], (2, 5), seeds=8)
    for seed in range(8):
        problem = build(gallery[MODEL], (2, 5), permuted=False, seed=seed).problem
        assert panels[seed].tolist() == [list(map(list, row)) for row in problem.panels]
        assert [problem.config.rules[rule] for rule in rules[seed]] == list(problem.rules)


@pytest.mark.parametrize("rule", ["addition", "subtraction"])
def test_a_donor_has_the_rule_and_the_same_operands(client, gallery, puzzle, rule):
    found = swap(client, puzzle, donor={"rule": rule})["donor"]
    donor = find_puzzle(gallery, found["id"])
    assert donor.shown == found["panels"]
    assert list(donor.problem.answer) == found["target"]
    assert donor.problem.rules[-1] == rule
    assert found["same_operands"]
    assert found["note"] is None
    operands = gallery[MODEL].study._operands(torch.cat([donor.inputs, puzzle.inputs]))
    assert operands[0] == operands[1]


def test_operands_may_be_any(client, gallery, puzzle):
    found = swap(client, puzzle, donor={"rule": "addition", "same_operands": False})["donor"]
    assert found["note"] is None
    same = operands_of(find_puzzle(gallery, found["id"])) == operands_of(puzzle)
    assert found["same_operands"] == same


def test_operands_that_no_donor_has_are_said_after_a_bounded_search(
    client, gallery, puzzle, monkeypatch
):
    made = []

    def counting(subject, rules, *, seeds):
        made.append(seeds)
        return unpermuted(subject, rules, seeds=seeds)

    monkeypatch.setattr(donors, "unpermuted", counting)
    found = swap(client, puzzle, donor={"rule": "constant"})
    first, second = operands_of(puzzle)
    assert f"applies constant to {first} and {second}" in found["donor"]["note"]
    assert not found["donor"]["same_operands"]
    assert find_puzzle(gallery, found["donor"]["id"]).problem.rules[-1] == "constant"
    # At most twice: for these operands, then for any.
    assert sum(made) <= 2 * donors.COMBINATIONS * donors.SEEDS


def test_a_donor_is_solved_if_one_is_and_of_the_same_side(gallery, puzzle):
    subject, pairs = gallery[MODEL], tuple(study_pairs(gallery[MODEL]))
    sides = set()
    for rule in range(8):
        donor = find_donor(subject, puzzle, rule, pairs, None)
        assert donor is not None
        with subject.lent() as model:
            logits, seen = run_recorded(model, donor.puzzle.inputs, pairs=pairs)
        assert donor.answer == int(logits[0, -1].argmax())
        torch.testing.assert_close(
            donor.codes, torch.stack([seen[site].codes[0] for site in sorted(seen)])
        )
        assert donor.solved  # of hundreds, some are, if by chance
        sides.add(split_of(subject, donor.puzzle))
    assert sides == {"seen"}


def test_the_own_rule_can_be_the_donors_but_never_the_puzzle_itself(client, gallery):
    subject = gallery[MODEL]
    for seed in range(4):  # all among those that are searched
        puzzle = build(subject, (5, 5), permuted=False, seed=seed)
        for same in (True, False):
            donor = {"rule": "addition", "same_operands": same}
            found = swap(client, puzzle, donor=donor)
            assert found["donor_rule"] == found["own_rule"] == "addition"
            assert found["donor"]["id"] != puzzle.id
            assert found["verdict"] in ("stays", "copies", "other", "undecided")


# --- the edit and the verdict --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["row", "all keys"])
@pytest.mark.parametrize("layers", [[0], [0, 1]])
def test_codes_are_swapped_at_the_studys_pairs(client, gallery, puzzle, name, layers):
    found = swap(client, puzzle, pairs=name, layers=layers)
    subject = gallery[MODEL]
    pairs, donor = subject.study.pairs[name], find_puzzle(gallery, found["donor"]["id"])
    with subject.lent() as model:
        _, seen = run_recorded(model, donor.inputs, pairs=pairs)
        edits = {s.layer: replaced(seen[s].codes, pairs) for s in seen if s.layer in layers}
        with edited(model, edits):
            want = run(model, puzzle.inputs)[0, -1].softmax(dim=-1)
    assert found["after"]["probabilities"] == pytest.approx(want.tolist(), abs=1e-6)


def test_the_row_is_what_is_swapped_unless_asked(client, puzzle):
    found = {name: swap(client, puzzle, pairs=name) for name in ("row", "all keys")}
    assert swap(client, puzzle) == found["row"]
    assert found["row"]["after"] != found["all keys"]["after"]


def test_means_and_zero_are_of_the_chosen_pairs(client, puzzle):
    donor = {"rule": "constant"}  # of which the tiny model has some right, by chance
    for code in ("rule mean", "zero"):
        row, everything = (
            swap(client, puzzle, donor=donor, code=code, pairs=pairs)
            for pairs in ("row", "all keys")
        )
        assert row["after"] != everything["after"]
        assert row["donor"] is None
    assert row["donor_rule"] is None
    assert row["donor_prescribes"] is None
    assert row["verdict"] in ("stays", "other", "undecided")


@pytest.mark.parametrize("kind", ["donor", "donor, same operands"])
def test_verdicts_are_those_that_are_counted(kind):
    subject = subject_of("sraven")
    with subject.lent() as model:
        swaps = Swaps(model, subject.study, seed=0, instances=256, solved_only=False)
        donation = swaps.donation(kind)
        predictions = swaps.predictions(donation, swaps.layers)
        outcome = swaps.outcome(predictions, donation)
    assert donation.answers is not None
    same, verdicts = swaps.same_operands(), Counter()
    for i in donation.received.nonzero()[:, 0].tolist():
        j = int(donation.donors[i])
        own, others = int(swaps.recipients.answers[i]), swaps.prescribed[i]
        donor = donor_shown(int(donation.answers[i]), same_operands=bool(same[i, j]))
        verdict, _ = judge(
            own,
            int(predictions[i]),
            own=own,
            others=int(others[swaps.donors.operations[j]]),
            same_rule=False,
            donor=donor,
        )
        verdicts[verdict] += 1
    assert sum(verdicts.values()) == outcome["instances"] > 50
    assert verdicts["follows"] == round(outcome["donor_rate"] * outcome["instances"]) > 0
    assert verdicts["stays"] == round(outcome["stay_rate"] * outcome["instances"]) > 0
    assert verdicts["undecided"] == 0


def donor_shown(target: int, *, same_operands: bool = False, correct: bool = True):
    return schemas.DonorShown(
        id="",
        panels=[],
        target=[0, target],
        answer=target if correct else target + 1,
        correct=correct,
        same_operands=same_operands,
        note=None,
    )


@pytest.mark.parametrize(
    ("before", "after", "others", "donor", "verdict", "words"),
    [
        (1, 2, 2, donor_shown(3), "follows", "as the donor's rule prescribes."),
        (1, 2, 2, donor_shown(2, same_operands=True), "follows", "by construction"),
        (1, 2, 2, donor_shown(2), "follows", "by chance"),
        (1, 1, 2, donor_shown(3), "stays", "still 1"),
        (1, 1, 2, donor_shown(1), "stays", "copying would look the same"),
        (1, 1, None, donor_shown(3), "stays", "still 1"),
        (1, 3, 2, donor_shown(3), "copies", "the donor's own answer"),
        (1, 3, None, donor_shown(3), "copies", "the donor's own answer"),
        (1, 0, 2, donor_shown(3), "other", "the donor's 2"),
        (1, 0, None, None, "other", "prescribes 1."),
        # Nothing is told where nothing can be: whatever the answer then is.
        (2, 2, 2, donor_shown(3), "undecided", "wrong before"),
        (3, 2, 2, donor_shown(2), "undecided", "wrong before"),
        (2, 1, 2, donor_shown(3), "undecided", "wrong before"),
        (1, 2, 2, donor_shown(3, correct=False), "undecided", "the donor's own puzzle"),
        (1, 1, 1, donor_shown(1), "undecided", "Both rules prescribe 1"),
        (1, 2, 1, donor_shown(3), "undecided", "Both rules prescribe 1"),
    ],
)
def test_what_is_said(before, after, others, donor, verdict, words):
    said = judge(before, after, own=1, others=others, same_rule=False, donor=donor)
    assert said[0] == verdict
    assert words in said[1]


@pytest.mark.parametrize(
    ("after", "verdict", "words"),
    [(1, "stays", "still 1"), (3, "copies", "own answer"), (0, "other", "so does the donor's")],
)
def test_the_own_rules_code_is_a_control(after, verdict, words):
    said = judge(1, after, own=1, others=1, same_rule=True, donor=donor_shown(3))
    assert said[0] == verdict
    assert words in said[1]


# --- what thousands of swaps gave ----------------------------------------------------------------


def table(path: Path, *, member: int, run: str = "r", hits: int, instances: int) -> Path:
    columns = "run,member,seed,split,pairs,code,instances,donor_rate,stay_rate,copy_rate"
    base = {"run": run, "member": member, "seed": member + 10, "instances": instances}
    with path.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, [*columns.split(","), "first_layer", "last_layer"])
        writer.writeheader()
        for pairs in ("row", "self", "all keys"):
            for split in ("test_unpermuted", "ood_unpermuted"):
                for code in ("own", *CODES):
                    for layers in ((0, 0), (1, 1), (0, 1)) if code != "own" else ((None, None),):
                        wanted = layers == (0, 1) and split == "ood_unpermuted"
                        rate = hits / instances if wanted else 0.5
                        writer.writerow(
                            base
                            | {"split": split, "pairs": pairs, "code": code}
                            | {"donor_rate": f"{rate:.6g}", "stay_rate": "0.25"}
                            | {"copy_rate": "" if code in ("zero", "operation mean") else "0.125"}
                            | {"first_layer": layers[0], "last_layer": layers[1]}
                        )
    return path


def test_tables_of_several_members_are_counted_together(tmp_path):
    rates = count_swaps.rates_of(
        [
            table(tmp_path / "0.csv", member=0, hits=300, instances=1000),
            table(tmp_path / "2.csv", member=2, hits=100, instances=3000),
        ]
    )
    assert rates["seeds"] == [10, 12]
    assert set(rates["rates"]) == {"row", "all keys"}
    for of_pairs in rates["rates"].values():
        assert set(of_pairs) == set(CODES)
        donor = of_pairs["donor"]
        assert donor["swaps"] == 4000
        assert donor["follows"]["value"] == 0.1
        assert donor["follows"]["low"] < 0.1 < donor["follows"]["high"]
        assert donor["stays"]["value"] == 0.25
        assert of_pairs["zero"]["copies"] is None


def test_tables_of_different_runs_are_not_mixed(tmp_path, capsys):
    paths = [
        table(tmp_path / f"{run}.csv", member=0, run=run, hits=1, instances=2) for run in ("a", "b")
    ]
    with pytest.raises(SystemExit):
        count_swaps.main(["sraven-hyla", *map(str, paths)])
    assert "of one run" in capsys.readouterr().err


def test_a_swap_is_found_among_what_was_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(swap_rates, "shipped_folder", lambda: tmp_path)
    swap_rates._known.cache_clear()
    count_swaps.main(["m", str(table(tmp_path / "0.csv", member=0, hits=300, instances=1000))])
    try:
        for code, same_rule, same_operands, kind in (
            ("instance", False, False, "donor"),
            ("instance", False, True, "donor, same operands"),
            ("rule mean", False, False, "operation mean"),
            ("instance", True, False, "same operation"),
            ("instance", True, True, "same operation and operands"),
            ("zero", False, False, "zero"),
        ):
            how = {"same_rule": same_rule, "same_operands": same_operands}
            assert swap_rates._kinds(code, **how)[0] == kind
            found = swap_rates.counted("m", code, pairs="row", **how)
            assert found is not None
            assert found.seeds == [10]
            assert (found.follows is None) == (same_rule or code == "zero")
            assert (found.control is None) == (not kind.startswith("donor"))
        other = {"pairs": "row", "same_rule": True, "same_operands": False}
        assert swap_rates.counted("m", "rule mean", **other) is None
        assert swap_rates.counted("unknown", "zero", **other) is None
    finally:
        swap_rates._known.cache_clear()


def test_shipped_rates_are_of_the_shipped_models_runs():
    known = sorted((swap_rates.shipped_folder() / "swap_rates").glob("*.json"))
    assert known
    sources = {stem.name: read_description(stem)[0].source for stem in shipped_models().values()}
    for path in known:
        rates = swap_rates._known(path.stem)
        assert rates is not None
        assert sources[path.stem].startswith(rates["run"] + ",")
        assert set(rates["rates"]["row"]) == set(CODES) - {"counterfactual"}
