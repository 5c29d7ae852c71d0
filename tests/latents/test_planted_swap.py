"""The causal test where the answer is known: other codes must flip a trained network's output."""

from typing import Any

import pytest
import torch

from hyla.latents import Swaps, head_table, swap_matrix, swap_table
from planted_task import PlantedStudy, trained_network, untrained_network

KINDS = ("softmax", "linear", "hyla")


@pytest.fixture(scope="module", params=KINDS)
def trained(request):
    return trained_network(request.param)


def rates(table, code: str, **wanted) -> dict:
    rows = table[table["code"] == code]
    for name, value in wanted.items():
        rows = rows[rows[name] == value]
    (row,) = rows.to_dict("records")
    return row


def test_swapping_flips_a_trained_network(trained):
    table = swap_table(Swaps(trained, PlantedStudy(), seed=0, instances=256))
    for code in ("donor", "operation mean", "operation direction"):
        found = rates(table, code)
        assert found["donor_rate"] > 0.9, code
        assert found["stay_rate"] < 0.05, code
        assert found["instances"] > 200
    assert rates(table, "own")["stay_rate"] == 1
    assert rates(table, "same operation")["stay_rate"] > 0.95
    assert rates(table, "zero")["donor_rate"] < 0.5
    assert rates(table, "permuted heads")["donor_rate"] < rates(table, "donor")["donor_rate"]


@pytest.mark.parametrize("kind", KINDS)
def test_swapping_does_not_flip_an_untrained_network(kind):
    # What it answers is arbitrary, so no answer is required to be right.
    swaps = Swaps(
        untrained_network(kind, seed=3), PlantedStudy(), seed=0, instances=256, solved_only=False
    )
    table = swap_table(swaps)
    before, after = (rates(table, code)["donor_rate"] for code in ("own", "donor"))
    assert abs(after - before) < 0.15
    assert after < 0.5


def test_another_pair_does_not_carry_the_operation(trained):
    table = swap_table(Swaps(trained, PlantedStudy(), seed=0, pairs="self", instances=256))
    assert rates(table, "donor")["donor_rate"] < 0.1


def test_matrix_flips_off_the_diagonal_and_has_none_on_it(trained):
    table = swap_matrix(Swaps(trained, PlantedStudy(), seed=0, instances=256))
    for row in table.to_dict("records"):
        if row["recipient"] == row["donor"]:
            assert row["instances"] == 0
        else:
            assert row["instances"] > 80
            assert row["donor_rate"] > 0.9


def test_all_heads_together_do_what_single_heads_do_in_part(trained):
    swaps = Swaps(trained, PlantedStudy(), seed=0, instances=256)
    table = head_table(swaps)
    single: Any = table[table["code"] == "donor"].groupby("head")["donor_rate"].mean()
    assert sorted(single.index) == [0, 1, 2, 3]
    together = swaps.predictions(swaps.donation("donor"), [0], heads=[0, 1, 2, 3])
    assert torch.equal(together, swaps.predictions(swaps.donation("donor"), [0]))
    assert single.max() < swaps.outcome(together, swaps.donation("donor"))["donor_rate"]


def test_unknown_code_is_named():
    swaps = Swaps(untrained_network("hyla"), PlantedStudy(), seed=0, instances=8)
    with pytest.raises(ValueError, match="did you mean 'donor'"):
        swaps.donation("donr")
    with pytest.raises(ValueError, match="is unknown; choose from"):
        swaps.donation("counterfactual")
