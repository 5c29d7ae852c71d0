"""How well a model predicts text it has not seen."""

import math
from collections.abc import Callable

import numpy as np
import torch

from hyla.tasks.language import Corpus, Windows
from hyla.training.run.ranks import Ranks


class Validation:
    """The first sequences of the validation text, shared out among the ranks."""

    def __init__(self, corpus: Corpus, *, sequence_length: int, ranks: Ranks):
        self._windows = Windows(corpus.tokens("validation"), sequence_length)
        self._bytes_per_token = corpus.bytes_per_token("validation")
        self._ranks = ranks

    @torch.no_grad()
    def metrics(
        self,
        losses: Callable[[torch.Tensor], torch.Tensor],
        sequences: int,
        *,
        batch_size: int,
        before_batch: Callable[[], None] = lambda: None,
    ) -> dict[str, float]:
        """Return loss (nats a token), perplexity and bits per byte of `sequences` sequences.

        `losses` gives the sums of the losses of each sequence of a batch.
        """
        total = min(sequences, self._windows.count)
        nats = torch.zeros((), dtype=torch.float64, device=self._ranks.device)
        stride = batch_size * self._ranks.size
        for start in range(0, total, stride):
            before_batch()
            first = start + self._ranks.rank * batch_size
            numbers = np.arange(first, first + batch_size)
            # Every rank takes part in every round, as parts of a model have to be gathered; what
            # lies beyond the end counts for nothing.
            counted = torch.from_numpy(numbers < total).to(self._ranks.device)
            tokens = torch.from_numpy(self._windows.read(np.where(numbers < total, numbers, 0)))
            nats += (losses(tokens.to(self._ranks.device)) * counted).sum()
        loss = float(self._ranks.sum(nats)) / (total * self._windows.length)
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "bits_per_byte": loss / math.log(2) / self._bytes_per_token,
        }
