"""How many tasks and problem instances SRAVEN has (paper, appendix B.1 and Figure A9).

Notation: R rules, M features, K values, a grid of G × G panels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hyla._errors import check_positive
from hyla.tasks.sraven.rules import PAPER_RULES, RULES


def num_rule_combinations(*, num_rules: int, num_features: int) -> int:
    """Multisets of M rules out of R: C(R + M - 1, M)."""
    check_positive(num_rules=num_rules, num_features=num_features)
    return math.comb(num_rules + num_features - 1, num_features)


def num_correspondences(*, num_features: int, grid_size: int) -> int:
    """Ways of linking the positions of the G columns into M features: (M!)^(G - 1).

    Column permutations that differ only by a common renaming of the features link the same
    positions, so one of the G permutations can be taken to be the identity.
    """
    check_positive(num_features=num_features, grid_size=grid_size)
    return math.factorial(num_features) ** (grid_size - 1)


def num_tasks_in_paper(*, num_rules: int, num_features: int, grid_size: int) -> int:
    """The number of tasks as the paper states it: C(R + M - 1, M) · ((M!)^(G - 1) - M).

    The second factor is called "the number of possible unique permutations". Enumeration does not
    give it: there are (M!)^(G - 1) correspondences between columns (`num_correspondences`), and
    nothing takes M away (for M = 1 the formula even leaves no task at all). Nor is the product the
    number of tasks that can be told apart, which is `num_tasks`: a combination of different rules
    can be laid onto the features in several ways.
    """
    combinations = num_rule_combinations(num_rules=num_rules, num_features=num_features)
    correspondences = num_correspondences(num_features=num_features, grid_size=grid_size)
    return combinations * (correspondences - num_features)


def num_tasks(*, num_rules: int, num_features: int, grid_size: int) -> int:
    """The number of different tasks by enumeration: R^M · (M!)^(G - 1).

    A task says which positions of the columns belong together, and which rule each such group
    follows. Two draws of (rule of each feature, permutation of each column) that say the same,
    because they only name the features differently, are one task. Name the features by their
    position in the first column: then the rules are any of R^M, and each other column any of M!.
    """
    check_positive(num_rules=num_rules)
    return num_rules**num_features * num_correspondences(
        num_features=num_features, grid_size=grid_size
    )


def num_instances(
    *, num_features: int, num_values: int, grid_size: int, rules: Sequence[str] = PAPER_RULES
) -> int:
    """The number of problem instances: (M!)^(G - 1) · (n_1 + ... + n_R)^M.

    An instance is a task (as in `num_tasks`) together with the values of its grid. A feature that
    follows rule r can be filled in n_r ways:

      - constant and progressions: K^G, one value a row;
      - addition and subtraction: K^(G (G - 1)), G - 1 operands a row;
      - distribute-three: C(K, G) · (G!)^G, a set of symbols and its order in each row.

    The features being named by their position in the first column, each independently has any rule
    and filling. Where two tasks happen to fit the same grid, that grid counts once for each; the
    number of distinct grids is therefore smaller. The paper gives no formula for its figure.
    """
    check_positive(num_values=num_values)
    fillings = sum(RULES[name].count(num_values, grid_size) for name in rules)
    correspondences = num_correspondences(num_features=num_features, grid_size=grid_size)
    return correspondences * fillings**num_features
