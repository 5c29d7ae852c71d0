"""A plug-in as a user may write it: a task, an attention preset and a rule for SRAVEN."""
# Plain values where `Task` has properties, as the how-to does it.
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false

import itertools
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from hyla.attention import AttentionSpec, register_attention
from hyla.tasks import Batch, Manifest, Sampler, Task, register_task
from hyla.tasks.base import pick_combinations, stack_combinations
from hyla.tasks.randomness import RandomStream, counters, random_words, to_integers
from hyla.tasks.splits import split_combinations
from hyla.tasks.sraven import Prescription, rule

SIDES = {"train": "train", "validation": "train", "test": "train", "ood": "ood"}


@dataclass(frozen=True, kw_only=True)
class SumsConfig:
    numbers: int = 7
    """How many numbers there are."""
    offset: int = field(default=0, metadata={"later": True})
    """What is added to every sum."""


class Right:
    headline = "share_right"

    def loss(self, logits, batch):
        return F.cross_entropy(logits[:, -1], batch.targets[:, 0])

    def sums(self, logits, batch):
        right = (logits[:, -1].argmax(-1) == batch.targets[:, 0]).float()
        return {"instances": torch.ones_like(right).sum(), "share_right": right.sum()}

    def finish(self, sums):
        return {"share_right": sums["share_right"] / sums["instances"]}


@register_task("sums")
class Sums(Task):
    """Add two numbers, in pairs that training does not show."""

    config_class = SumsConfig
    presets = {"smoke": {"task": {"numbers": 5}, "steps": 6}}  # noqa: RUF012
    objective = Right()
    splits = tuple(SIDES)
    sequence_length = 2
    num_queries = 1

    @property
    def input_dim(self):
        return self.config.numbers

    @property
    def output_dim(self):
        return self.config.numbers

    def manifest(self, seed):
        pairs = list(itertools.combinations(range(self.config.numbers), 2))
        split = split_combinations(pairs, held_out_fraction=0.3, seed=seed)
        names = tuple(map(str, range(self.config.numbers)))
        sides = {"train": split.train, "ood": split.held_out}
        return Manifest(task="sums", seed=seed, constituents=names, sides=sides)

    def _build_sampler(self, split, *, seeds, batch_size, device):
        manifests = [self.manifest(seed) for seed in seeds]
        table = stack_combinations(manifests, SIDES[split], device=device)
        stream = RandomStream(seeds=seeds, name=f"sums/{split}", device=device)
        return SumsSampler(self.config, table, stream, batch_size=batch_size, device=device)


class SumsSampler(Sampler):
    def __init__(self, config, table, stream, *, batch_size, device):
        super().__init__(batch_size=batch_size, device=device)
        self.config, self.table, self.stream = config, table, stream
        self.counter = counters(0, 1, device=device)

    def __call__(self, index):
        words = random_words(self.stream.keys(self._instance_numbers(index)), self.counter)
        pairs = pick_combinations(self.table, to_integers(words, self.table.shape[1]))
        sums = (pairs.sum(-1, keepdim=True) + self.config.offset) % self.config.numbers
        return Batch(F.one_hot(pairs, self.config.numbers).float(), sums, pairs)


def unit_length(scores, mask, eps):
    return scores / (scores.norm(dim=-3, keepdim=True) + eps)


register_attention("unit", AttentionSpec(normalisation=unit_length, value="hidden"))


def is_bracket(context):
    first, *_, last = context.columns
    return Prescription(fits=(first[:-1] == last).all(0), value=first[-1])


@rule("bracket", inverse=is_bracket, count=lambda values, size: values ** (size * (size - 1)))
def bracket(draws):
    return torch.cat([draws.free[:-1], draws.free[:1]])
