"""`hyla latents`: the latent codes of a trained run, or of a pretrained language model."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter
from rich.table import Table

from hyla._errors import UnfinishedError
from hyla.commands.shared.exits import UsageError, usage_errors
from hyla.commands.shared.options import check_writable
from hyla.commands.shared.output import Screen, progress_bar, score, table
from hyla.lab.experiments.shared.code_panels import chosen
from hyla.lab.latents import INSTANCES, analyse_subjects, check_choice, load_subjects
from hyla.lab.latents.summary import best_layers, swapped_everywhere
from hyla.lab.latents.texts import MAX_TOKENS, analyse_texts
from hyla.latents.adapters import ModelUnavailableError
from hyla.latents.analysis import TABLES
from hyla.latents.observe import UnsupportedModelError
from hyla.results.folders import find_runs, holds_runs
from hyla.results.runs import Row
from hyla.results.subjects import Subject
from hyla.training.devices import resolve_device

_HUGGING_FACE = "hf:"
_RUNS = Group("Trained runs", sort_key=1)
_TEXTS = Group("Pretrained models (hf:...)", sort_key=2)


def latents(
    what: list[str],
    /,
    *,
    out: Path = Path("latents"),
    pairs: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    figure: Annotated[list[str] | None, Parameter(group=_RUNS)] = None,
    member: Annotated[list[int] | None, Parameter(group=_RUNS)] = None,
    instances: Annotated[int | None, Parameter(group=_RUNS)] = None,
    text: Annotated[list[str] | None, Parameter(group=_TEXTS)] = None,
    text_file: Annotated[Path | None, Parameter(group=_TEXTS)] = None,
    decoder_text: Annotated[list[str] | None, Parameter(group=_TEXTS)] = None,
    max_tokens: Annotated[int | None, Parameter(group=_TEXTS)] = None,
) -> None:
    """Read, decode and swap latent codes: attention's scores across heads, for a query and a key.

    WHAT is one or more run directories or folders of such, or hf: and a pretrained model: a folder,
    or a name on the Hugging Face hub. Of a run, its rules or terms are decoded from the codes, the
    codes are mapped, and they are swapped between instances to see whether the network then does
    something else. Of a pretrained model, the codes of a text are recorded and mapped.

    Examples:

    - `hyla latents runs/sraven-hyla-0123456789ab --out results/latents`
    - `hyla latents runs/fuzzy-* --figure embedding decoding`
    - `hyla latents hf:models/gpt2 --text-file book.txt --pairs previous`

    Parameters
    ----------
    what
        Run directories, folders of such, names under runs, or one hf:FOLDER or hf:NAME.
    out
        Folder for tables, figures (PNG, PDF) and interactive pages, each run's or model's in a
        folder of its name. What other calls put there stays.
    pairs
        Whose codes: for a run, a name that its task gives to pairs (row, self, all keys); for a
        pretrained model, self (every token with itself, the default), previous (with the token
        before it) or all (with every token, also those after it, for which a causal model's codes
        are zero).
    device
        auto takes the GPU if there is one.
    figure
        Which figures: embedding, mean_codes, sample_codes, similarity, distances, decoding, swaps,
        swap_matrix, heads. (default: all)
    member
        Which models of a population, counted from 0. (default: 0)
    instances
        Instances to look at; decoding takes twice as many. (default: 2048)
    text
        Texts to read.
    text_file
        A file to read; every line that is not empty is a text.
    decoder_text
        What the decoder of an encoder-decoder reads for each text. (default: the text itself)
    max_tokens
        Longer texts are cut. (default: 512)
    """
    pretrained = [name for name in what if name.startswith(_HUGGING_FACE)]
    with usage_errors():
        check_writable(out=out)
        where = resolve_device(device)
        if pretrained and len(what) > 1:
            raise ValueError("one pretrained model at a time, and no runs beside it")
        if pretrained:
            why = "is for trained runs, whose task says what their codes are about"
            _refuse(why, figure=figure, member=member, instances=instances)
        else:
            why = "is for pretrained models: hf:FOLDER or hf:NAME"
            _refuse(
                why,
                text=text,
                text_file=text_file,
                decoder_text=decoder_text,
                max_tokens=max_tokens,
            )
        texts = _texts(text, text_file) if pretrained else []
    try:
        if pretrained:
            _look_at_texts(
                pretrained[0].removeprefix(_HUGGING_FACE),
                texts,
                out,
                device=where,
                decoder_texts=decoder_text,
                pairs=pairs or "self",
                max_tokens=MAX_TOKENS if max_tokens is None else max_tokens,
            )
        else:
            root = Path("runs")
            runs = [path for name in what for path in find_runs(name, root)]
            # Of a folder, what can be looked into.
            leave_out = Screen().say if any(holds_runs(name, root) for name in what) else None
            with usage_errors():
                subjects = load_subjects(runs, member or [0], where, leave_out=leave_out)
            figures = list(TABLES) if figure is None else figure
            number = INSTANCES if instances is None else instances
            _look_at_runs(subjects, out, figures=figures, pairs=pairs, instances=number)
    except (UnsupportedModelError, ModelUnavailableError, ImportError) as error:
        raise UnfinishedError(str(error)) from error


def _refuse(why: str, **options: Any) -> None:
    """Raise a ValueError for an option that was given where it means nothing."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"--{name.replace('_', '-')} {why}")


def _look_at_runs(
    subjects: Sequence[Subject], out: Path, *, figures: Sequence[str], **how: Any
) -> None:
    with usage_errors():
        check_choice(subjects, figures, **how)
    screen = Screen()
    with progress_bar(screen, len(subjects) * len(figures)) as advance:
        tables = analyse_subjects(
            subjects, out, figures=figures, on_table=lambda what: advance(1, what), **how
        )
    if "decoding" in tables:
        for summary in _decoding_summaries(tables["decoding"], subjects, how["pairs"]):
            screen.print(summary)
    if "swaps" in tables:
        screen.print(_swap_summary(tables["swaps"], subjects))
    screen.say(f"Tables, figures and pages: {out}")


def _look_at_texts(reference: str, texts: Sequence[str], out: Path, **how: Any) -> None:
    screen = Screen()
    with progress_bar(screen, len(texts)) as advance:
        try:
            recorded = analyse_texts(
                reference,
                texts,
                out,
                say=lambda line: print(line, file=sys.stderr),
                on_texts=advance,
                on_kind=lambda kind: advance(0, f"{kind} attention"),
                **how,
            )
        except (UnsupportedModelError, ModelUnavailableError):
            raise
        except ValueError as error:
            raise UsageError(str(error)) from error
    screen.say(
        f"{recorded.codes:,} codes of {len(texts)} texts in {recorded.path}; figures and pages of "
        f"{', '.join(recorded.kinds)} attention in {recorded.path.parent}"
    )


def _texts(given: Sequence[str] | None, path: Path | None) -> list[str]:
    texts = list(given or ())
    if path is not None:
        try:
            texts += [line for line in path.read_text("utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--text-file {path} cannot be read: {error}") from error
    if not texts:
        raise ValueError("say what the model is to read: --text TEXT, or --text-file FILE")
    return texts


def _decoding_summaries(
    decoding: Sequence[Row], subjects: Sequence[Subject], pairs: str | None
) -> Iterator[Table]:
    """Show for each task what the figures show first: its usual reading and pairs."""
    by_task: dict[str, list[Subject]] = {}
    for subject in subjects:
        by_task.setdefault(subject.config.task_name, []).append(subject)
    for task, of_task in by_task.items():
        study = of_task[0].study
        shown_pairs = pairs or next(iter(study.pairs))
        best = {"accuracy": "accuracy", "f1": "F1"}[study.decoding_metric]
        shown = table(
            f"Decoded from unseen compositions of {task} ({study.unseen}, pairs: {shown_pairs}), "
            f"at the layer with the best {best}",
            *("run", "what", "from", "layer", "accuracy", "F1"),
            numeric=("layer", "accuracy", "F1"),
        )
        for subject in of_task:
            for row in best_layers(chosen(decoding, **subject.columns), study, shown_pairs):
                layer = "-" if row.layer is None else str(row.layer + 1)
                rates = score(row.accuracy), score(row.f1)
                shown.add_row(subject.name, row.label, row.predictor, layer, *rates)
        shown.caption_justify = "left"
        shown.caption = (
            "Layers count from 1. 0.000 is a result: a classifier that is never right, of several "
            "labels about all at once (accuracy), or that never chooses a class which occurs (F1). "
            "Shuffled labels are chance."
        )
        yield shown


def _swap_summary(swaps: Sequence[Row], subjects: Sequence[Subject]) -> Table:
    """What happens to unseen compositions when all layers are given other codes."""
    shown = table(
        "Unseen compositions with other codes in all layers",
        *("run", "pairs", "code", "follows", "stays", "copies", "instances"),
        numeric=("follows", "stays", "copies", "instances"),
    )
    for subject in subjects:
        for row in swapped_everywhere(chosen(swaps, **subject.columns)):
            rates = [score(row[f"{name}_rate"]) for name in ("donor", "stay", "copy")]
            shown.add_row(subject.name, row["pairs"], row["code"], *rates, str(row["instances"]))
    return shown
