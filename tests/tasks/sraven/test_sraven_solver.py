"""The solver against brute force: the generative process enumerated in exact fractions."""

import itertools
from collections import defaultdict

import pytest
import torch
from enumerated_posteriors import grids_of, posterior_by_enumeration, posterior_of_one
from hypothesis import given, settings
from hypothesis import strategies as st

from hyla.benchmarks.solver import brute_force
from hyla.tasks import Sraven, SravenConfig
from hyla.tasks.sraven import (
    PAPER_RULES,
    RULES,
    Solver,
    ambiguous_by_authors,
    ambiguous_by_definition,
)
from hyla.tasks.sraven.conflicts import Conflicts
from hyla.tasks.sraven.solver.grouping import distinct, log_sum_groups


def config(**sizes):
    return SravenConfig(**{"held_out_fraction": 0.4, **sizes})


def draw(settings_of_task, count, *, split="test", seed=0):
    instances = Sraven(settings_of_task).sampler(split, seeds=[seed], batch_size=count).instances(0)
    return instances.panels[0]


def assert_solves(solution, expected):
    """That the solution gives exactly these posteriors, one {answer: probability} an instance."""
    candidates = iter(
        zip(map(tuple, solution.candidates.tolist()), solution.probabilities.tolist(), strict=True)
    )
    assert solution.num_answers.tolist() == [len(answers) for answers in expected]
    best, posterior = solution.answer.tolist(), solution.posterior.tolist()
    for index, answers in enumerate(expected):
        own = dict(itertools.islice(candidates, len(answers)))
        assert own == pytest.approx({a: float(p) for a, p in answers.items()}, abs=1e-12)
        highest = max(answers.values())
        assert tuple(best[index]) == min(a for a, p in answers.items() if p == highest)
        assert posterior[index] == pytest.approx(float(highest), abs=1e-12)
        assert all(b - a < 1e-12 for a, b in itertools.pairwise(own.values()))


EXHAUSTIVE = {
    "G=2 K=2, all rules": config(num_features=2, num_values=2, grid_size=2, rules=tuple(RULES)),
    "G=2 K=3, paper's rules": config(num_features=2, num_values=3, grid_size=2),
    "G=3 K=3, two rules": config(num_features=2, num_values=3, rules=("constant", "progression+1")),
    "M=3 G=2 K=2, three rules": config(
        num_features=3, num_values=2, grid_size=2, rules=("constant", "addition", "maximum")
    ),
}


@pytest.mark.parametrize("permuted", [True, False], ids=["permuted", "unpermuted"])
@pytest.mark.parametrize("task", EXHAUSTIVE.values(), ids=EXHAUSTIVE.keys())
def test_every_context_of_a_small_task(task, permuted):
    expected = posterior_by_enumeration(task, permuted=permuted)
    G, M = task.grid_size, task.num_features
    unknown = ((-1,) * M,)
    panels = torch.tensor([context + unknown for context in expected]).view(-1, G, G, M)
    assert_solves(Solver(task)(panels, permuted=permuted), list(expected.values()))


def test_contexts_that_cannot_occur_have_no_reading():
    task = EXHAUSTIVE["G=2 K=3, paper's rules"]
    possible = posterior_by_enumeration(task, permuted=True)
    solver = Solver(task)
    panels = list(itertools.product(range(3), repeat=2))
    impossible = [c for c in itertools.product(panels, repeat=3) if c not in possible]
    for context in impossible[:: max(1, len(impossible) // 20)]:
        with pytest.raises(ValueError, match="instance 0 has no reading"):
            solver(torch.tensor((*context, (0, 0))).view(1, 2, 2, 2))


@pytest.mark.parametrize("permuted", [True, False], ids=["permuted", "unpermuted"])
@pytest.mark.parametrize(
    "task",
    [
        config(num_features=3, num_values=3),
        config(num_features=3, num_values=3, rules=tuple(RULES)),
        config(num_features=4, num_values=3),
        config(num_features=3, num_values=4, rules=tuple(RULES)),
        config(num_features=3, num_values=5, grid_size=2),
    ],
    ids=["K=3", "K=3, all rules", "M=4, K=3", "K=4, all rules", "K=5, G=2"],
)
def test_drawn_instances_against_the_sum_over_everything(task, permuted):
    split = "test" if permuted else "test_unpermuted"
    panels = draw(task, 5, split=split)
    expected = [posterior_of_one(task, instance, permuted=permuted) for instance in panels.tolist()]
    assert_solves(Solver(task)(panels, permuted=permuted), expected)


def test_the_papers_setting_against_all_its_conceivable_readings():
    task = SravenConfig()
    panels = draw(task, 8, split="ood")
    expected = [brute_force(instance, task) for instance in panels]
    solution = Solver(task)(panels)
    assert_solves(solution, expected)
    assert ambiguous_by_definition(solution).tolist() == [len(e) > 1 for e in expected]


@pytest.mark.parametrize("permuted", [True, False], ids=["permuted", "unpermuted"])
def test_readings_spell_out_the_solution(permuted):
    task = SravenConfig()
    split = "ood" if permuted else "ood_unpermuted"
    panels = draw(task, 40, split=split)
    solver = Solver(task)
    solution = solver(panels, permuted=permuted)
    for index, instance in enumerate(panels):
        readings = solver.readings(instance, permuted=permuted)
        weights = defaultdict(float)
        for reading in readings:
            weights[reading.panel] += reading.probability
            for positions in zip(*(t.positions for t in reading.threads), strict=True):
                assert sorted(positions) == [0, 1, 2, 3]
            assert all(permuted or len(set(t.positions)) == 1 for t in reading.threads)
        assert len({r.threads for r in readings}) == len(readings)
        answers = {a.panel: a.probability for a in solution.answers(index)}
        assert weights == pytest.approx(answers)
        probabilities = [reading.probability for reading in readings]
        assert probabilities == sorted(probabilities, reverse=True)


@pytest.mark.parametrize(("num_values", "dtype"), [(10, torch.uint8), (100, torch.int8)])
def test_small_integers_are_read_like_large_ones(num_values, dtype):
    # Sums of values, and differences, do not fit into the types that hold the values.
    solver = Solver(SravenConfig(num_values=num_values))
    for instance in draw(solver.config, 40):
        assert solver.readings(instance.to(dtype)) == solver.readings(instance)


def test_a_side_of_the_split_leaves_the_readings_that_it_allows():
    task = SravenConfig(num_values=4)
    side = Sraven(task).manifest(0).sides["ood"]
    panels = draw(task, 60, split="ood")
    informed = Solver(task, combinations=side)
    solution = informed(panels)
    assert (solution.num_answers < Solver(task)(panels).num_answers).any()
    for index, instance in enumerate(panels):
        kept = defaultdict(float)
        for reading in Solver(task).readings(instance):
            if tuple(sorted(PAPER_RULES.index(t.rule) for t in reading.threads)) in side:
                kept[reading.panel] += reading.probability
        total = sum(kept.values())
        answers = {a.panel: a.probability for a in solution.answers(index)}
        assert answers == pytest.approx({panel: weight / total for panel, weight in kept.items()})
    readings = informed.readings(panels[0])
    assert sum(reading.probability for reading in readings) == pytest.approx(1)


@settings(max_examples=25, deadline=None)
@given(
    num_features=st.integers(2, 5),
    grid_size=st.integers(2, 4),
    more_values=st.integers(0, 300),
    seed=st.integers(0, 1000),
    split=st.sampled_from(Sraven(SravenConfig()).splits),
)
def test_the_truth_is_among_the_answers(num_features, grid_size, more_values, seed, split):
    task = config(
        num_features=num_features,
        num_values=grid_size + more_values,
        grid_size=grid_size,
        rules=("constant", "progression-1", "subtraction", "maximum", "distribute_three"),
    )
    permuted = "unpermuted" not in split
    panels = draw(task, 4, split=split, seed=seed)
    solution = Solver(task)(panels, permuted=permuted)
    truth = panels[:, -1, -1]
    for index, panel in enumerate(truth.tolist()):
        answers = solution.answers(index)
        assert tuple(panel) in {answer.panel for answer in answers}
        assert sum(answer.probability for answer in answers) == pytest.approx(1)
    # What the query panel holds plays no part, and neither does the rest of the batch.
    hidden = panels.clone()
    hidden[:, -1, -1] = -1
    again = [Solver(task)(one, permuted=permuted) for one in hidden.split(1)]
    for fields in zip(solution, *again, strict=True):
        assert torch.equal(fields[0], torch.cat(fields[1:]))
    conflicts = Conflicts(task, permuted=permuted)(panels.permute(2, 1, 3, 0))
    assert torch.equal(conflicts, ambiguous_by_definition(solution))


def test_six_features_and_the_emptiest_grid():
    task = SravenConfig(num_features=6)
    panels = draw(task, 50)
    panels[7] = 0  # 720² · 3^6 readings, all of one answer
    solution = Solver(task)(panels)
    assert solution.answers(7) == [((0,) * 6, pytest.approx(1))]
    right = (solution.answer == panels[:, -1, -1]).all(-1)
    assert right.double().mean() > 0.7


def test_values_may_be_as_many_as_you_like():
    # 5000^6 answers have no number each; those that some reading prescribes have.
    task = config(num_features=6, num_values=5000)
    panels = draw(task, 300)  # so many that they are solved in parts, too
    solution = Solver(task)(panels)
    assert (solution.answer == panels[:, -1, -1]).all()
    parts = [Solver(task)(part) for part in panels.split(50)]
    for fields in zip(solution, *parts, strict=True):
        assert torch.equal(fields[0], torch.cat(fields[1:]))
    # Too many to be listed, though every answer would have a number.
    task = config(num_features=2, num_values=2**30)
    panels = draw(task, 20)
    assert (Solver(task)(panels).answer == panels[:, -1, -1]).all()
    # The same numbering where both are possible.
    task = config(num_features=3, num_values=4)
    panels = draw(task, 100)
    expected = Solver(task)(panels)
    solver = Solver(task)
    solver._all_values = None
    for field, wanted in zip(solver(panels), expected, strict=True):
        assert torch.equal(field, wanted)


def test_instances_with_many_readings_are_solved_a_few_at_a_time(monkeypatch):
    task = config(num_features=4, num_values=3)
    panels = draw(task, 60)
    expected = Solver(task)(panels)
    most, looked_at, extend = 2000, [], Solver._extend

    def counted(self, partial, pairs, position):
        if pairs.counts.shape[1] > 1:  # a single instance cannot be divided
            looked_at.append(int(pairs.counts[position][partial.instance].sum()))
        return extend(self, partial, pairs, position)

    monkeypatch.setattr(Solver, "_extend", counted)
    monkeypatch.setattr("hyla.tasks.sraven.solver.exact._MOST_EXTENSIONS", {"cpu": most})
    for field, wanted in zip(Solver(task)(panels), expected, strict=True):
        assert torch.equal(field, wanted)
    assert 0 < max(looked_at) <= most


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_features": 6, "grid_size": 4},
        {"num_features": 3, "grid_size": 6},
        {"num_features": 8},
        {"num_features": 4, "num_values": 2, "rules": (*PAPER_RULES[:7], "minimum", "maximum")},
        {"num_features": 6, "num_values": 2**20 + 7},
    ],
    ids=str,
)
def test_sizes_that_the_generator_allows(sizes):
    task = config(**sizes)
    panels = draw(task, 10)
    solution = Solver(task)(panels)
    for index, truth in enumerate(panels[:, -1, -1].tolist()):
        assert tuple(truth) in {answer.panel for answer in solution.answers(index)}


def test_the_posterior_is_calibrated():
    # Both sides of the split together are all combinations, in the ratio 248 to 82.
    task = SravenConfig()
    panels = torch.cat([draw(task, 2480), draw(task, 820, split="ood")])
    solution = Solver(task)(panels)
    right = (solution.answer == panels[:, -1, -1]).all(-1).double()
    assert abs(right.mean() - solution.posterior.mean()) < 4 * right.std() / len(right) ** 0.5


@pytest.mark.parametrize("name", RULES)
def test_the_inverse_recognises_and_completes_all_grids_of_a_rule(name):
    task = config(num_features=2, num_values=3, rules=(name,), held_out_fraction=0.5)
    grids = grids_of(name, 3, 3)
    panels = torch.tensor(list(grids)).unsqueeze(-1).expand(-1, -1, -1, 2).contiguous()
    solution = Solver(task)(panels, permuted=False)
    assert torch.equal(solution.answer, panels[:, -1, -1])
    assert bool((solution.num_answers == 1).all())


class TestBadInput:
    SOLVER = Solver(SravenConfig())

    def panels(self):
        return draw(SravenConfig(), 5)

    def test_values_out_of_range(self):
        panels = self.panels()
        panels[3, 1, 2, 0] = 8
        message = (
            r"instance 3 shows 8 at position 0 of the panel in row 1, column 2.*lie in \[0, 8\)"
        )
        with pytest.raises(ValueError, match=message):
            self.SOLVER(panels)
        with pytest.raises(ValueError, match=message):
            ambiguous_by_authors(panels, SravenConfig())

    @pytest.mark.parametrize(
        ("num_values", "dtype"), [(128, torch.int8), (256, torch.uint8), (200, torch.uint16)]
    )
    def test_the_range_may_exceed_what_the_type_holds(self, num_values, dtype):
        task = SravenConfig(num_values=num_values)
        panels = draw(task, 20)
        solver = Solver(task)
        for field, wanted in zip(solver(panels.to(dtype)), solver(panels), strict=True):
            assert torch.equal(field, wanted)
        assert torch.equal(
            ambiguous_by_authors(panels.to(dtype), task), ambiguous_by_authors(panels, task)
        )

    @pytest.mark.parametrize("shape", [(3, 3, 4), (1, 3, 3, 5), (1, 9, 4), (1, 4, 3, 4)])
    def test_shape(self, shape):
        with pytest.raises(ValueError, match=r"shape \[batch, 3, 3, 4\].*got \["):
            self.SOLVER(torch.zeros(shape, dtype=torch.int64))

    def test_dtype(self):
        with pytest.raises(ValueError, match=r"must hold integers, got torch\.float32"):
            self.SOLVER(torch.zeros(1, 3, 3, 4))

    def test_a_feature_without_a_rule(self):
        panels = torch.zeros(4, 3, 3, 4, dtype=torch.int64)
        panels[2, :2, :, 1] = torch.tensor([[0, 0, 3], [5, 1, 2]])
        with pytest.raises(ValueError, match="instance 2 has no reading: position 1 of column 0"):
            self.SOLVER(panels)
        with pytest.raises(ValueError, match=r"instance 2 has no reading: feature 1 follows none"):
            self.SOLVER(panels, permuted=False)
        with pytest.raises(ValueError, match="instance 0 has no reading"):
            self.SOLVER.readings(panels[2])

    def test_threads_that_cannot_be_combined(self):
        solver = Solver(SravenConfig(), combinations=[(1, 1, 1, 1)])
        with pytest.raises(ValueError, match="combination of rules that may occur"):
            solver(torch.zeros(1, 3, 3, 4, dtype=torch.int64))

    def test_sizes_beyond_reach(self):
        task = config(num_features=6, grid_size=11, num_values=11)
        with pytest.raises(ValueError, match="6 features in 11 permuted columns make 362,797,056"):
            Solver(task)(draw(task, 2))
        assert len(Solver(task)(draw(task, 2, split="test_unpermuted"), permuted=False).answer) == 2
        with pytest.raises(ValueError, match=r"2 \*\* \(num_features \* \(grid_size - 1\)\)"):
            Solver(SravenConfig(num_features=20, grid_size=6, rules=("constant", "addition")))
        task = SravenConfig(num_features=21, rules=("constant", "addition"))
        message = r"instance 0 .* 8 values .* 21 features.*8\^21 .* 2\^62; lower num_features or"
        with pytest.raises(ValueError, match=message):
            Solver(task)(draw(task, 1))
        with pytest.raises(ValueError, match="which 5 features stay below"):
            Conflicts(SravenConfig(num_features=8, grid_size=5), permuted=True)
        with pytest.raises(ValueError, match="num_features must be at most 14"):
            Conflicts(SravenConfig(num_features=15), permuted=False)


def test_distinct_rows_also_where_a_key_would_overflow():
    rows = torch.randint(3, (200, 3)) * torch.tensor([1, 2**40, 2**50])
    bounds = (3, 2**42, 2**52)
    first, group = distinct(*zip(rows.unbind(1), bounds, strict=True))
    assert torch.equal(rows[first][group], rows)
    assert torch.equal(rows[first], rows.unique(dim=0))
    logs = torch.randn(200, dtype=torch.float64) * 1000
    for number, total in enumerate(log_sum_groups(logs, group, len(first))):
        assert torch.isclose(total, logs[group == number].logsumexp(0))


def test_a_split_too_long_to_list_is_refused_at_once():
    with pytest.raises(ValueError, match="62,891,499 combinations; a split lists them all"):
        Sraven(SravenConfig(num_features=40)).manifest(seed=0)
