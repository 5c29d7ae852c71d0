"""SRAVEN as a reasoning-gym task, with the real package where it is installed.

Elsewhere a stand-in takes the place of the two names that the module imports from it.
"""

import importlib
import importlib.util
import itertools
import sys
from types import ModuleType, SimpleNamespace

import pytest

from hyla.tasks.sraven import Sraven, SravenConfig
from hyla.tasks.sraven.faces.prompts import to_prompt
from hyla.tasks.sraven.problem import Problems

INSTALLED = importlib.util.find_spec("reasoning_gym") is not None
MODULE = "hyla.integrations.reasoning_gym"


class StandIn:
    """The part of `ProceduralDataset` that datasets build on."""

    def __init__(self, config, seed=None, size=500):
        config.validate()
        self.config, self.seed, self.size = config, 0 if seed is None else seed, size


class CurriculumStandIn:
    """The part of `BaseCurriculum` that curricula build on."""

    def __init__(self, name, config_cls):
        self.name, self.config_cls, self.attributes = name, config_cls, {}

    def _define_attributes(self, *attributes):
        self.attributes |= {one.name: one for one in attributes}


@pytest.fixture
def gym(monkeypatch) -> ModuleType:
    if INSTALLED:
        return importlib.import_module(MODULE)
    factory = ModuleType("reasoning_gym.factory")
    registered = {}
    monkeypatch.setattr(factory, "ProceduralDataset", StandIn, raising=False)
    monkeypatch.setattr(
        factory, "register_dataset", lambda name, *rest: registered.update({name: rest}), False
    )
    coaching = ModuleType("reasoning_gym.coaching")
    monkeypatch.setattr(coaching, "BaseCurriculum", CurriculumStandIn, raising=False)
    monkeypatch.setattr(coaching, "ScalarAttributeDefinition", SimpleNamespace, raising=False)
    monkeypatch.setitem(sys.modules, "reasoning_gym", ModuleType("reasoning_gym"))
    monkeypatch.setitem(sys.modules, "reasoning_gym.coaching", coaching)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", factory)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    module = importlib.import_module(MODULE)
    del sys.modules[MODULE]  # or the next test would get the one built on the stand-in
    classes = (module.SravenDataset, module.SravenDatasetConfig, module.SravenCurriculum)
    assert registered == {"sraven": classes}
    return module


def dataset(gym: ModuleType, **settings):
    return gym.SravenDataset(gym.SravenDatasetConfig(**settings))


@pytest.mark.parametrize("split", ["train", "test", "ood", "ood_unpermuted"])
def test_items_of_seed_0_are_the_instances_of_the_split(gym, split: str):
    item = dataset(gym, split=split, split_seed=2, seed=0)[7]
    problem = Problems(SravenConfig(), split, seed=2)[7]
    assert item["question"] == to_prompt(
        problem.panels, config=problem.config, permuted=problem.permuted
    )
    assert item["answer"] == str(list(problem.answer))
    assert item["metadata"]["source_dataset"] == "sraven"
    assert item["metadata"]["source_index"] == 7
    assert item["metadata"]["rules"] == problem.rules


def test_items_are_computed_from_their_number_and_seed_alone(gym):
    first, second = dataset(gym, seed=11), dataset(gym, seed=11)
    backwards = [second[i] for i in reversed(range(5))][::-1]
    assert [first[i] for i in range(5)] == backwards
    assert dataset(gym, seed=12)[0] != first[0]


def test_another_seed_keeps_the_split(gym):
    sides = Sraven(SravenConfig()).manifest(0).sides
    for split, side in (("train", "train"), ("ood", "ood")):
        for seed in (0, 1, 2**32):
            data = dataset(gym, split=split, seed=seed)
            for i in range(20):
                names = data[i]["metadata"]["rules"]
                combination = tuple(sorted(SravenConfig().rules.index(name) for name in names))
                assert combination in sides[side]


def test_blocks_of_consecutive_seeds_do_not_overlap(gym):
    size = 500
    starts = sorted((seed * gym._SEED_STRIDE) % 2**32 for seed in range(10_000))
    assert min(b - a for a, b in itertools.pairwise(starts)) > size


def test_scores(gym):
    strict = dataset(gym, seed=0)
    lenient = dataset(gym, seed=0, partial_credit=True)
    entry = strict[0]
    first, *rest = entry["metadata"]["panels"][-1][-1]
    nearly = str([(first + 1) % 8, *rest])
    assert strict.score_answer(entry["answer"], entry) == 1.0
    assert strict.score_answer(f"I think it is {entry['answer']}.", entry) == 1.0
    assert strict.score_answer(nearly, entry) == 0.0
    assert lenient.score_answer(nearly, entry) == 0.75
    assert strict.score_answer(None, entry) == 0.0
    assert strict.score_answer("", entry) == 0.0
    with pytest.raises(ValueError, match="a list of 4 integers"):
        strict.score_answer("[0, 0, 0, 0]", {"answer": "blue"})


def test_entries_that_do_not_say_what_is_scored_are_scored_whole(gym):
    data = dataset(gym, seed=0)
    entry = data[0]
    del entry["metadata"]["scored"]
    assert data.score_answer(entry["answer"], entry) == 1.0
    assert data.score_answer("[0, 0, 0, 9]", entry) == 0.0


@pytest.mark.parametrize("split", ["train", "ood"])
def test_without_permutation_all_columns_show_one_order(gym, split: str):
    """In any split, and the instance stays the same but for the order."""
    item, permuted = (dataset(gym, split=split, seed=0, permuted=p)[5] for p in (False, True))
    assert "All panels show the features in the same order." in item["question"]
    assert item["answer"] == permuted["answer"]
    assert item["metadata"]["difficulty"] == permuted["metadata"]["difficulty"] | {
        "permuted": False
    }
    (order,) = set(item["metadata"]["permutations"])
    assert order == permuted["metadata"]["permutations"][-1]
    for c, shown in enumerate(permuted["metadata"]["permutations"]):
        for before, after in zip(
            permuted["metadata"]["panels"], item["metadata"]["panels"], strict=True
        ):
            assert dict(zip(shown, before[c], strict=True)) == dict(
                zip(order, after[c], strict=True)
            )


def test_every_level_of_the_curriculum_is_a_dataset_and_the_last_the_hardest(gym):
    attributes = gym.SravenCurriculum().attributes
    assert attributes.keys() == {"num_features", "num_values", "rules", "permuted"}
    levels = {name: one.levels for name, one in attributes.items()}
    for name, values in levels.items():
        for value in values:
            easiest = {other: settings[0] for other, settings in levels.items()}
            data = dataset(gym, split="ood", seed=0, **(easiest | {name: value}))
            assert data.score_answer(data[0]["answer"], data[0]) == 1.0
    assert levels["rules"][-1] == SravenConfig().rules
    assert all(set(a) < set(b) for a, b in itertools.pairwise(levels["rules"]))


def test_distractors_are_not_scored(gym):
    data = dataset(gym, seed=0, num_distractors=2)
    entry = data[3]
    assert entry["metadata"]["rules"].count("distractor") == 2
    assert "The other 2 are distractors" in entry["question"]
    answer, scored = entry["metadata"]["panels"][-1][-1], entry["metadata"]["scored"]
    assert scored.count(False) == 2
    guess = [v if s else (v + 1) % 8 for v, s in zip(answer, scored, strict=True)]
    assert data.score_answer(str(guess), entry) == 1.0
    guess[scored.index(True)] = (answer[scored.index(True)] + 1) % 8
    assert data.score_answer(str(guess), entry) == 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "odd"}, "did you mean 'ood'"),
        ({"size": 0}, "size must be at least 1"),
        ({"num_features": 1}, "num_features must be at least 2"),
        ({"rules": ["constnt"]}, "did you mean 'constant'"),
    ],
)
def test_settings_are_checked(gym, settings: dict, message: str):
    with pytest.raises(ValueError, match=message):
        dataset(gym, **settings)


@pytest.mark.skipif(INSTALLED, reason="reasoning-gym is installed")
def test_without_the_package_the_error_names_the_extra():
    with pytest.raises(ImportError, match=r"hyla\[reasoning-gym\]"):
        importlib.import_module(MODULE)


@pytest.mark.skipif(not INSTALLED, reason="needs reasoning-gym")
def test_with_the_real_package(gym):
    reasoning_gym = importlib.import_module("reasoning_gym")
    from reasoning_gym.dataset import ReseedingDataset  # pyright: ignore[reportMissingImports]

    data = reasoning_gym.create_dataset("sraven", split="ood", seed=4, size=6)
    items = list(data)
    assert len(data) == len(items) == 6
    assert all(data.score_answer(item["answer"], item) == 1.0 for item in items)
    curriculum = reasoning_gym.factory.create_curriculum("sraven")
    easiest = curriculum.generate_configuration({"split": "ood", "seed": 1, "size": 3})
    assert (easiest.num_features, easiest.permuted, easiest.split) == (2, False, "ood")
    assert curriculum.increment_global_level()
    harder = curriculum.generate_configuration()
    assert (harder.num_features, harder.num_values, harder.permuted) == (3, 8, True)
    assert len(harder.rules) > len(easiest.rules)
    endless = iter(ReseedingDataset(data, chunk_size=3))
    questions = [next(endless)["question"] for _ in range(12)]
    assert len(set(questions)) == 12
