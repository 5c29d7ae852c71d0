"""Fuzzy logic as Parquet files, with a datasheet beside them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hyla import __version__
from hyla.tasks import parquet_folder
from hyla.tasks.fuzzy_logic.task import FuzzyLogic, FuzzyLogicConfig, term_name
from hyla.tasks.parquet_folder import (
    ADDRESS_TYPES,
    SHARD_SIZE,
    ParquetDataset,
    Rows,
    addresses,
    as_numpy,
    check_extent,
    columns_of_page,
    head_of_page,
    named_lists,
    nested_lists,
    pa,
    write_dataset,
)

FORMAT = "hyla-fuzzy-export-1"
_SCHEMA_KEY = b"hyla.fuzzy"
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
class ExportConfig:
    """What to export: the first `instances` of each split, as the seed makes them."""

    config: FuzzyLogicConfig
    splits: tuple[str, ...]
    instances: int
    seed: int = 0
    shard_size: int = SHARD_SIZE
    """Instances in a file."""

    def __post_init__(self) -> None:
        check_extent(FuzzyLogic(self.config), self.splits, self.instances, self.shard_size)

    def describe(self) -> dict[str, Any]:
        """These settings with what follows from them, for JSON."""
        return {
            "format": FORMAT,
            "hyla_version": __version__,
            "config": dataclasses.asdict(self.config),
            "splits": list(self.splits),
            "instances_per_split": self.instances,
            "seed": self.seed,
            "manifest_hash": FuzzyLogic(self.config).manifest(self.seed).hash,
        }


def export(
    out: Path,
    settings: ExportConfig,
    *,
    device: torch.device | str = "cpu",
    on_progress: Callable[[int], None] = lambda instances: None,
) -> list[Path]:
    """Write the dataset to the folder `out` and return its Parquet files.

    An earlier export in `out` is replaced; anything else there is a ValueError. `on_progress` is
    called with the number of instances written since its last call.
    """
    sides = FuzzyLogic(settings.config).manifest(settings.seed).sides
    dataset = ParquetDataset(
        schema=schema(settings),
        splits=settings.splits,
        instances=settings.instances,
        shard_size=settings.shard_size,
        open_split=partial(_open_split, settings, device),
        summary={**settings.describe(), "combinations": sides},
        page=_page(settings),
    )
    return write_dataset(out, dataset, on_progress=on_progress)


def check_destination(out: Path) -> None:
    """Raise a ValueError unless `out` is free, empty, or an earlier export and nothing more."""
    parquet_folder.check_destination(out, FORMAT)


def schema(settings: ExportConfig) -> pa.Schema:
    """The columns and their types; the description of the dataset is in the metadata."""
    config = settings.config
    types: dict[str, pa.DataType] = {
        "examples": pa.list_(
            pa.list_(pa.float32(), config.num_variables + 1), config.sequence_length - 1
        ),
        "query": pa.list_(pa.float32(), config.num_variables),
        "value": pa.float32(),
        "terms": pa.list_(pa.string(), config.num_terms),
        **ADDRESS_TYPES,
    }
    fields = [pa.field(name, kind, nullable=False) for name, kind in types.items()]
    return pa.schema(fields, metadata={_SCHEMA_KEY: json.dumps(settings.describe()).encode()})


def _open_split(
    settings: ExportConfig, device: torch.device | str, split: str, batch_size: int
) -> Rows:
    config = settings.config
    sampler = FuzzyLogic(config).sampler(
        split, seeds=[settings.seed], batch_size=batch_size, device=device
    )
    names = [term_name(term, config.num_variables) for term in range(2**config.num_variables)]

    def rows(number: int, count: int) -> dict[str, pa.Array]:
        tokens, values, terms = (field[0, :count] for field in sampler(number))
        return {
            "examples": nested_lists(tokens[:, :-1]),
            "query": nested_lists(tokens[:, -1, :-1]),
            "value": pa.array(as_numpy(values[:, -1])),
            "terms": named_lists(names, terms),
            **addresses(split, settings.seed, number * batch_size, count),
        }

    return rows


def _page(settings: ExportConfig) -> str:
    """The datasheet as Markdown."""
    config, splits = settings.config, settings.splits
    manifest = FuzzyLogic(config).manifest(settings.seed)
    sides = {name: len(combinations) for name, combinations in manifest.sides.items()}
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

{settings.instances:,} instances each. The split is compositional: of the combinations of known
terms, training shows {sides["train"]}; {sides["ood"]} are held out. The SHA-256 of the lists is
`{manifest.hash}`; the lists are in `export.json`.

{chr(10).join(f"- `{split}`: {_SPLITS_IN_WORDS[split]}" for split in splits)}

## Columns

{columns_of_page(schema(settings), meanings)}

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
