"""Everything that there is to know about the latent codes of one trained network, as tables."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import nn

from hyla._errors import check_choice
from hyla._optional import required
from hyla.latents.capture import record_codes
from hyla.latents.measures.geometry import (
    cosine_similarities,
    distance_table,
    embedding_table,
    mean_codes,
    sample_codes,
)
from hyla.latents.measures.probe import decoding_table
from hyla.latents.measures.swap_tables import head_table, swap_matrix, swap_table
from hyla.latents.measures.swaps import Swaps
from hyla.latents.table import CodeTable
from hyla.tasks.study import Study

if TYPE_CHECKING:
    import pandas

_BATCH = 1024
_MATRIX_CODES = ("donor", "donor, same operands", "counterfactual", "operation mean")


class Analysis:
    """A network under study; its tables are computed when they are asked for.

    Args:
        model: a network that learned the study's task.
        study: what to look at.
        seed: that of the model's data, which decides which compositions are known.
        untrained: a network of the same shape with its initial weights, as a control.
        pairs: name of the pairs whose codes are looked at; the study's first by default. Decoding
            and swaps take all.
        instances: how many to look at; decoding takes twice as many.
    """

    def __init__(
        self,
        model: nn.Module,
        study: Study,
        *,
        seed: int,
        untrained: nn.Module | None = None,
        pairs: str | None = None,
        instances: int = 2048,
    ):
        if pairs is not None:
            check_choice("pairs", pairs, study.pairs)
        self.model, self.study, self.untrained = model, study, untrained
        self.seed, self.instances = seed, instances
        self.pairs = pairs or next(iter(study.pairs))

    @cached_property
    def codes(self) -> CodeTable:
        """The codes of unseen compositions, labelled."""
        return self.codes_of(self.study.unseen)

    def codes_of(self, split: str) -> CodeTable:
        """Record the codes of a split."""
        device = next(self.model.parameters()).device
        specimens = self.study.sample(
            split, seed=self.seed, instances=self.instances, device=device
        )
        return record_codes(
            self.model,
            specimens.inputs.split(_BATCH),
            pairs=self.study.pairs[self.pairs],
            labels=specimens.labels,
        )

    def table(self, name: str) -> "pandas.DataFrame":
        """Compute one of `TABLES`."""
        check_choice("table", name, TABLES)
        return TABLES[name](self)

    def _decoding(self) -> "pandas.DataFrame":
        return decoding_table(
            self.model,
            self.study,
            seed=self.seed,
            untrained=self.untrained,
            instances=2 * self.instances,
        )

    def _swaps(self) -> "pandas.DataFrame":
        tables = [
            swap_table(self._swaps_of(split, pairs))
            for split in self.study.swapped
            for pairs in self.study.pairs
        ]
        return required("pandas").concat(tables, ignore_index=True)

    def _swap_matrix(self) -> "pandas.DataFrame":
        """Of all layers together, for the pairs under study and for all keys of the query."""
        tables = []
        _, unseen = self.study.swapped
        for pairs in dict.fromkeys((self.pairs, *list(self.study.pairs)[-1:])):
            swaps = self._swaps_of(unseen, pairs)
            tables += [
                swap_matrix(swaps, code=code) for code in _MATRIX_CODES if code in swaps.kinds
            ]
        return required("pandas").concat(tables, ignore_index=True)

    def _heads(self) -> "pandas.DataFrame":
        _, unseen = self.study.swapped
        return head_table(self._swaps_of(unseen, self.pairs))

    def _swaps_of(self, split: str, pairs: str) -> Swaps:
        return Swaps(
            self.model,
            self.study,
            seed=self.seed,
            split=split,
            pairs=pairs,
            instances=self.instances,
        )


TABLES: Mapping[str, Callable[[Analysis], Any]] = {
    "embedding": lambda of: embedding_table(of.codes, seed=of.seed),
    "mean_codes": lambda of: mean_codes(of.codes, of.study.operation),
    "sample_codes": lambda of: sample_codes(of.codes, of.study.operation),
    "similarity": lambda of: cosine_similarities(of.codes, of.study.operation),
    "distances": lambda of: distance_table(of.codes, of.study.operation),
    "decoding": Analysis._decoding,
    "swaps": Analysis._swaps,
    "swap_matrix": Analysis._swap_matrix,
    "heads": Analysis._heads,
}
"""The tables by name; `hyla latents` draws a figure of each."""
