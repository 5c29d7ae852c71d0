"""Puzzles made of puzzles, held against the solver."""

import pytest
import torch

from hyla.tasks.sraven import Solver, Sraven, SravenConfig
from hyla.tasks.sraven.equivalents import about_row, shuffled

CONFIG = SravenConfig(num_features=3)


def panels_of(config: SravenConfig) -> torch.Tensor:
    return Sraven(config).sampler("ood", seeds=[0], batch_size=64).instances(0).panels[0]


@pytest.mark.parametrize(("row", "order"), [(0, [1, 1, 0]), (1, [0, 0, 1])])
def test_a_known_row_is_asked_for(row: int, order: list[int]):
    panels = panels_of(CONFIG)
    assert torch.equal(about_row(panels, row), panels[:, order])


def test_the_real_question_has_no_part_in_it():
    panels = panels_of(SravenConfig(num_features=2, grid_size=4))
    other = panels.clone()
    other[:, -1] = 0
    for row, order in enumerate([[1, 1, 2, 0], [0, 0, 2, 1], [0, 0, 1, 2]]):
        assert torch.equal(about_row(panels, row), panels[:, order])
        assert torch.equal(about_row(panels, row), about_row(other, row))


def test_rows_that_cannot_be_held_out_are_refused():
    with pytest.raises(ValueError, match="one of the 2 known ones, from 0, got 2"):
        about_row(panels_of(CONFIG), 2)
    with pytest.raises(ValueError, match="no other known row"):
        about_row(panels_of(SravenConfig(num_features=2, grid_size=2)), 0)


def test_a_shuffled_puzzle_has_the_same_answer():
    panels = panels_of(CONFIG)
    same = shuffled(panels, torch.Generator().manual_seed(0))
    assert not torch.equal(same.panels, panels)
    solver = Solver(CONFIG)
    before, after = solver(panels), solver(same.panels)
    torch.testing.assert_close(before.posterior, after.posterior)
    one_hot = torch.nn.functional.one_hot(after.answer, CONFIG.num_values).float()
    certain = before.num_answers == 1  # of several that are as probable, either may come first
    assert certain.any()
    assert torch.equal(same.restored(one_hot).argmax(-1)[certain], before.answer[certain])
    truth = torch.nn.functional.one_hot(same.panels[:, -1, -1], CONFIG.num_values).float()
    assert torch.equal(same.restored(truth).argmax(-1), panels[:, -1, -1])
