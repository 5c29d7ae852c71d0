"""`hyla sraven predict`: answers to a variant's instances, as a file to submit."""

from pathlib import Path
from typing import Literal

from hyla.commands.shared.exits import UsageError, usage_errors, write_errors
from hyla.commands.shared.output import console
from hyla.commands.sraven.answerer import load_answerer
from hyla.commands.sraven.whose import whose_answers
from hyla.tasks.sraven.variants import Variant, variant_named
from hyla.training.devices import resolve_device


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
    try:
        from hyla.results.leaderboard.predictions import write_predictions
    except ImportError as error:
        raise UsageError(str(error)) from error
    with usage_errors():
        answers = _answers(who, variant_named(variant), member, device)
        with write_errors(out):
            write_predictions(out, answers, whose_answers(who, member, variant_named(variant)))
    console().print(f"{len(answers):,} answers in {out}", soft_wrap=True, highlight=False)


def _answers(who: str, variant: Variant, member: int, device: str):
    from hyla.results.leaderboard.answers import BASELINES, by_model

    if who in BASELINES:
        return BASELINES[who](variant)
    model, config, seed = load_answerer(who, member, resolve_device(device))
    return by_model(variant, model, config, seed=seed)
