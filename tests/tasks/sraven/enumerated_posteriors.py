"""Posteriors of SRAVEN's answers by brute force: the generative process in exact fractions."""

import functools
import itertools
import math
from collections import Counter, defaultdict
from fractions import Fraction

import torch

from hyla.tasks.sraven import RULES, Draws


@functools.cache
def grids_of(name, num_values, grid_size):
    """The probability of every grid [row][column], from all draws."""
    if name == "distribute_three":
        orders = list(itertools.permutations(range(grid_size)))
        drawn = [
            [[symbols[o] for o in order] for order in rows]
            for symbols in itertools.permutations(range(num_values), grid_size)
            for rows in itertools.product(orders, repeat=grid_size)
        ]
        return _probabilities(name, drawn, num_values)
    # Free values of different rows are independent: the rows of a grid are too.
    drawn = [[row] for row in itertools.product(range(num_values), repeat=grid_size)]
    rows = _probabilities(name, drawn, num_values).items()
    return {
        tuple(grid[0] for grid, _ in chosen): math.prod(p for _, p in chosen)
        for chosen in itertools.product(rows, repeat=grid_size)
    }


def _probabilities(name, drawn, num_values):
    draws = torch.tensor(drawn).permute(2, 1, 0)  # [columns, rows, draws]
    filled = RULES[name].fill(Draws(free=draws, distinct=draws)).remainder(num_values)
    counts = Counter(tuple(map(tuple, grid)) for grid in filled.permute(2, 1, 0).tolist())
    return {grid: Fraction(n, len(drawn)) for grid, n in counts.items()}


@functools.cache
def probability_of_rules(rules, num_rules):
    """That the generator draws this multiset and lays it onto the features in this order."""
    num_multisets = len(list(itertools.combinations_with_replacement(range(num_rules), len(rules))))
    ways = math.prod(math.factorial(n) for n in Counter(rules).values())
    return Fraction(ways, math.factorial(len(rules)) * num_multisets)


def column_orders(task, permuted):
    orders = list(itertools.permutations(range(task.num_features)))
    identity = [orders[0]]
    return itertools.product(orders if permuted else identity, repeat=task.grid_size)


def posterior_by_enumeration(task, *, permuted):
    """For every context that can occur, the probability of every answer."""
    joint = defaultdict(lambda: defaultdict(Fraction))
    G, M = task.grid_size, task.num_features
    for rules in itertools.product(range(len(task.rules)), repeat=M):
        prior = probability_of_rules(rules, len(task.rules))
        choices = [grids_of(task.rules[r], task.num_values, G).items() for r in rules]
        for chosen in itertools.product(*choices):
            weight = prior
            for _, probability in chosen:
                weight *= probability
            for orders in column_orders(task, permuted):
                panels = tuple(
                    tuple(chosen[m][0][r][c] for m in orders[c]) for r in range(G) for c in range(G)
                )
                joint[panels[:-1]][panels[-1]] += weight
    return {
        context: {answer: weight / sum(answers.values()) for answer, weight in answers.items()}
        for context, answers in joint.items()
    }


def posterior_of_one(task, panels, *, permuted):
    """The same for a given context: a sum over all rules and orders of the columns."""
    G, M, K = task.grid_size, task.num_features, task.num_values

    @functools.cache
    def completions(rule, positions):
        shown = [[panels[r][c][p] for c, p in enumerate(positions)] for r in range(G)]
        found = {}
        for value in range(K):
            shown[-1][-1] = value
            probability = grids_of(rule, K, G).get(tuple(map(tuple, shown)))
            if probability:
                found[value] = probability
        return found

    @functools.cache
    def fitting(positions):
        return [r for r, rule in enumerate(task.rules) if completions(rule, positions)]

    weights = defaultdict(Fraction)
    for orders in column_orders(task, permuted):
        # orders[c][m] is the position of feature m in column c.
        threads = list(zip(*orders, strict=True))
        for rules in itertools.product(*map(fitting, threads)):
            found = [completions(task.rules[r], t) for r, t in zip(rules, threads, strict=True)]
            for values in itertools.product(*found):
                weight = probability_of_rules(rules, len(task.rules))
                answer = [None] * M
                for thread, value, options in zip(threads, values, found, strict=True):
                    weight *= options[value]
                    answer[thread[-1]] = value
                weights[tuple(answer)] += weight
    total = sum(weights.values())
    return {answer: weight / total for answer, weight in weights.items()}
