"""`hyla fuzzy-logic`: fuzzy logic functions as a dataset."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter

from hyla.commands.shared.exits import usage_errors
from hyla.commands.shared.exporting import write_export
from hyla.commands.shared.options import FuzzyOptions, given
from hyla.tasks import FuzzyLogicConfig

fuzzy_logic = App(
    name="fuzzy-logic", help="Fuzzy logic functions, inferred in context, as a dataset."
)


@fuzzy_logic.command
def export(
    out: Path,
    /,
    *,
    instances: int,
    split: list[str] | None = None,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    task_options: Annotated[
        FuzzyOptions | None, Parameter(name="task", group=Group("Task", sort_key=9))
    ] = None,
) -> None:
    """Write a dataset of instances as Parquet files, with a datasheet.

    OUT/data holds the files, OUT/README.md describes them. `datasets.load_dataset("parquet",
    data_files="OUT/data/train-*.parquet")` reads them, and so does anything that reads Parquet.
    OUT appears when all is written; an earlier export there is replaced.

    Examples:

    - `hyla fuzzy-logic export data/fuzzy --instances 100000`
    - `hyla fuzzy-logic export data/small --instances 1000 --split ood --task.num-variables 3`

    Parameters
    ----------
    out
        Folder of the dataset.
    instances
        Instances of each split.
    split
        Splits to write. (default: train test ood)
    seed
        Seed of the instances, and of which combinations are held out.
    device
        auto takes the GPU if there is one.
    """
    from hyla.tasks.fuzzy_logic.export import FuzzyExport

    with usage_errors():
        settings = FuzzyExport(
            config=FuzzyLogicConfig(**given(task_options)),
            splits=("train", "test", "ood") if split is None else tuple(split),
            instances=instances,
            seed=seed,
        )
    write_export(out, settings, device=device)
