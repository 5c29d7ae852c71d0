"""`hyla sraven think`: whether thinking longer helps."""

from typing import Annotated, Any, Literal

from cyclopts import Parameter

from hyla.commands.shared.exits import usage_errors
from hyla.commands.shared.output import console, table
from hyla.commands.sraven.answerer import load_answerer
from hyla.latents.search import LEARNING_RATE
from hyla.results.leaderboard.answers import check_trained_for
from hyla.results.thinking import check_thinking, thinking_curve
from hyla.tasks.sraven.variants import SPLIT, variant_named
from hyla.training.devices import resolve_device

_WAYS = {"search": "search on the code", "again": "asked again in other words"}


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
) -> None:
    """Let a model think longer: search on its code, or ask it again in other words.

    The search holds out each known row, changes the code by gradient steps until the model
    explains it, and answers the question with that code. Beside it stands the same number of
    passes through the model on the same puzzle with features and rows in other orders, the
    log-probabilities added up.

    Examples:

    - `hyla sraven think sraven-hyla --variant paper-split1`
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
    """
    with usage_errors():
        asked = variant_named(variant)
        model, config, seed = load_answerer(who, member, resolve_device(device))
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
        shown.add_row(_WAYS[thought.way], *map(str, cells))
    console().print(shown)
