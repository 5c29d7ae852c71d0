"""`hyla sraven export`: a dataset in Parquet."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from hyla.commands.shared.exits import usage_errors
from hyla.commands.shared.exporting import write_export
from hyla.commands.shared.options import given, variant_settings
from hyla.commands.sraven.task import TaskOptions, task_config
from hyla.tasks import SravenConfig
from hyla.tasks.sraven.variants import INSTANCES, SPLIT


def export(
    out: Path,
    /,
    *,
    instances: int | None = None,
    variant: str | None = None,
    split: list[str] | None = None,
    seed: int = 0,
    labels: Annotated[bool, Parameter(negative="--no-labels")] = True,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    task_options: TaskOptions = None,
) -> None:
    """Write a dataset of instances as Parquet files, with a datasheet.

    OUT/data holds the files, OUT/README.md describes them. `datasets.load_dataset("parquet",
    data_files="OUT/data/train-*.parquet")` reads them, and so does anything that reads Parquet.
    OUT appears when all is written; an earlier export there is replaced.

    Examples:

    - `hyla sraven export data/sraven --instances 100000 --split train test ood`
    - `hyla sraven export data/paper --variant paper`: what its models are evaluated on
    - `hyla sraven export data/small --instances 1000 --task.num-features 3 --no-labels`

    Parameters
    ----------
    out
        Folder of the dataset.
    instances
        Instances of each split; of a variant, the 51,200 to evaluate on unless told otherwise.
    variant
        Name of a variant (`hyla sraven variants`), which fixes all settings of the task.
    split
        Splits to write. (default: train test ood; of a variant, ood)
    seed
        Seed of the instances, and of the split unless a variant fixes that.
    labels
        Solve each instance, for columns that say how ambiguous it is; takes most of the time.
    device
        auto takes the GPU if there is one.
    """
    from hyla.tasks.sraven.faces.export import SravenExport

    with usage_errors():
        if variant is not None:
            config = SravenConfig(**variant_settings("sraven", variant, given(task_options)))
            instances = INSTANCES if instances is None else instances
            usual: tuple[str, ...] = (SPLIT,)
        else:
            config, usual = task_config(task_options), ("train", "test", "ood")
        if instances is None:
            raise ValueError("say how many: --instances 1000, or name a --variant")
        settings = SravenExport(
            config=config,
            splits=usual if split is None else tuple(split),
            instances=instances,
            seed=seed,
            labels=labels,
        )
    write_export(out, settings, device=device)
