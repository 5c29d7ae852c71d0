"""Multi-query associative recall, after zoology's (Arora et al., 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from jaxtyping import Int64
from torch import Tensor

from hyla._errors import check_positive
from hyla.tasks.base import Batch, Manifest, Sampler, Task
from hyla.tasks.randomness import Keys, RandomStream, counters, random_words, to_integers
from hyla.tasks.recall.objective import NOT_ASKED, Recalled
from hyla.tasks.registry import register_task


@dataclass(frozen=True, kw_only=True)
class RecallConfig:
    """Size of associative recall."""

    pairs: int = 8
    """Pairs of a key and its value, each asked for once."""
    length: int = 64
    """Tokens: the pairs, the keys asked for, and values at random between these."""
    vocabulary: int = 128
    """Different tokens: the first half are keys, the second half values."""

    def __post_init__(self) -> None:
        check_positive(pairs=self.pairs, length=self.length, vocabulary=self.vocabulary)
        if self.vocabulary % 2 or self.vocabulary < 4:
            raise ValueError(
                f"vocabulary must be even and at least 4, half keys and half values, got "
                f"{self.vocabulary}"
            )
        if self.pairs > self.num_keys:
            raise ValueError(
                f"pairs must be at most {self.num_keys}, the keys of vocabulary={self.vocabulary}, "
                f"got {self.pairs}"
            )
        if self.length < 3 * self.pairs:
            raise ValueError(
                f"length must be at least {3 * self.pairs}, which {self.pairs} pairs and their "
                f"questions take, got {self.length}"
            )

    @property
    def num_keys(self) -> int:
        """As many as there are values."""
        return self.vocabulary // 2

    @property
    def num_later(self) -> int:
        """Tokens after the pairs."""
        return self.length - 2 * self.pairs


@register_task("recall")
class Recall(Task[Sampler]):
    """Recall the values of keys: `k1 v1 k2 v2 …`, then the keys once more, among random values.

    Keys of an instance are different, values need not be. After the pairs every key is asked for
    once, at a random place and in random order; at the places between stand random values. Models
    are to be causal, as their presets are: what follows a question is no answer to it.

    Batches:
      - `inputs` [B, length, vocabulary]: one-hot tokens.
      - `targets` [B, length - 2 · pairs]: the value asked for at each place after the pairs, as a
        number from 0; -1 where nothing is asked.
      - `labels` [B, pairs]: the keys.

    Splits: `train`, `validation` and `test`, which differ in their instances alone: nothing is
    composed here, and so nothing is held out.
    """

    title = "associative recall"
    config_class = RecallConfig
    presets = Path(__file__).with_name("presets.yaml")
    searched = MappingProxyType({"learning_rate": (1e-3, 3e-3)})

    def __init__(self, config: RecallConfig | None = None) -> None:
        self.config = config or RecallConfig()

    @property
    def objective(self) -> Recalled:
        """Cross-entropy; the score is the share of values that is recalled."""
        return Recalled()

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return ("train", "validation", "test")

    @property
    def input_dim(self) -> int:
        """A token is one-hot over the vocabulary."""
        return self.config.vocabulary

    @property
    def output_dim(self) -> int:
        """Logits over the values."""
        return self.config.num_keys

    @property
    def sequence_length(self) -> int:
        """Number of tokens."""
        return self.config.length

    @property
    def num_queries(self) -> int:
        """Any place after the pairs may ask."""
        return self.config.num_later

    def manifest(self, seed: int) -> Manifest:
        """No combination is held out: there is one side, of all."""
        return Manifest(task="recall", seed=seed, constituents=(), sides={"train": ()})

    def _build_sampler(
        self, split: str, *, seeds: Sequence[int], batch_size: int, device: torch.device | str
    ) -> Sampler:
        stream = RandomStream(seeds=seeds, name=f"recall/{split}", device=device)
        return _RecallSampler(self.config, stream, batch_size=batch_size, device=device)


class _RecallSampler(Sampler):
    def __init__(
        self,
        config: RecallConfig,
        stream: RandomStream,
        *,
        batch_size: int,
        device: torch.device | str,
    ) -> None:
        super().__init__(batch_size=batch_size, device=device)
        self._config, self._stream = config, stream
        # The random words of an instance: an order of all keys, the values of the pairs, an order
        # of the places after them, and what stands at these.
        self._sizes = [config.num_keys, config.pairs, config.num_later, config.num_later]
        self._counters = counters(0, sum(self._sizes), device=device)
        self._tokens = torch.arange(config.vocabulary, device=device)

    def __call__(self, index: int | Int64[Tensor, ""]) -> Batch:
        keys_of = self._stream.keys(self._instance_numbers(index))
        addresses = Keys(*(key.unsqueeze(-1) for key in keys_of))
        parts = random_words(addresses, self._counters).split(self._sizes, dim=-1)
        pairs, values_from = self._config.pairs, self._config.num_keys
        # Sorting random numbers shuffles, in one step however many there are.
        keys, places = (
            words.argsort(dim=-1, stable=True)[..., :pairs] for words in (parts[0], parts[2])
        )
        values, noise = (to_integers(words, values_from) for words in (parts[1], parts[3]))
        later = (values_from + noise).scatter(-1, places, keys)
        tokens = torch.cat(
            [torch.stack([keys, values_from + values], dim=-1).flatten(-2), later], dim=-1
        )
        return Batch(
            inputs=(tokens.unsqueeze(-1) == self._tokens).to(torch.float32),
            targets=torch.full_like(later, NOT_ASKED).scatter(-1, places, values),
            labels=keys,
        )
