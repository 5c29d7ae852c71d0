"""The formulas of appendix B.1 against enumeration of small cases."""

import itertools

import pytest

from hyla.tasks.sraven import (
    RULES,
    num_correspondences,
    num_instances,
    num_rule_combinations,
    num_tasks,
    num_tasks_in_paper,
)

SIZES = [(1, 1, 2), (3, 1, 3), (2, 2, 2), (2, 2, 3), (3, 2, 3), (2, 3, 2), (2, 3, 3)]


def enumerate_tasks(num_rules, num_features, grid_size):
    """All tasks, each as a set of (rule, position in every column): features have no names."""
    orders = list(itertools.permutations(range(num_features)))
    return {
        frozenset(
            (rule, tuple(column[feature] for column in columns))
            for feature, rule in enumerate(rules)
        )
        for rules in itertools.product(range(num_rules), repeat=num_features)
        for columns in itertools.product(orders, repeat=grid_size)
    }


@pytest.mark.parametrize(("num_rules", "num_features", "grid_size"), SIZES)
def test_tasks_agree_with_enumeration(num_rules, num_features, grid_size):
    tasks = enumerate_tasks(num_rules, num_features, grid_size)
    sizes = {"num_features": num_features, "grid_size": grid_size}
    assert num_tasks(num_rules=num_rules, **sizes) == len(tasks)
    correspondences = {frozenset(positions for _, positions in task) for task in tasks}
    assert num_correspondences(**sizes) == len(correspondences)
    combinations = {tuple(sorted(rule for rule, _ in task)) for task in tasks}
    assert len(combinations) == num_rule_combinations(
        num_rules=num_rules, num_features=num_features
    )
    # The paper's formula takes M from the correspondences; enumeration does not bear that out.
    in_paper = num_tasks_in_paper(num_rules=num_rules, **sizes)
    assert in_paper == len(combinations) * (len(correspondences) - num_features)
    assert in_paper != len(combinations) * len(correspondences)


def grids_of_rule(name, num_values, grid_size):
    """All grids a rule can produce, by filtering all rows."""
    rows = list(itertools.product(range(num_values), repeat=grid_size))
    if name == "distribute_three":
        return {
            grid
            for grid in itertools.product(rows, repeat=grid_size)
            if len({frozenset(row) for row in grid}) == 1 and len(set(grid[0])) == grid_size
        }
    sign = {"addition": 1, "subtraction": -1}
    extreme = {"minimum": min, "maximum": max}
    if name in extreme:
        rows = [row for row in rows if extreme[name](row[:-1]) == row[-1]]
    elif name in sign:
        rows = [r for r in rows if (r[0] + sign[name] * sum(r[1:-1]) - r[-1]) % num_values == 0]
    else:
        step = int(name.removeprefix("progression")) if name != "constant" else 0
        rows = [
            row
            for row in rows
            if all((b - a - step) % num_values == 0 for a, b in itertools.pairwise(row))
        ]
    return set(itertools.product(rows, repeat=grid_size))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("num_values", "grid_size"), [(2, 2), (4, 2), (3, 3), (4, 3)])
def test_grids_of_each_rule_agree_with_enumeration(name, num_values, grid_size):
    assert RULES[name].count(num_values, grid_size) == len(
        grids_of_rule(name, num_values, grid_size)
    )


def test_instances_agree_with_enumeration():
    names = ("constant", "progression+1", "distribute_three")
    num_values, grid_size, num_features = 2, 2, 2
    fillings = {name: grids_of_rule(name, num_values, grid_size) for name in names}
    instances = {
        frozenset((rule, grid, tuple(column[f] for column in columns)) for f, (rule, grid) in pairs)
        for columns in itertools.product(
            itertools.permutations(range(num_features)), repeat=grid_size
        )
        for rules in itertools.product(names, repeat=num_features)
        for grids in itertools.product(*(fillings[rule] for rule in rules))
        for pairs in [list(enumerate(zip(rules, grids, strict=True)))]
    }
    assert len(instances) == num_instances(
        num_features=num_features, num_values=num_values, grid_size=grid_size, rules=names
    )


def test_the_papers_setting():
    assert num_rule_combinations(num_rules=8, num_features=4) == 330
    sizes = {"num_features": 4, "grid_size": 3}
    assert num_tasks_in_paper(num_rules=8, **sizes) == 330 * (24**2 - 4)
    assert num_tasks(num_rules=8, **sizes) == 8**4 * 24**2
    # "Orders of magnitude larger than the number of training examples" (20 to 40 million).
    assert num_instances(num_features=4, num_values=8, grid_size=3) > 10**20


def test_sizes_must_be_positive():
    with pytest.raises(ValueError, match="num_features must be at least 1, got 0"):
        num_tasks(num_rules=8, num_features=0, grid_size=3)
    with pytest.raises(ValueError, match="num_values must be at least 1, got 0"):
        num_instances(num_features=1, num_values=0, grid_size=3)
