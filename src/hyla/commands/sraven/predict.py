"""`hyla sraven predict`: answers to a variant's instances, as a file to submit."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from torch import Tensor

from hyla.commands.shared.exits import usage_errors, write_errors
from hyla.commands.shared.output import Screen, progress_bar
from hyla.explorer.answerers import load_answerer, refuse_member, whose_answers
from hyla.lab.experiments.shared.panels import label_of
from hyla.tasks.sraven.variants import INSTANCES, Variant, variant_named
from hyla.training.devices import resolve_device

_PLAIN_SECONDS = 10.0  # between two lines of progress where there is no terminal


def predict(
    who: str,
    /,
    *,
    variant: str,
    out: Path,
    member: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> None:
    """Answer the evaluation instances of a variant, and write the answers as Parquet.

    The file also says whose they are and how that was trained, for `hyla sraven submit`.

    Examples:

    - `hyla sraven predict runs/sraven-hyla-0123456789ab --variant paper --out answers.parquet`
    - `hyla sraven predict solver --variant trained1 --out solver.parquet`

    Parameters
    ----------
    who
        A run directory; solver or chance; or a model that comes with hyla, such as sraven-softmax.
    variant
        Name of the variant (`hyla sraven variants`).
    out
        File to write.
    member
        Which model of the run.
    device
        auto takes the GPU if there is one.
    """
    from hyla.results.leaderboard.predictions import write_predictions

    with usage_errors():
        asked = variant_named(variant)
        answer = _answerer(who, asked, member, device)
    screen = Screen()
    with progress_bar(screen, INSTANCES, plain_seconds=_PLAIN_SECONDS) as advance:
        advance(0, f"Answering {INSTANCES:,} instances of {asked.name}")
        answers = answer(asked, on_progress=advance)
    with write_errors(out):
        write_predictions(out, answers, whose_answers(who, member, asked, label=label_of))
    screen.say(f"{len(answers):,} answers in {out}")


def _answerer(who: str, variant: Variant, member: int, device: str) -> Callable[..., Tensor]:
    """Return who answers a variant and says how many more are answered; a ValueError if none can.

    Those who need no training take a second, and say nothing.
    """
    from hyla.results.leaderboard.answers import BASELINES, by_model, check_trained_for

    if who in BASELINES:
        refuse_member(who, member)
        if who == "solver":
            variant.config.refuse_distractors("the solver")
        return lambda variant, on_progress: BASELINES[who](variant)
    model, config, seed = load_answerer(who, member, resolve_device(device), BASELINES)
    check_trained_for(variant, config, seed=seed)
    return partial(by_model, model=model, config=config, seed=seed)
