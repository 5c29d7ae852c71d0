"""SRAVEN as Parquet files, with a datasheet beside them.

`OUT/data/SPLIT-00000-of-00004.parquet` hold the instances, one a row, `OUT/README.md` says what
they are (and names the splits to `datasets.load_dataset`), `OUT/export.json` says the same to
programs. OUT appears all at once, when everything is written.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hyla import __version__
from hyla._errors import check_positive, install_command
from hyla.tasks.randomness import MAX_INSTANCES
from hyla.tasks.sraven.config import SravenConfig
from hyla.tasks.sraven.faces.datasheet import datasheet
from hyla.tasks.sraven.generator import Instances, Sraven, left_ambiguous
from hyla.tasks.sraven.problem import is_permuted
from hyla.tasks.sraven.solver.ambiguity import ambiguous_by_definition
from hyla.tasks.sraven.solver.exact import Solution, Solver
from hyla.tasks.sraven.variants import VARIANTS

try:
    import pyarrow as pa
    from pyarrow import parquet
except ImportError as error:
    raise ImportError(f"Parquet needs pyarrow: {install_command('tables')}") from error

FORMAT = "hyla-sraven-export-1"
_SUMMARY = "export.json"
_SCHEMA_KEY = b"hyla.sraven"
_BATCH = 2**15  # instances made at a time
_MOST_VALUES = 128  # what int8 can hold


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """What to export: the first `instances` of each split, as the seed makes them."""

    config: SravenConfig
    splits: tuple[str, ...]
    instances: int
    seed: int = 0
    labels: bool = True
    """Whether to solve each instance, for the columns about ambiguity."""
    shard_size: int = 2**18
    """Instances in a file."""

    def __post_init__(self) -> None:
        check_positive(instances=self.instances, shard_size=self.shard_size)
        for split in self.splits:
            Sraven(self.config).check_split(split)
        if len(set(self.splits)) != len(self.splits) or not self.splits:
            raise ValueError(f"splits must be a non-empty set of names, got {self.splits}")
        if self.instances > MAX_INSTANCES:
            raise ValueError(
                f"a split has {MAX_INSTANCES} instances for each seed, got {self.instances}"
            )
        if self.shard_size > _BATCH and self.shard_size % _BATCH:
            raise ValueError(
                f"shard_size must be a multiple of {_BATCH}, or less, got {self.shard_size}"
            )
        if self.config.num_values > _MOST_VALUES:
            raise ValueError(
                f"columns of int8 hold up to {_MOST_VALUES} values, got "
                f"num_values={self.config.num_values}"
            )
        if self.labels and not all(map(Sraven(self.config).is_readable, self.splits)):
            raise ValueError(
                "labels come from the solver, which knows neither distractors nor blanks: export "
                "without them (--no-labels)"
            )
        if self.labels:
            Solver(self.config)  # complains about sizes that it cannot solve

    def describe(self) -> dict[str, Any]:
        """These settings with what follows from them, for JSON."""
        manifest = Sraven(self.config).manifest(self.seed)
        description = {
            "format": FORMAT,
            "hyla_version": __version__,
            "config": dataclasses.asdict(self.config),
            "splits": list(self.splits),
            "instances_per_split": self.instances,
            "seed": self.seed,
            "labels": self.labels,
            "manifest_hash": manifest.hash,
        }
        names = (name for name, variant in VARIANTS.items() if variant.config == self.config)
        if variant := next(names, None):
            description["variant"] = variant
        if self.config.unambiguous:
            description["expected_ambiguous"] = {
                split: left_ambiguous(self.config, permuted=is_permuted(split))
                for split in self.splits
            }
        return description


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
    out = out.resolve()
    check_destination(out)
    unfinished = out.with_name(f".{out.name}.unfinished-{os.getpid()}")
    (unfinished / "data").mkdir(parents=True)
    try:
        names = [
            name
            for split in settings.splits
            for name in _write_split(unfinished, settings, split, device, on_progress)
        ]
        description = settings.describe()
        manifest = Sraven(settings.config).manifest(settings.seed)
        summary = {**description, "combinations": manifest.sides, "files": names}
        (unfinished / _SUMMARY).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        page = datasheet(description, schema(settings), _column_docs(settings), manifest)
        (unfinished / "README.md").write_text(page, encoding="utf-8")
        _put_in_place(unfinished, out)
    except BaseException:
        shutil.rmtree(unfinished)
        raise
    return [out / name for name in names]


def check_destination(out: Path) -> None:
    """Raise a ValueError unless `out` is free, empty, or an earlier export and nothing more."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"{out} is a file; the export needs a folder of its own")
    present = {str(path.relative_to(out)) for path in out.rglob("*") if not path.is_dir()}
    foreign = sorted(present - _files_of_export(out))
    if foreign:
        raise ValueError(
            f"{out} holds {foreign[0]!r}, which no export wrote; name a folder that does not exist"
        )


def schema(settings: ExportConfig) -> pa.Schema:
    """The columns and their types; the description of the dataset is in the metadata."""
    config = settings.config
    panel = pa.list_(pa.int8(), config.panel_size)
    types: dict[str, pa.DataType] = {
        "context": pa.list_(panel, config.grid_size**2 - 1),
        "query": panel,
        "rules": pa.list_(pa.string(), config.panel_size),
        "permutations": pa.list_(panel, config.grid_size),
        "split": pa.string(),
        "seed": pa.int64(),
        "index": pa.int64(),
    }
    if settings.labels:
        types |= {
            "ambiguous": pa.bool_(),
            "num_answers": pa.int32(),
            "query_posterior": pa.float64(),
            "map_answer": panel,
            "map_posterior": pa.float64(),
        }
    fields = [pa.field(name, kind, nullable=False) for name, kind in types.items()]
    return pa.schema(fields, metadata={_SCHEMA_KEY: json.dumps(settings.describe()).encode()})


def _column_docs(settings: ExportConfig) -> dict[str, str]:
    config = settings.config
    docs = {
        "context": f"the {config.grid_size**2 - 1} context panels, row by row, each of "
        f"{config.panel_size} integers in [0, {config.num_values})"
        + ("; a blank is -1" if config.train_features else ""),
        "query": "the panel to predict, the last of the grid, as its column shows it",
        "rules": "the rule of each feature"
        + f", or `{config.label_names[-1]}`" * (not config.all_scored),
        "permutations": "position m of the panels of column c shows feature `permutations[c][m]`",
        "split": "name of the split",
        "seed": "seed of the instances"
        + (" and of the split's combinations" if config.split_seed is None else ""),
        "index": "number of the instance; with split and seed its address in hyla",
    }
    if settings.labels:
        docs |= {
            "ambiguous": "whether readings of the context prescribe different query panels",
            "num_answers": "how many query panels some reading prescribes",
            "query_posterior": "probability of `query` given the context",
            "map_answer": "the most probable query panel given the context",
            "map_posterior": "its probability",
        }
    return docs


def _write_split(
    root: Path,
    settings: ExportConfig,
    split: str,
    device: torch.device | str,
    on_progress: Callable[[int], None],
) -> Iterator[str]:
    """Write the files of one split, and yield their names."""
    # Batches of any size tile the same instances, so the size is free to suit the shards.
    batch_size = min(_BATCH, settings.shard_size, settings.instances)
    sampler = Sraven(settings.config).sampler(
        split, seeds=[settings.seed], batch_size=batch_size, device=device
    )
    solve = None
    if settings.labels:
        solve = partial(Solver(settings.config, device=device), permuted=is_permuted(split))
    columns = schema(settings)
    starts = range(0, settings.instances, settings.shard_size)
    for number, first in enumerate(starts):
        name = f"data/{split}-{number:05}-of-{len(starts):05}.parquet"
        end = min(first + settings.shard_size, settings.instances)
        with parquet.ParquetWriter(root / name, columns, compression="zstd") as writer:
            for start in range(first, end, batch_size):
                count = min(batch_size, end - start)
                batch = sampler.instances(start // batch_size)
                instances = Instances(*(field[0, :count] for field in batch))
                arrays = _instance_arrays(instances, settings, split, start)
                if solve is not None:
                    arrays |= _label_arrays(instances, solve(instances.panels))
                writer.write_batch(pa.RecordBatch.from_pydict(arrays, schema=columns))
                on_progress(count)
        yield name


def _instance_arrays(
    instances: Instances, settings: ExportConfig, split: str, start: int
) -> dict[str, pa.Array]:
    count = len(instances.rules)
    panels = instances.panels.flatten(1, 2)
    names = pa.array(settings.config.label_names).take(pa.array(_numpy(instances.rules.flatten())))
    return {
        "context": _nested_lists(panels[:, :-1]),
        "query": _nested_lists(panels[:, -1]),
        "rules": pa.FixedSizeListArray.from_arrays(names, settings.config.panel_size),
        "permutations": _nested_lists(instances.permutations),
        "split": pa.repeat(split, count),
        "seed": pa.repeat(settings.seed, count),
        "index": pa.array(np.arange(start, start + count)),
    }


def _label_arrays(instances: Instances, solution: Solution) -> dict[str, pa.Array]:
    count = len(instances.rules)
    owners = torch.arange(count, device=solution.num_answers.device).repeat_interleave(
        solution.num_answers
    )
    query = instances.panels[:, -1, -1]
    is_query = (solution.candidates == query[owners]).all(-1)
    # One candidate at most equals the query, so this puts probabilities in place; it adds nothing.
    query_posterior = solution.posterior.new_zeros(count).index_add(
        0, owners, solution.probabilities * is_query
    )
    return {
        "ambiguous": pa.array(_numpy(ambiguous_by_definition(solution))),
        "num_answers": pa.array(_numpy(solution.num_answers.int())),
        "query_posterior": pa.array(_numpy(query_posterior)),
        "map_answer": _nested_lists(solution.answer),
        "map_posterior": pa.array(_numpy(solution.posterior)),
    }


def _nested_lists(values: Tensor) -> pa.Array:
    """An array of rows, each a (nested) list of int8 of fixed size."""
    array = pa.array(_numpy(values.to(torch.int8).flatten()))
    for size in reversed(values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


def _numpy(values: Tensor) -> np.ndarray:
    return values.cpu().numpy()


def _files_of_export(folder: Path) -> set[str]:
    """The files that an earlier export in this folder wrote; none if there was none."""
    try:
        summary = json.loads((folder / _SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return set()
    if not isinstance(summary, dict) or summary.get("format") != FORMAT:
        return set()
    return {_SUMMARY, "README.md", *summary["files"]}


def _put_in_place(finished: Path, out: Path) -> None:
    check_destination(out)  # again: much may have happened meanwhile
    if not out.exists():
        finished.rename(out)
        return
    # A folder cannot be renamed over one that holds files, so the old one steps aside.
    replaced = out.with_name(f".{out.name}.replaced-{os.getpid()}")
    out.rename(replaced)
    finished.rename(out)
    shutil.rmtree(replaced)
