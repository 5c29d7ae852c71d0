"""`hyla fuzzy-logic`: fuzzy logic functions as a dataset."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter

from hyla.commands.shared.exits import usage_errors, write_errors
from hyla.commands.shared.options import FuzzyOptions, given
from hyla.commands.shared.output import Screen, progress_bar
from hyla.tasks import FuzzyLogicConfig
from hyla.training.devices import resolve_device

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
    from hyla.tasks.fuzzy_logic.export import ExportConfig, check_destination
    from hyla.tasks.fuzzy_logic.export import export as write_dataset

    with usage_errors():
        settings = ExportConfig(
            config=FuzzyLogicConfig(**given(task_options)),
            splits=("train", "test", "ood") if split is None else tuple(split),
            instances=instances,
            seed=seed,
        )
        where = resolve_device(device)
        check_destination(out)
    screen = Screen()
    total = instances * len(settings.splits)
    with progress_bar(screen, total, "Instances") as advance, write_errors(out):
        files = write_dataset(out, settings, device=where, on_progress=advance)
    size = sum(path.stat().st_size for path in files)
    screen.say(
        f"{instances:,} instances of each of {', '.join(settings.splits)} in {out} "
        f"({len(files)} files, {size / 1e6:,.1f} MB)"
    )
