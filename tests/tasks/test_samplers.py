"""What all samplers promise: purity, populations, separate streams, compilation, clear errors."""

import itertools

import pytest
import torch

from hyla.tasks import FuzzyLogic, FuzzyLogicConfig, Recall, Sraven, SravenConfig

TASKS = {
    "fuzzy logic": FuzzyLogic(FuzzyLogicConfig()),
    "sraven": Sraven(SravenConfig()),
    "sraven with blanks": Sraven(SravenConfig(train_features=(2, 3))),
    "recall": Recall(),
}

pytestmark = pytest.mark.parametrize("name", TASKS)


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_batch_is_a_pure_function_of_its_index(name):
    for split in TASKS[name].splits:
        sampler = TASKS[name].sampler(split, seeds=[5], batch_size=8)
        batch = sampler(3)
        sampler(4)
        assert equal(batch, sampler(3))
        assert equal(batch, sampler(torch.tensor(3)))
        assert equal(batch, TASKS[name].sampler(split, seeds=[5], batch_size=8)(3))
        assert not equal(batch, sampler(4))


def test_an_index_advanced_in_place_gives_the_next_batch(name):
    sampler = TASKS[name].sampler("train", seeds=[0], batch_size=8)
    index = torch.tensor(0)
    for expected in range(3):
        assert equal(sampler(index), sampler(expected))
        index.add_(1)


def test_a_member_does_not_depend_on_the_others(name):
    seeds = [3, 0, 11, 3]
    for split in TASKS[name].splits:
        together = TASKS[name].sampler(split, seeds=seeds, batch_size=8)(7)
        for member, seed in enumerate(seeds):
            alone = TASKS[name].batch(split, seed=seed, index=7, batch_size=8)
            assert equal(alone, [field[member] for field in together])
        assert equal([f[0] for f in together], [f[3] for f in together])
        assert not equal([f[0] for f in together], [f[1] for f in together])


def test_batches_of_any_size_tile_the_same_instances(name):
    small = TASKS[name].sampler("test", seeds=[0, 1], batch_size=4)
    large = TASKS[name].sampler("test", seeds=[0, 1], batch_size=12)(1)
    parts = [small(index) for index in (3, 4, 5)]
    assert equal(large, [torch.cat(fields, dim=1) for fields in zip(*parts, strict=True)])


def test_instances_can_be_had_by_their_numbers(name):
    sampler = TASKS[name].sampler("test", seeds=[0, 1], batch_size=4)
    numbers = torch.tensor([21, 3, 3, 2**31])
    by_number = sampler.at(numbers)
    single = TASKS[name].sampler("test", seeds=[0, 1], batch_size=1)
    one_by_one = [single(int(number)) for number in numbers]
    assert equal(by_number, [torch.cat(fields, dim=1) for fields in zip(*one_by_one, strict=True)])
    assert sampler(0).inputs.shape[1] == 4  # it is what it was


def test_splits_never_share_a_stream(name):
    batches = {
        split: TASKS[name].batch(split, seed=0, index=0, batch_size=64)
        for split in TASKS[name].splits
    }
    for (a, first), (b, second) in itertools.combinations(batches.items(), 2):
        agreement = (first.labels == second.labels).double().mean()
        assert agreement < 0.6, (a, b)
        assert not torch.equal(first.inputs, second.inputs), (a, b)


# PyTorch's own compiler still uses what PyTorch deprecates.
@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
def test_compiled_samplers_give_the_same_bits(name):
    sampler = TASKS[name].sampler("train", seeds=[0, 1], batch_size=10)
    compiled = torch.compile(sampler, fullgraph=True, dynamic=False)
    for index in (0, 1, 123_456):
        index = torch.tensor(index)
        assert equal(sampler(index), compiled(index))


def test_devices(name):
    sampler = TASKS[name].sampler("train", seeds=[0], batch_size=2, device="meta")
    batch = sampler(torch.empty((), dtype=torch.int64, device="meta"))
    assert {field.device.type for field in batch} == {"meta"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_same_bits_and_can_be_captured(name):
    for split in TASKS[name].splits:
        on_cpu = TASKS[name].sampler(split, seeds=[0, 1], batch_size=10)
        on_gpu = TASKS[name].sampler(split, seeds=[0, 1], batch_size=10, device="cuda")
        index = torch.zeros((), dtype=torch.int64, device="cuda")
        on_gpu(index)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            batch = on_gpu(index)
        for number in range(3):
            index.fill_(number)
            graph.replay()
            assert equal([field.cpu() for field in batch], on_cpu(number))


def test_unknown_split_names_the_nearest(name):
    with pytest.raises(ValueError, match=r"split 'tran' is unknown \(did you mean 'train'"):
        TASKS[name].sampler("tran", seeds=[0], batch_size=1)


@pytest.mark.parametrize("batch_size", [0, -3, 2.0])
def test_batch_size_must_be_positive(name, batch_size):
    with pytest.raises(ValueError, match=r"batch_size must be (at least 1|an integer)"):
        TASKS[name].sampler("train", seeds=[0], batch_size=batch_size)


def test_a_population_needs_seeds(name):
    with pytest.raises(ValueError, match="seeds must hold at least one seed"):
        TASKS[name].sampler("train", seeds=[], batch_size=1)


def test_wrong_indices_are_explained(name):
    sampler = TASKS[name].sampler("train", seeds=[0], batch_size=4)
    for index in (-1, 2**30):
        with pytest.raises(ValueError, match=rf"index must lie in \[0, {2**30}\).*got {index}"):
            sampler(index)
    sampler(2**30 - 1)
    for index in (torch.tensor([1]), torch.tensor(1.0)):
        with pytest.raises(ValueError, match="0-d int64 tensor, got a torch"):
            sampler(index)
