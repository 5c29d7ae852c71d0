"""`hyla data`: text to token shards, and a look at them."""

import os
from pathlib import Path
from typing import Annotated

from cyclopts import App, Group, Parameter
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from hyla.commands.shared.exits import UsageError, usage_errors, write_errors
from hyla.commands.shared.output import Screen, table
from hyla.tasks.language import Corpus, CorpusConfig, CorpusError, HubDataset, TextFiles
from hyla.tasks.language import prepare as prepare_corpus
from hyla.tasks.language.corpora import Source
from hyla.tasks.language.prepare import Progress as Stage
from hyla.tasks.language.tokenizer import VOCAB_SIZE
from hyla.training import Interrupted

_INTRO = """Prepare text for language models.

A prepared corpus is a folder of token shards that training maps into memory, with the tokenizer
and a manifest of hashes.
"""

data = App(name="data", help=_INTRO)

_HUB = Group("A dataset of the Hugging Face hub, instead of files", sort_key=1)
_DEFAULTS = CorpusConfig()


@data.command(name="prepare", sort_key=0)
def prepare_data(
    out: Path,
    files: Annotated[list[Path], Parameter(name="FILES")] = [],  # noqa: B006 - cyclopts reads it
    /,
    *,
    validation: list[Path] | None = None,
    validation_fraction: float = _DEFAULTS.validation_fraction,
    vocab_size: int = VOCAB_SIZE,
    tokenizer: Path | None = None,
    text_field: str = "text",
    max_tokens: int | None = None,
    workers: int | None = None,
    dataset: Annotated[str | None, Parameter(group=_HUB)] = None,
    dataset_config: Annotated[str | None, Parameter(group=_HUB)] = None,
    dataset_split: Annotated[str, Parameter(group=_HUB)] = "train",
    dataset_files: Annotated[list[str] | None, Parameter(group=_HUB)] = None,
) -> None:
    """Prepare a corpus: train or load a tokenizer, encode documents, write token shards.

    Files are .txt (documents between blank lines) or .jsonl, plain or .gz or .xz. Interrupted, the
    same command continues; without manifest.json, which comes last, a corpus is not used.

    Examples:

    - `hyla data prepare data/wiki wiki_train.txt.xz --validation wiki_valid.txt.xz`
    - `hyla data prepare data/c4 --dataset allenai/c4 --dataset-config en --max-tokens 1000000000`
    - `hyla data prepare data/c4 c4-train.*.json.gz --tokenizer data/wiki/tokenizer.model`

    Parameters
    ----------
    out
        Folder of the corpus.
    files
        Text to train on.
    validation
        Text to validate on; without, a fraction of the documents is held out.
    validation_fraction
        That fraction; documents are chosen by a hash of their text.
    vocab_size
        Size of the vocabulary of a tokenizer trained here (SentencePiece, byte-pair encoding).
    tokenizer
        A SentencePiece model to use instead.
    text_field
        Field of JSON lines, or column of a dataset, that holds the text.
    max_tokens
        Stop at this many training tokens.
    workers
        Processes that encode; as many as there are CPU cores by default.
    dataset
        Name, such as allenai/c4 or wikitext; read as a stream, nothing is stored but tokens.
    dataset_config
        Its configuration, such as en or wikitext-103-raw-v1.
    dataset_split
        Its split.
    dataset_files
        Its files, where not all of them, or the files of a local dataset such as `json`.
    """
    with usage_errors():
        if bool(files) == (dataset is not None):
            raise ValueError("give either FILES or --dataset, to say where the text is")
        train: Source
        if dataset is None:
            train = TextFiles(files, text_field=text_field)
        else:
            train = HubDataset(
                dataset,
                config=dataset_config,
                split=dataset_split,
                files=dataset_files or (),
                text_field=text_field,
            )
        held_out = TextFiles(validation, text_field=text_field) if validation else None
        settings = CorpusConfig(
            vocab_size=vocab_size, validation_fraction=validation_fraction, max_tokens=max_tokens
        )
    try:
        with write_errors(out), _Bar() as bar:
            corpus = prepare_corpus(
                out,
                train,
                held_out,
                tokenizer=tokenizer,
                settings=settings,
                workers=os.cpu_count() or 1 if workers is None else workers,
                on_progress=bar.show,
            )
    except CorpusError as error:
        raise UsageError(str(error)) from error
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped; the same command continues with what is in {out}", "SIGINT"
        ) from None
    _print(corpus)


@data.command(sort_key=1)
def show(path: Path, /, *, verify: bool = False) -> None:
    """Show what a prepared corpus holds.

    Parameters
    ----------
    path
        Folder of the corpus.
    verify
        Read all of it and compare the hashes.
    """
    with usage_errors():
        corpus = Corpus.open(path)
        if verify:
            corpus.verify()
    _print(corpus)
    if verify:
        Screen().print("every file has the hash that the manifest says")


def _print(corpus: Corpus) -> None:
    columns = ("tokens", "documents", "bytes", "bytes/token", "shards")
    title = f"corpus {corpus.fingerprint[:12]}, vocabulary of {corpus.vocab_size:,}"
    rows = (
        (
            split,
            *(f"{content[name]:,}" for name in ("tokens", "documents", "bytes")),
            f"{corpus.bytes_per_token(split):.2f}",
            str(len(content["shards"])),
        )
        for split, content in corpus.manifest["splits"].items()
    )
    screen = Screen()
    screen.print(table(title, "split", *columns, numeric=columns, rows=rows))
    screen.say(f"folder: {corpus.path}")


class _Bar:
    """A progress bar of bytes, or of tokens where bytes cannot be counted."""

    def __init__(self) -> None:
        self._screen = Screen()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[tokens]:,} tokens"),
            TimeRemainingColumn(),
            console=self._screen,
            transient=True,
            disable=not self._screen.is_terminal,
        )
        self._stage = ""

    def __enter__(self) -> "_Bar":
        self._bar.start()
        self._task = self._bar.add_task("", total=None, tokens=0)
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def show(self, stage: Stage) -> None:
        """Show how far the preparation is; elsewhere than in a terminal, its stages."""
        if stage.stage != self._stage and not self._screen.is_terminal:
            self._screen.print(stage.stage)
        self._stage = stage.stage
        self._bar.update(
            self._task,
            description=stage.stage,
            completed=stage.bytes_read or 0,
            total=stage.total_bytes,
            tokens=stage.tokens,
        )
