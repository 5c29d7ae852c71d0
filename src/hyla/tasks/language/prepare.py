"""`prepare`: documents to a corpus on disk that training can map into memory.

Documents are read in chunks, encoded in parallel and written in order. Whenever a shard is full,
what is pending of the other split is written too, and ``preparation.json`` records the shards and
how far the source was read. A preparation that is killed continues from there, and ends with the
same files, byte for byte, as one that was not.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from hyla import __version__
from hyla._errors import check_positive
from hyla._files import write_atomically, write_json
from hyla.tasks.language.corpora import BEGINNING, CorpusError, Position, Source
from hyla.tasks.language.corpus import Corpus
from hyla.tasks.language.encoding import EncodingPool, token_dtype
from hyla.tasks.language.shards import (
    FORMAT,
    JOURNAL,
    MANIFEST,
    TOKENIZER,
    ShardWriter,
    shards_from_json,
    splits_to_json,
)
from hyla.tasks.language.tokenizer import SAMPLE_SIZE, VOCAB_SIZE, Tokenizer, train_tokenizer

SPLITS = ("train", "validation")
_CHUNK = 2_000_000  # characters encoded at a time


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """What decides the content of a corpus, beside its sources."""

    vocab_size: int = VOCAB_SIZE
    """Size of the vocabulary, where a tokenizer is trained."""
    validation_fraction: float = 0.005
    """Share of the documents held out, where no validation files are given."""
    max_tokens: int | None = None
    """Most training tokens to prepare; all there are if None."""
    shard_tokens: int = 1 << 24
    """Tokens of a shard, about."""

    def __post_init__(self):
        check_positive(vocab_size=self.vocab_size, shard_tokens=self.shard_tokens)
        if self.max_tokens is not None:
            check_positive(max_tokens=self.max_tokens)
        if not 0 < self.validation_fraction < 1:
            raise ValueError(
                f"validation_fraction must lie between 0 and 1, got {self.validation_fraction}"
            )


DEFAULTS = CorpusConfig()


@dataclass(frozen=True)
class Progress:
    """How far a preparation is, for a progress bar."""

    stage: str
    bytes_read: int | None
    total_bytes: int | None
    tokens: int


def prepare(
    out: Path | str,
    train: Source,
    validation: Source | None = None,
    *,
    tokenizer: Path | str | None = None,
    settings: CorpusConfig = DEFAULTS,
    workers: int = 1,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Corpus:
    """Prepare the documents of `train` as a corpus in the folder `out`, or finish doing so.

    Validation documents come from `validation` or, without one, are a fraction of the others,
    chosen by a hash of their text. The tokenizer is a SentencePiece model file, or is trained on a
    sample. Calling it again continues an interrupted preparation and returns a finished one.
    `workers` are processes that encode; they change nothing in the result.
    """
    check_positive(workers=workers)
    out = Path(out)
    given = None if tokenizer is None else Tokenizer.load(tokenizer)
    on_progress(Progress("reading sources", None, None, 0))
    identity = {
        "settings": asdict(settings),
        "train": train.identity(),
        "validation": None if validation is None else validation.identity(),
        "tokenizer": None if given is None else given.sha256,
    }
    if (out / MANIFEST).exists():
        corpus = Corpus.open(out)
        _check_same(identity, corpus.manifest["identity"], out, "holds a corpus")
        return corpus
    journal = _Journal.open(out, identity)
    chosen = _tokenizer(out, given, train, settings, on_progress)
    journal.begin(chosen)
    with EncodingPool(chosen, workers) as pool:
        preparation = _Preparation(out, pool, chosen.vocab_size, settings, journal, on_progress)
        if validation is not None:
            preparation.take(validation, "validation", lambda document: "validation")
            preparation.take(train, "train", lambda document: "train")
        else:
            fraction = settings.validation_fraction
            preparation.take(train, "train", lambda document: _side_of(document, fraction))
    _finish(out, identity, chosen, journal)
    return Corpus.open(out)


class _Journal:
    """What has been written and how far each source was read, on disk."""

    def __init__(self, path: Path, content: dict[str, Any]):
        self.path = path
        self.content = content

    @classmethod
    def open(cls, out: Path, identity: dict[str, Any]) -> "_Journal":
        path = out / JOURNAL
        identity = json.loads(json.dumps(identity))  # as it will be read back
        content = json.loads(path.read_bytes()) if path.exists() else None
        if content is not None and "failed" in content and content["identity"] != identity:
            _remove_failed(out, content)
            content = None
        if content is not None:
            _check_same(identity, content["identity"], out, "holds an unfinished preparation")
            for half_written in out.glob(".*.tmp-*"):
                half_written.unlink(missing_ok=True)
            return cls(path, content)
        if out.exists() and any(out.iterdir()):
            raise CorpusError(f"{out} is not empty and holds no corpus; choose another folder")
        out.mkdir(parents=True, exist_ok=True)
        return cls(path, {"identity": identity, "read": {}, "splits": {}})

    def begin(self, tokenizer: Tokenizer) -> None:
        """Write what a preparation starts with: nothing, before its tokenizer could be made."""
        if not self.path.exists():
            write_json(self.path, self.content)
        kept = self.path.parent / TOKENIZER
        if not kept.exists():
            write_atomically(kept, tokenizer.model)

    def position(self, source: str) -> Position | None:
        """Where to go on reading; None if the source is finished."""
        read = self.content["read"].get(source, {"position": BEGINNING, "finished": False})
        return None if read["finished"] else Position(*read["position"])

    def record(
        self,
        source: str,
        position: Position,
        writers: dict[str, ShardWriter],
        *,
        finished: bool = False,
    ) -> None:
        self.content["read"][source] = {"position": position, "finished": finished}
        self.content["splits"] = splits_to_json({s: w.shards for s, w in writers.items()})
        write_json(self.path, self.content)

    def fail(self, reason: str) -> None:
        """Keep why nothing comes of it, for whoever looks later."""
        self.content["failed"] = reason
        write_json(self.path, self.content)


class _Preparation:
    """Documents on their way into shards."""

    def __init__(
        self,
        out: Path,
        pool: EncodingPool,
        vocab_size: int,
        settings: CorpusConfig,
        journal: _Journal,
        on_progress: Callable[[Progress], None],
    ):
        self.pool = pool
        self.settings = settings
        self.journal = journal
        self.on_progress = on_progress
        written = shards_from_json(journal.content["splits"])
        dtype = token_dtype(vocab_size)
        self.writers = {
            split: ShardWriter(out, split, dtype, written.get(split, ())) for split in SPLITS
        }

    def take(self, source: Source, name: str, side_of: Callable[[str], str]) -> None:
        """Encode the rest of a source into the splits that `side_of` says."""
        start_at = self.journal.position(name)
        if start_at is None:
            return
        position = start_at
        for documents, encoded, position in self.pool.encode(self._chunks(source, start_at)):
            start, full = 0, False
            for document, length in zip(documents, encoded.lengths, strict=True):
                writer = self.writers[side_of(document)]
                if full := self._is_full(writer, length):
                    break
                writer.add(encoded.tokens[start : start + length], len(document.encode()))
                start += length
            tokens = sum(writer.tokens for writer in self.writers.values())
            self.on_progress(
                Progress(f"encoding {name}", source.bytes_read, source.total_bytes, tokens)
            )
            if full:
                break
            if any(
                writer.pending_tokens >= self.settings.shard_tokens
                for writer in self.writers.values()
            ):
                self._write(name, position)
        self._write(name, position, finished=True)

    def _is_full(self, writer: ShardWriter, length: int) -> bool:
        most = self.settings.max_tokens
        return writer.split == "train" and most is not None and writer.tokens + length > most

    def _write(self, name: str, position: Position, *, finished: bool = False) -> None:
        for writer in self.writers.values():
            writer.write()
        self.journal.record(name, position, self.writers, finished=finished)

    def _chunks(self, source: Source, start: Position) -> Iterator[tuple[list[str], Position]]:
        chunk: list[str] = []
        size, position = 0, start
        for document, position in source.documents(start):
            chunk.append(document)
            size += len(document)
            if size >= _CHUNK:
                yield chunk, position
                chunk, size = [], 0
        if chunk:
            yield chunk, position


def _tokenizer(
    out: Path,
    given: Tokenizer | None,
    train: Source,
    settings: CorpusConfig,
    on_progress: Callable[[Progress], None],
) -> Tokenizer:
    """Return the corpus's tokenizer: the given one, or one trained here, now or before."""
    path = out / TOKENIZER
    if path.exists():
        return Tokenizer.load(path)
    if given is None:
        on_progress(Progress("training the tokenizer", None, None, 0))
        given = train_tokenizer(train.sample(SAMPLE_SIZE), settings.vocab_size)
    return given


def _side_of(document: str, validation_fraction: float) -> str:
    """Choose by content: the same text, met twice, is on one side."""
    digest = hashlib.blake2b(document.encode(), digest_size=8).digest()
    share = int.from_bytes(digest, "little") / 2**64
    return "validation" if share < validation_fraction else "train"


def _remove_failed(out: Path, content: Mapping[str, Any]) -> None:
    """Make room for other input; the journal goes last, so that a kill leaves nothing unexplained.

    What the preparation did not write itself stays.
    """
    shards = chain.from_iterable(shards_from_json(content["splits"]).values())
    for file in (*(name for shard in shards for name in shard.sha256), TOKENIZER, JOURNAL):
        (out / file).unlink(missing_ok=True)


def _finish(out: Path, identity: Any, tokenizer: Tokenizer, journal: _Journal) -> None:
    splits = journal.content["splits"]
    for split, advice in (
        ("train", "check the files, or the limit of tokens"),
        ("validation", "give --validation files, or a larger --validation-fraction"),
    ):
        if not splits[split]["tokens"]:
            reason = f"there are no {split} documents with any text: {advice}, in the same folder"
            journal.fail(reason)
            raise CorpusError(reason)
    write_json(
        out / MANIFEST,
        {
            "format": FORMAT,
            "hyla": __version__,
            "vocab_size": tokenizer.vocab_size,
            "separator": tokenizer.separator,
            "dtype": token_dtype(tokenizer.vocab_size).str,
            "tokenizer": {"file": TOKENIZER, "sha256": tokenizer.sha256},
            "identity": identity,
            "splits": splits,
        },
    )
    journal.path.unlink()


def _check_same(wanted: Any, found: Any, out: Path, holds: str) -> None:
    if json.loads(json.dumps(wanted)) == found:
        return
    different = [key for key in wanted if json.loads(json.dumps(wanted[key])) != found.get(key)]
    raise CorpusError(
        f"{out} {holds} made from other input ({', '.join(different)} differ); "
        "use the same files and settings, choose another folder, or delete this one"
    )
