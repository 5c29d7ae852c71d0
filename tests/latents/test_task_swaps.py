"""Swaps on the tasks themselves, with networks too young to have answers of their own."""

import math

import pytest
import torch

from hyla.latents import Swaps, study_of, swap_matrix, swap_table
from hyla.nn import Transformer
from tiny_runs import tiny_model, tiny_task


def swaps_of(task: str, **options) -> Swaps:
    built = tiny_task(task)
    torch.manual_seed(0)
    model = Transformer(tiny_model(built)).eval()
    return Swaps(model, study_of(built), seed=0, instances=64, solved_only=False, **options)


@pytest.mark.parametrize("task", ["sraven", "fuzzy"])
def test_layers_alone_and_together_for_all_codes(task):
    swaps = swaps_of(task)
    table = swap_table(swaps)
    rows = table.to_dict("records")
    layers = [(r["first_layer"], r["last_layer"]) for r in rows if r["code"] == "donor"]
    assert layers == [(0, 0), (1, 1), (0, 1)]
    special = {"counterfactual"} if task == "fuzzy" else {"donor, same operands"}
    assert special <= set(table["code"])
    assert ("shift" in table) == (task == "fuzzy")
    assert all(row["donor_low"] <= row["donor_rate"] <= row["donor_high"] for row in rows)


def test_donors_are_who_they_should_be():
    swaps = swaps_of("sraven")
    recipients, donors = swaps.recipients, swaps.donors
    assert recipients.operands is not None
    assert donors.operands is not None
    matched = swaps.donation("donor, same operands")
    chosen = matched.donors[matched.received]
    assert len(chosen) > 10
    assert torch.equal(donors.operands[chosen], recipients.operands[matched.received])
    assert (donors.operations[chosen] != recipients.operations[matched.received]).all()
    alike = swaps.donation("same operation")
    # In layer 0 all queries are alike, and so are codes.
    same = (alike.codes[1][:, None] == swaps.donor_codes[1]).flatten(2).all(dim=-1)
    sources = same.int().argmax(dim=1)[alike.received]
    assert torch.equal(donors.operations[sources], recipients.operations[alike.received])


def test_permuted_heads_keep_the_values_of_a_code():
    swaps = swaps_of("sraven")
    donated, permuted = (swaps.donation(kind).codes[0] for kind in ("donor", "permuted heads"))
    torch.testing.assert_close(permuted.sort(dim=-1).values, donated.sort(dim=-1).values)
    assert not torch.equal(permuted, donated)


def test_operation_means():
    swaps = swaps_of("sraven")
    means = swaps.donation("operation mean")
    operation = int(swaps.donors.operations[means.donors[0]])
    members = swaps.donors.operations == operation
    want = swaps.donor_codes[1][members].mean(dim=0)
    torch.testing.assert_close(means.codes[1][0], want)


def test_counterfactual_of_a_function_by_itself_changes_nothing():
    swaps = swaps_of("fuzzy")
    same = (swaps.recipients.operations[:, None] == swaps.donors.operations).int().argmax(dim=1)
    donation = swaps.donation("counterfactual", same)
    torch.testing.assert_close(swaps.predictions(donation, [0, 1]), swaps.clean)


def test_nothing_is_counted_where_operations_agree():
    rows = swap_matrix(swaps_of("sraven")).to_dict("records")
    diagonal = [row for row in rows if row["recipient"] == row["donor"]]
    assert diagonal
    assert all(row["instances"] == 0 and math.isnan(row["donor_rate"]) for row in diagonal)
