"""SRAVEN for language models: an instance as a text prompt, and a score for the reply."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from hyla.tasks.sraven.checks import check_panels
from hyla.tasks.sraven.config import SravenConfig

Grid: TypeAlias = Sequence[Sequence[Sequence[int]]]

_RULES_IN_WORDS = {
    "constant": "all {size} values of the row are equal",
    "progression+1": "each value is the one before it plus 1",
    "progression+2": "each value is the one before it plus 2",
    "progression-1": "each value is the one before it minus 1",
    "progression-2": "each value is the one before it minus 2",
    "addition": "the last value of the row is the sum of the others",
    "subtraction": "the last value of the row is the first minus all those between",
    "minimum": "the last value of the row is the smallest of the others",
    "maximum": "the last value of the row is the largest of the others",
    "distribute_three": "every row holds the same {size} different values, in an order of its own",
}

_INTEGER = r"(?<![\w.])[-+]?[0-9]{1,9}(?![\w]|\.[0-9])"
# Between brackets a list may run over several lines; without them a line is a list of its own, or
# the rows of a grid that the reply repeats would flow into one.
_BRACKETED = rf"[\[({{]\s*{_INTEGER}(?:[\s,;]+{_INTEGER})*[\s,;]*[\])}}]"
_BARE = rf"{_INTEGER}(?:[ \t,;]+{_INTEGER})*"
_LIST_OF_INTEGERS = re.compile(rf"{_BRACKETED}|{_BARE}")
_DIGITS = re.compile(r"[-+]?[0-9]+")


def to_prompt(
    panels: Grid | Tensor,
    *,
    config: SravenConfig,
    permuted: bool = True,
    explain_rules: bool = True,
) -> str:
    """The instance as a question in plain words, answered by a panel; the last one is hidden.

    Args:
        panels: the whole grid, `panels[row][column][position]`.
        config: the size of the task and its rules.
        permuted: whether to say that each column shows the features in an order of its own.
        explain_rules: whether to list the rules; without the list they have to be induced.
    """
    rows: Grid = panels.tolist() if isinstance(panels, Tensor) else panels
    size, num_features, num_values = config.grid_size, config.panel_size, config.num_values
    shape = (len(rows), *{len(row) for row in rows}, *{len(p) for row in rows for p in row})
    if shape != (size, size, num_features):
        raise ValueError(
            f"panels must be a grid of {size} × {size} panels of {num_features} integers, as the "
            f"config says, got the sizes {shape}"
        )
    check_panels(torch.tensor(rows).unsqueeze(0), config)
    paragraphs = [
        f"Below is a {size} × {size} grid of panels. Each panel is a list of {num_features} "
        f"integers from 0 to {num_values - 1}. The last panel is missing. Find it.",
        f"Each of the {num_features} integers of a panel shows one of {num_features} features. "
        f"{_who_follows(config)} one rule along each row, from left to right, and it is the same "
        f"rule in all rows; different features may follow different rules. {_order(permuted)}",
    ]
    if config.num_distractors:
        paragraphs.append(
            f"The other {config.num_distractors} are distractors: their values are random and "
            "follow no rule. You have to find out which they are. At their positions of the "
            "missing panel any integer will do."
        )
    if explain_rules:
        sentences = (f"- {_rule_in_words(name, size)}" for name in config.rules)
        heading = f"The possible rules, with all arithmetic modulo {num_values}:"
        paragraphs.append("\n".join([heading, *sentences]))
    else:
        paragraphs.append(f"All arithmetic is modulo {num_values}.")
    grid = [
        f"Row {r}: " + "   ".join(_panel(panel) for panel in row) for r, row in enumerate(rows, 1)
    ]
    grid[-1] = grid[-1].removesuffix(_panel(rows[-1][-1])) + f"[{', '.join('?' * num_features)}]"
    paragraphs.append("\n".join(grid))
    paragraphs.append(
        f"Which {num_features} integers does the missing panel hold, in the order in which its "
        "column shows the features? End your reply with the panel, in square brackets like those "
        "above."
    )
    return "\n\n".join(paragraphs)


def to_answer(panel: Sequence[int]) -> str:
    """A panel as a reply to `to_prompt` writes it."""
    return _panel(panel)


def score_answer(
    reply: str,
    target: Sequence[int],
    *,
    scored: Sequence[bool] | None = None,
    partial_credit: bool = False,
) -> float:
    """Score a reply by the last list in it that has as many integers as the target.

    A list is integers separated by commas or spaces, with or without brackets; what stands around
    it does not matter. Returns 1 if all are right, and else 0, or with `partial_credit` the share
    that is right. A reply without such a list scores 0. `scored` says which positions count, if
    not all do (`Problem.scored`: there may be distractors).
    """
    found = parse_answer(reply, len(target))
    if found is None:
        return 0.0
    counts = [True] * len(target) if scored is None else scored
    right = [a == b for a, b, scores in zip(found, target, counts, strict=True) if scores]
    if partial_credit:
        return sum(right) / len(right)
    return float(all(right))


def parse_answer(reply: str, num_integers: int) -> tuple[int, ...] | None:
    """The last list of that many integers in a text, or None if there is none."""
    lists = (_DIGITS.findall(match.group()) for match in _LIST_OF_INTEGERS.finditer(reply))
    fitting = [found for found in lists if len(found) == num_integers]
    return tuple(map(int, fitting[-1])) if fitting else None


def _who_follows(config: SravenConfig) -> str:
    if not config.num_distractors:
        return "Every feature follows"
    return f"Each of {config.num_features} of these features follows"


def _order(permuted: bool) -> str:
    if not permuted:
        return "All panels show the features in the same order."
    return (
        "Panels of the same column show the features in the same order, but each column has an "
        "order of its own: which position of one column belongs to which position of the next has "
        "to be found out as well."
    )


def _rule_in_words(name: str, size: int) -> str:
    # A rule that somebody adds is at least named.
    return f"{name.replace('_', ' ')}: " + _RULES_IN_WORDS.get(name, "as its name says").format(
        size=size
    )


def _panel(values: Sequence[int]) -> str:
    return f"[{', '.join(map(str, values))}]"
