"""The audit agrees with its parts, and the heuristics do what their definitions say."""

import pytest
import torch

from hyla.tasks import Sraven, SravenConfig
from hyla.tasks.sraven import Solver, ambiguous_by_authors, ambiguous_by_definition, audit
from hyla.tasks.sraven.solver.heuristics import blind_guess, majority, rule_of_row_one

MEANS = (
    "ambiguous_by_definition",
    "ambiguous_by_authors",
    "ceiling",
    "best_accuracy",
    "best_accuracy_not_knowing_split",
    "blind_guess",
    "majority",
    "rule_of_row_one",
)


def test_the_rows_agree_with_their_parts():
    config = SravenConfig(num_values=4)
    task = Sraven(config)
    rows = {row["split"]: row for row in audit(config, 3000, seed=2)}
    assert tuple(rows) == task.splits
    for split, row in rows.items():
        assert set(row) == {
            "split",
            "permuted",
            "instances",
            *MEANS,
            *(f"{name}_se" for name in MEANS),
        }
        assert (row["permuted"], row["instances"]) == ("unpermuted" not in split, 3000)
    for split in ("ood", "test_unpermuted"):
        row, permuted = rows[split], rows[split]["permuted"]
        panels = task.sampler(split, seeds=[2], batch_size=3000).instances(0).panels[0]
        side = task.manifest(2).sides["ood" if split == "ood" else "train"]
        solution = Solver(config, combinations=side)(panels, permuted=permuted)
        right = (solution.answer == panels[:, -1, -1]).all(-1).double()
        assert row["ceiling"] == pytest.approx(float(solution.posterior.mean()))
        assert row["best_accuracy"] == pytest.approx(float(right.mean()))
        assert row["best_accuracy_se"] == pytest.approx(float(right.std() / 3000**0.5), rel=1e-3)
        assert abs(row["ceiling"] - row["best_accuracy"]) < 4 * row["best_accuracy_se"]
        assert row["best_accuracy"] >= row["best_accuracy_not_knowing_split"] - 0.01
        ambiguous = ambiguous_by_definition(Solver(config)(panels, permuted=permuted))
        assert row["ambiguous_by_definition"] == pytest.approx(float(ambiguous.double().mean()))
        authors = ambiguous_by_authors(panels, config, permuted=permuted)
        assert row["ambiguous_by_authors"] == pytest.approx(float(authors.double().mean()))


def test_the_papers_setting():
    rows = {row["split"]: row for row in audit(SravenConfig(), 2000)}
    assert rows["test"]["ambiguous_by_definition"] == pytest.approx(0.242, abs=0.04)
    assert rows["test_unpermuted"]["ambiguous_by_definition"] == pytest.approx(0.141, abs=0.04)
    assert rows["test"]["ceiling"] == pytest.approx(0.935, abs=0.02)


def test_unambiguous_instances_can_all_be_solved():
    for row in audit(SravenConfig(num_values=16, unambiguous=True), 200):
        assert row["ambiguous_by_definition"] == 0
        assert row["best_accuracy"] == row["ceiling"] == pytest.approx(1)


def test_the_number_of_instances_is_checked():
    with pytest.raises(ValueError, match="instances must be at least 1, got 0"):
        audit(SravenConfig(), 0)


def test_a_blind_guess_is_the_most_frequent_value_of_each_position():
    panels = torch.tensor([[0, 3], [1, 3], [1, 2]])
    assert blind_guess(panels, num_values=4).tolist() == [1, 3]


def test_majority_counts_the_context_alone():
    panels = torch.tensor([[[[1, 0], [2, 0]], [[2, 3], [7, 3]]]])
    assert majority(panels, num_values=8).tolist() == [[2, 0]]
    panels[0, 1, 0, 1] = 0
    panels[0, 0, 0] = torch.tensor([5, 6])  # 5, 2, 2 and 6, 0, 0
    assert majority(panels, num_values=8).tolist() == [[2, 0]]


def test_the_rule_of_row_one_is_carried_to_the_last():
    config = SravenConfig(num_features=2, held_out_fraction=0.3)
    grids = {
        "progression, though it could be a sum": ([1, 2, 3], [4, 5], 6),
        "a sum, because the last row is no progression": ([1, 2, 3], [4, 4], 0),
        "distribute three": ([6, 1, 2], [2, 6], 1),
        "no rule: repeat": ([0, 0, 5], [2, 7], 7),
    }
    for first, given, expected in grids.values():
        panels = torch.zeros(1, 3, 3, 2, dtype=torch.int64)
        panels[0, 0] = torch.tensor(first).unsqueeze(-1)
        panels[0, 2, :2] = torch.tensor(given).unsqueeze(-1)
        assert rule_of_row_one(panels, config).tolist() == [[expected, expected]]
