"""`hyla sraven submit`: score a file of answers, and make an entry of the leaderboard of it."""

import hashlib
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hyla.commands.shared.exits import usage_errors, write_errors
from hyla.commands.shared.output import Screen, table
from hyla.results.leaderboard import Entry, Score, score, write_entry
from hyla.results.leaderboard.entries import FOLDER
from hyla.tasks.sraven.variants import INSTANCES


def submit(
    predictions: Path,
    /,
    *,
    variant: str | None = None,
    model: str | None = None,
    seed: int | None = None,
    trained_on: int | None = None,
    seconds: float | None = None,
    device: str = "",
    link: str = "",
    note: str = "",
    entries: Path = FOLDER,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Score answers to a variant's evaluation instances, and write an entry of the leaderboard.

    PREDICTIONS is a Parquet file with a row for each instance: `index`, its number, and
    `prediction`, a list of the integers of the missing panel. `hyla sraven export OUT --variant
    NAME` writes the instances. A file that `hyla sraven predict` wrote says itself which variant
    it answers, and for whom; what is given here goes before that.

    Examples:

    - `hyla sraven submit answers.parquet`
    - `hyla sraven submit answers.parquet --variant paper --model "my model" --seed 0`
    - `hyla sraven submit answers.parquet --variant paper --model "my model" --dry-run`

    Parameters
    ----------
    predictions
        The file of answers.
    variant
        Name of the variant (`hyla sraven variants`), if the file does not say it.
    model
        What the leaderboard calls it, if not what the file does; its seeds share the name.
    seed
        Seed of its training.
    trained_on
        Instances that its training saw.
    seconds
        How long its training took.
    device
        What it was trained on.
    link
        Address where it is described.
    note
        A few words beside its name.
    entries
        Folder of the leaderboard's entries.
    dry_run
        Score, and write nothing.
    """
    from hyla.results.leaderboard.predictions import answered_variant, read_about, read_predictions

    with usage_errors():
        for name, value in (("seed", seed), ("trained-on", trained_on), ("seconds", seconds)):
            if value is not None and value < 0:
                raise ValueError(f"--{name} is not negative, got {value}")
        told = read_about(predictions)
        chosen = answered_variant(variant, told)
        answers = read_predictions(predictions, chosen)
        model = model or told.get("model")
        if model is None:
            raise ValueError("say whose answers these are by --model: the file does not")
        screen = Screen()
        screen.say(
            f"Making the {INSTANCES:,} instances of variant {chosen.name}, to score the answers by"
        )
        entry = Entry(
            variant=chosen.name,
            hash=chosen.published["hash"],
            model=model,
            score=score(chosen, answers),
            seed=told.get("seed") if seed is None else seed,
            trained_on=told.get("trained_on") if trained_on is None else trained_on,
            seconds=told.get("seconds") if seconds is None else seconds,
            device=device or told.get("device", ""),
            link=link,
            note=note or told.get("note", ""),
            predictions_sha256=hashlib.sha256(predictions.read_bytes()).hexdigest(),
        )
        _show(entry.model, entry.variant, entry.score)
        if entry.score.is_above_ceiling:
            screen.say(
                "That is above the ceiling, which nobody reaches who has to infer the answers: are "
                "they those of the export? The leaderboard will say so."
            )
        if dry_run:
            screen.say("Nothing was written (--dry-run).")
            return
        with write_errors(entries):
            path = write_entry(entry, entries)
    screen.say(f"Entry: {path}")


def _show(model: str, variant: str, reached: Score) -> None:
    shown = table(
        f"{model} on {variant}: per cent", "", "accuracy", "95 % interval", numeric=("accuracy",)
    )
    for name, part in (
        ("all instances", reached.whole),
        ("with one answer", reached.unambiguous),
        ("ambiguous", reached.ambiguous),
    ):
        if part is not None and part.instances:
            value, low, high = (100 * number for number in part.accuracy)
            shown.add_row(name, f"{value:.2f}", f"{low:.2f} to {high:.2f} of {part.instances:,}")
    if reached.share_of_ceiling is not None and reached.ceiling is not None:
        best = f"ceiling {100 * reached.ceiling:.2f}"
        shown.add_row("of the ceiling", f"{100 * reached.share_of_ceiling:.2f}", best)
    for rule, share in reached.by_rule.items():
        shown.add_row(f"integers by {rule}", f"{100 * share:.2f}", "")
    Screen().print(shown)
