"""`hyla sraven think`: whether thinking longer helps."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from hyla._files import write_json
from hyla.commands.shared.exits import usage_errors, write_errors
from hyla.commands.shared.output import Screen, table
from hyla.explorer.answerers import load_answerer
from hyla.figures.draw_matplotlib import check_picture, write_picture
from hyla.lab.sraven_figures import WAYS, thinking_figure
from hyla.latents.search import LEARNING_RATE
from hyla.results.leaderboard.answers import check_trained_for
from hyla.results.origins import measured_with
from hyla.results.thinking import check_thinking, rows_of, thinking_curve
from hyla.tasks.sraven.variants import SPLIT, variant_named
from hyla.training.devices import resolve_device


def think(
    who: str,
    /,
    *,
    variant: str,
    steps: tuple[int, ...] = (0, 1, 2, 4, 8),
    instances: int = 512,
    split: str = SPLIT,
    learning_rate: float = LEARNING_RATE,
    per_pair: Annotated[bool, Parameter(negative=())] = False,
    member: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    as_json: Annotated[Path | None, Parameter(name="--json")] = None,
    figure: Path | None = None,
) -> None:
    """Let a model think longer: search on its code, or ask it again in other words.

    The search holds out each known row, changes the code by gradient steps until the model
    explains it, and answers the question with that code. Beside it stands the same number of
    passes through the model on the same puzzle with features and rows in other orders, the
    log-probabilities added up.

    Examples:

    - `hyla sraven think sraven-hyla --variant paper`
    - `hyla sraven think runs/sraven-hyla-0123456789ab --variant trained1 --steps 0 4 16`

    Parameters
    ----------
    who
        A run directory, or a model that comes with hyla, such as sraven-hyla.
    variant
        Name of the variant (`hyla sraven variants`).
    steps
        Steps of the search after which to answer.
    instances
        How many to answer: the first of the split, at seed 0.
    split
        ood (unseen combinations), or one of the others to choose the rate on.
    learning_rate
        Of the search, by Adam.
    per_pair
        Change the code of every query-key pair by itself, not of all alike.
    member
        Which model of the run.
    device
        auto takes the GPU if there is one.
    as_json
        File for the curve as JSON.
    figure
        File for its picture, .png or .pdf.
    """
    with usage_errors():
        if figure is not None:
            check_picture(figure)
        for file in filter(None, (as_json, figure)):  # now, not after minutes
            with write_errors(file):
                file.parent.mkdir(parents=True, exist_ok=True)
        asked = variant_named(variant)
        where = resolve_device(device)
        origin = measured_with(where)  # of the source as it is now, which may change meanwhile
        model, config, seed = load_answerer(who, member, where)
        check_trained_for(asked, config, seed=seed)
        how: dict[str, Any] = {
            "split": split,
            "instances": instances,
            "steps": steps,
            "learning_rate": learning_rate,
        }
        check_thinking(asked, **how)
    curve = thinking_curve(asked, model, per_pair=per_pair, **how)
    numeric = ("steps", "passes", "right (%)", "gained", "lost", "rows explained (%)", "their loss")
    shown = table(
        f"{who} on {variant}, {instances:,} instances of {split}", "way", *numeric, numeric=numeric
    )
    for thought in curve:
        rate, low, high = (100 * number for number in thought.accuracy)
        numbers = (thought.steps, thought.passes, f"{rate:.1f} ({low:.1f} to {high:.1f})")
        rows = ("-", "-")
        if thought.explained is not None and thought.row_losses is not None:
            share, loss = (float(x.float().mean()) for x in (thought.explained, thought.row_losses))
            rows = (f"{100 * share:.1f}", f"{loss:.3f}")
        cells = (*numbers, *thought.changed(curve[0]), *rows)
        shown.add_row(WAYS[thought.way], *map(str, cells))
    Screen().print(shown)
    measured = {
        "model": who,
        "variant": variant,
        "split": split,
        "instances": instances,
        "learning_rate": learning_rate,
        "per_pair": per_pair,
        **origin,
        "rows": rows_of(curve),
    }
    if as_json is not None:
        with write_errors(as_json):
            write_json(as_json, measured)
    if figure is not None:
        with write_errors(figure):
            write_picture(thinking_figure([measured]), figure)
