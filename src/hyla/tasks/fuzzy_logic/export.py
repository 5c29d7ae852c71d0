"""Fuzzy logic as Parquet files, with a datasheet beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from hyla import __version__
from hyla.tasks.fuzzy_logic.task import FuzzyLogic, FuzzyLogicConfig
from hyla.tasks.parquet_folder import (
    ADDRESS_TYPES,
    Export,
    Rows,
    addresses,
    columns_of_page,
    head_of_page,
    named_lists,
    nested_lists,
    pa,
)
from hyla.tasks.study import as_numpy

_SPLITS_IN_WORDS = {
    "train": "combinations of the training side",
    "validation": "new instances of the training side's combinations, to choose settings by",
    "test": "new instances of the training side's combinations",
    "ood": "combinations of known terms that training never shows",
    "unknown_terms": "combinations of terms that never occur in training",
    "test_fixed_context": "as `test`, all at the same examples' points",
    "test_fixed_query": "as `test`, all at the same query point",
    "ood_fixed_context": "as `ood`, all at the same examples' points",
    "ood_fixed_query": "as `ood`, all at the same query point",
}


@dataclass(frozen=True, kw_only=True)
class FuzzyExport(Export):
    """What to export of fuzzy logic."""

    name = "fuzzy"
    config: FuzzyLogicConfig

    @property
    def task(self) -> FuzzyLogic:
        """The task with these settings."""
        return FuzzyLogic(self.config)

    def describe(self) -> dict[str, Any]:
        """These settings with what follows from them, for JSON: also the term of each number."""
        return super().describe() | {"terms": list(self.manifest.constituents)}

    def column_types(self) -> dict[str, pa.DataType]:
        """Examples and query with their values, and what the function is made of."""
        config = self.config
        return {
            "examples": pa.list_(
                pa.list_(pa.float32(), config.num_variables + 1), config.sequence_length - 1
            ),
            "query": pa.list_(pa.float32(), config.num_variables),
            "value": pa.float32(),
            "terms": pa.list_(pa.string(), config.num_terms),
            **ADDRESS_TYPES,
        }

    def page(self) -> str:
        """The datasheet as Markdown."""
        return _page(self)

    def open_split(self, split: str, batch_size: int, device: torch.device | str) -> Rows:
        """The instances of a split."""
        sampler = self.task.sampler(split, seeds=[self.seed], batch_size=batch_size, device=device)
        names = self.manifest.constituents

        def rows(number: int, count: int) -> dict[str, pa.Array]:
            tokens, values, terms = (field[0, :count] for field in sampler(number))
            return {
                "examples": nested_lists(tokens[:, :-1]),
                "query": nested_lists(tokens[:, -1, :-1]),
                "value": pa.array(as_numpy(values[:, -1])),
                "terms": named_lists(names, terms),
                **addresses(split, self.seed, number * batch_size, count),
            }

        return rows


def _page(settings: FuzzyExport) -> str:
    config, splits, manifest = settings.config, settings.splits, settings.manifest
    sides = {name: len(combinations) for name, combinations in manifest.sides.items()}
    known = math.comb(config.num_known_terms, config.num_terms)
    meanings = {
        "examples": f"{config.sequence_length - 1} points, each of {config.num_variables} variables"
        " in [0, 1) and the function's value there",
        "query": "the point that is asked for",
        "value": "the function's value at the query: what is to be predicted",
        "terms": "the function's terms",
        "split": "name of the split",
        "seed": "seed of the instances, and of which combinations are held out",
        "index": "number of the instance; with split and seed its address in hyla",
    }
    return f"""{head_of_page("Fuzzy logic", splits)}

# Fuzzy logic functions, inferred in context

## What it is

From the paper "Attention as a Hypernetwork". A function is an *or* (the largest) of
{config.num_terms} terms; a term is an *and* (the smallest) of {config.num_variables} variables,
some of them negated (1 - x). From {config.sequence_length - 1} points with the function's values,
its value at one more point is to be predicted.

## How it was generated

By hyla {__version__}, from seed {settings.seed}. No person and no collected data is involved. Every
instance is a pure function of these settings and (split, seed, index). Points are uniform, and the
combination of terms is drawn uniformly from those of the split.

## Splits

{settings.instances:,} instances each. The split is compositional: {config.num_known_terms} of the
{len(manifest.constituents)} terms are known, and of their {known:,} combinations of
{config.num_terms}, training shows {sides["train"]:,}; {sides["ood"]:,} are held out.
{_unknown_in_words(settings)} The SHA-256 of the lists is
`{manifest.hash}`; the lists are in `export.json`, which
counts terms from 0 in the order of its list `terms`.

{chr(10).join(f"- `{split}`: {_SPLITS_IN_WORDS[split]}" for split in splits)}

## Columns

{columns_of_page(settings.schema(), meanings)}

The configuration and the hash are also in the metadata of each file's schema, under `hyla.fuzzy`.

```python
import datasets

problems = datasets.load_dataset("parquet", data_files="data/{splits[0]}-*.parquet")
```

## Score

R², instance by instance: 1 less the squared error at the query over the variance of the function's
values at all of the instance's points, the query's included; then the mean.

## Licence

MIT, as hyla.
"""


def _unknown_in_words(settings: FuzzyExport) -> str:
    config, number = settings.config, len(settings.manifest.sides["unknown_terms"])
    if not number:
        return f"The other {config.num_unknown_terms} occur nowhere: too few for a combination."
    return (
        f"Combinations of the other {config.num_unknown_terms}, {number:,} in number, are the "
        "split `unknown_terms`."
    )
