"""`hyla models`: the trained models of Table A1 as a folder to take along."""

from pathlib import Path

from hyla._errors import check_at_least_one
from hyla.commands.shared.exits import usage_errors
from hyla.commands.shared.options import check_folders, check_writable
from hyla.commands.shared.output import Screen, table
from hyla.lab.models import pack_models
from hyla.results.conditions import Conditions


def models(
    out: Path,
    *,
    root: Path = Path("runs/lab"),
    scale: str = "paper",
    shorten: int = 1,
    precision: str = "tf32",
) -> None:
    """Pack the trained models of Table A1, all seeds, into a folder at half precision.

    Each run that `hyla reproduce tableA1` finished becomes a folder in OUT with its config, scores
    and learning curves. `hyla explore OUT`, `hyla latents OUT/RUN` and `hyla.training.load_run`
    open them. OUT/manifest.json has the commit and the SHA-256 of every file: small enough for git,
    as the models are not.

    Examples:

    - `hyla models models/tableA1`
    - `hyla models models/smoke --root runs/lab --scale smoke --precision float32`

    Parameters
    ----------
    out
        Folder to put them into.
    root
        Folder of the run directories.
    scale
        smoke, laptop or paper: as they were trained.
    shorten
        The share of the scale's steps that they were trained for: one in N.
    precision
        float32, tf32 or bf16: what they were trained in, not what is stored.
    """
    screen = Screen()
    with usage_errors():
        check_at_least_one(shorten=shorten)
        check_folders(root=root)
        check_writable(out=out)
        if out.resolve() == root.resolve():
            raise ValueError(
                f"{out} holds the runs themselves, which must stay as they are: name another folder"
            )
        conditions = Conditions(scale=scale, shorten=shorten, precision=precision)
    packed = pack_models(root, out, conditions)
    shown = table(f"{len(packed.runs)} runs in {out}", "row of Table A1", "seeds", "run")
    for run in packed.runs:
        seeds = sorted({member["seed"] for member in run["members"]})
        shown.add_row(run["row"], " ".join(map(str, seeds)), run["run"])
    screen.print(shown)
    if packed.missing:
        screen.say(f"Not finished under {root}: {', '.join(packed.missing)}")
    screen.say(f"Hashes: {packed.manifest}")
