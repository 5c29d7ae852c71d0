"""Ways of answering that look for no correspondences: floors beside which accuracies are read."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from hyla.tasks.sraven.config import SravenConfig
from hyla.tasks.sraven.rules import Context
from hyla.tasks.sraven.threads import prescriptions


def blind_guess(query_panels: Int64[Tensor, "n m"], *, num_values: int) -> Int64[Tensor, "m"]:
    """The panel of the most frequent value at each position, over the query panels given.

    It is the best guess of someone who knows the marginals of the query panel and sees no context.
    """
    counts = torch.nn.functional.one_hot(query_panels, num_values).sum(0)
    return counts.argmax(-1)


def majority(panels: Int64[Tensor, "n rows columns m"], *, num_values: int) -> Int64[Tensor, "n m"]:
    """At each position the value shown most often there, over the context panels.

    Among equally frequent ones it is the smallest.
    """
    context = panels.flatten(1, 2)[:, :-1]
    counts = torch.stack([(context == value).sum(1) for value in range(num_values)], dim=-1)
    return counts.argmax(-1)


def rule_of_row_one(
    panels: Int64[Tensor, "n rows columns m"], config: SravenConfig
) -> Int64[Tensor, "n m"]:
    """At each position, the last row continued by the rule of the first.

    The rule is the first, in the order of `config.rules`, that the first row and the given entries
    of the last row allow at that position; the rows between are not looked at, nor are other
    positions, so that permuted columns mislead it. Where no rule is allowed, the entry before is
    repeated.
    """
    *before, last = panels.permute(2, 1, 3, 0).unbind(0)  # [rows, M, N] each
    columns = (*(torch.stack([column[0], column[-1]]) for column in before), last[:1])
    guess = before[-1][-1]
    found = prescriptions(Context(columns, config.num_values), config.rules)
    for fits, value in reversed(found):
        guess = torch.where(fits, value, guess)
    return guess.movedim(0, -1)
