"""Models as `hyla train` begins with them, and how large their branches are then."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hyla.nn import BranchScales, Transformer, TransformerConfig, branch_scales
from hyla.nn.decoders import decoder_config
from hyla.tasks.language import Corpus, TrainingOrder, Windows
from hyla.tasks.language.tokenizer import VOCAB_SIZE
from hyla.training.config import config_from_tree, load_preset, merge
from hyla.training.devices import resolve_device
from hyla.training.language.config import language_config_from_tree, load_language_preset
from hyla.training.run.branches import INSTANCES

_SEQUENCES = 4  # of a language model: thousands of tokens, and a large model need not take minutes


class Start(NamedTuple):
    """A model before its first step, and a batch for it."""

    model: TransformerConfig
    seed: int
    batch: Tensor

    def branch_scales(self) -> list[BranchScales]:
        """Return the scales in its blocks, computed on the GPU if there is one."""
        device = resolve_device("auto")
        model = Transformer(self.model)
        model.reset_parameters(torch.Generator().manual_seed(self.seed))
        return branch_scales(model.to(device).eval(), self.batch.to(device))


def start_of_task(task: str, scale: str, attention: str) -> Start:
    """Return the first model of a task's preset, with this attention."""
    config = config_from_tree(merge(load_preset(task, scale), {"model": {"attention": attention}}))
    seed = config.members[0].seed
    size = min(INSTANCES, config.batch_size)
    batch = config.build_task().batch("train", seed=seed, index=0, batch_size=size)
    return Start(config.model, seed, batch.inputs)


def start_of_language(
    scale: str, attention: str, *, size: str | None = None, data: Path | None = None
) -> Start:
    """Return a language model of the preset, or of another size, on a corpus or random tokens."""
    changes: dict[str, Any] = {"model": {"attention": attention}}
    tree = merge(load_language_preset(scale), changes | ({} if size is None else {"size": size}))
    seed = tree["member"]["seed"]
    if data is None:
        model = decoder_config(tree["size"], vocab_size=VOCAB_SIZE, **tree["model"])
        shape = (_SEQUENCES, model.sequence_length)
        drawn = torch.randint(VOCAB_SIZE, shape, generator=torch.Generator().manual_seed(seed))
        return Start(model, seed, drawn)
    corpus = Corpus.open(data)
    config = language_config_from_tree(tree, corpus)
    windows = Windows(corpus.tokens("train"), config.model.sequence_length)
    tokens = TrainingOrder(windows, batch_size=config.batch_size, seed=seed).batch(0)
    return Start(config.model, seed, torch.from_numpy(tokens[:_SEQUENCES, :-1]))
