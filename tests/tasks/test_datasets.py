"""Tasks as PyTorch datasets: the sampler's instances, in any number of workers, resumable."""

import itertools
import re

import pytest
import torch
from torch.utils.data import DataLoader

from hyla.tasks import Batch, FuzzyLogic, FuzzyLogicConfig, Sraven, SravenConfig
from hyla.tasks.datasets import TaskDataset, fuzzy_dataset, sraven_dataset
from hyla.tasks.sraven.variants import INSTANCES, variant_named

# Workers are as many as they are here, however few cores there may be.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SMALL = FuzzyLogicConfig(num_variables=3, sequence_length=6, held_out_fraction=0.3)
MAKERS = {
    "sraven": lambda: sraven_dataset("paper", "train", instances=50),
    "unambiguous": lambda: sraven_dataset("unambiguous", "train", instances=50),
    "fuzzy": lambda: fuzzy_dataset("train", SMALL, instances=50),
}
TASKS = {
    "sraven": Sraven(SravenConfig()),
    "unambiguous": Sraven(SravenConfig(unambiguous=True)),
    "fuzzy": FuzzyLogic(SMALL),
}


def same(one: Batch, other: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture(params=MAKERS)
def name(request) -> str:
    return request.param


def test_instances_are_those_of_the_sampler(name):
    dataset = MAKERS[name]()
    want = TASKS[name].batch("train", seed=0, index=2, batch_size=8)
    assert len(dataset) == 50
    for row in (0, 7):
        assert same(dataset[16 + row], Batch(*(field[row] for field in want)))
    assert same(dataset[-1], dataset[49])


def test_a_loader_shuffles_them_and_collates_batches(name):
    dataset = MAKERS[name]()
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(dataset, batch_size=16, shuffle=True, generator=generator, num_workers=2)
    batches = list(loader)
    assert [len(batch.targets) for batch in batches] == [16, 16, 16, 2]
    assert isinstance(batches[0], Batch)
    everything = torch.cat([batch.inputs.flatten(1) for batch in batches])
    whole = dataset.batch(torch.arange(50)).inputs.flatten(1)
    assert not torch.equal(everything, whole)
    # Each instance once: the same rows in another order.
    assert sorted(everything.tolist()) == sorted(whole.tolist())


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stream_is_the_same_however_many_workers_there_are(workers, name):
    dataset = MAKERS[name]()
    batches = list(DataLoader(dataset.stream(8), batch_size=None, num_workers=workers))
    assert len(batches) == len(dataset.stream(8)) == 7
    for index, batch in enumerate(batches[:-1]):
        assert same(batch, TASKS[name].batch("train", seed=0, index=index, batch_size=8))
    assert len(batches[-1].targets) == 2
    assert same(batches[-1], dataset.batch(torch.arange(48, 50)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_on_where_it_was(workers):
    dataset = MAKERS["sraven"]()
    whole = list(dataset.stream(8))
    loader = dataset.stream(8).loader(num_workers=workers)
    taken = list(itertools.islice(loader, 3))
    state = loader.state_dict()
    assert state == {"next_batch": 3, "batch_size": 8}  # however many the workers have ready
    other = dataset.stream(8).loader(num_workers=workers)
    other.load_state_dict(state)
    for rest in (list(loader), list(other)):
        assert len(taken) + len(rest) == len(whole)
        assert all(same(a, b) for a, b in zip([*taken, *rest], whole, strict=True))
    assert all(same(a, b) for a, b in zip(loader, whole, strict=True))  # from the front again


def test_seeds_have_instances_of_their_own_and_the_variant_s_combinations():
    one, other = (sraven_dataset("trained1", "train", seed=s, instances=256) for s in (0, 1))
    everything = torch.arange(256)
    assert not same(one.batch(everything), other.batch(everything))
    trained = set(variant_named("trained1").task.manifest(0).sides["train"])
    for dataset in (one, other):
        labels = dataset.batch(everything).labels.sort(-1).values
        assert {tuple(row) for row in labels.tolist()} == trained


def test_the_evaluation_split_is_that_of_the_leaderboard():
    dataset = sraven_dataset("longer", "ood")
    assert len(dataset) == INSTANCES
    panels = variant_named("longer").evaluation().panels
    assert torch.equal(dataset.batch(torch.arange(100)).targets, panels[:100, -1, -1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sraven_dataset("papr", "train"), "did you mean 'paper'?"),
        (lambda: sraven_dataset("paper", "tran"), "did you mean 'train'?"),
        (lambda: fuzzy_dataset("train", instances=0), "instances must be at least 1"),
        (lambda: TaskDataset(TASKS["fuzzy"], "train", instances=2**33), "4294967296 instances"),
        (lambda: MAKERS["fuzzy"]().stream(0), "batch_size must be at least 1"),
        (
            lambda: MAKERS["fuzzy"]().stream(8).loader(num_workers=1, persistent_workers=True),
            "would not hear where to resume",
        ),
        (lambda: MAKERS["fuzzy"]().stream(8).loader(in_order=False), "in_order=False loses count"),
        (
            lambda: (
                MAKERS["fuzzy"]()
                .stream(8)
                .loader()
                .load_state_dict({"next_batch": 1, "batch_size": 4})
            ),
            "the state is of batches of 4",
        ),
    ],
)
def test_mistakes_are_told(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_a_number_beyond_the_end_is_an_index_error():
    with pytest.raises(IndexError, match="there are 50 instances, got number 50"):
        MAKERS["fuzzy"]()[50]
