"""Where documents come from: text files and Hugging Face datasets, read one after the other.

A source numbers its documents, so that reading can begin again where it was left.
"""

import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, runtime_checkable

from hyla._errors import nearest
from hyla._files import sha256_of
from hyla._optional import needed

_COMPRESSIONS = (".gz", ".xz")
_TEXT = (".txt",)
_JSON_LINES = (".jsonl", ".json")  # C4 names its JSON lines .json.gz

_DAMAGED = (EOFError, OSError, lzma.LZMAError, zlib.error)


class CorpusError(ValueError):
    """Text that cannot be read or prepared; the message says which and what would help."""


class MissingPackageError(CorpusError, ImportError):
    """A package that preparing text needs, and that is not installed."""


class Position(NamedTuple):
    """How far a source has been read: whole parts, and documents of the part after them."""

    parts: int
    documents: int


BEGINNING = Position(0, 0)


@runtime_checkable
class Source(Protocol):
    """Documents in a fixed order."""

    def identity(self) -> Any:
        """Return plain values that change when the documents may have changed."""
        ...

    def documents(self, start: Position = BEGINNING) -> Iterator[tuple[str, Position]]:
        """Yield each document with the position after it, beginning at `start`."""
        ...

    def sample(self, size: int) -> Iterator[str]:
        """Yield documents of about `size` characters in all, from all over the source."""
        ...

    @property
    def bytes_read(self) -> int | None:
        """Bytes read so far, if they can be counted."""
        ...

    @property
    def total_bytes(self) -> int | None:
        """Bytes to be read in all, if that is known."""
        ...


class TextFiles:
    """Files of text or of JSON lines, plain or compressed (.gz, .xz).

    In a .txt file, blank lines stand between documents. A line of a .jsonl file is an object whose
    `text_field` is a document. Documents without any text are left out.
    """

    def __init__(self, paths: Sequence[Path | str], *, text_field: str = "text"):
        self.paths = tuple(Path(path) for path in paths)
        self.text_field = text_field
        for path in self.paths:
            _format_of(path)
            if not path.is_file():
                raise CorpusError(f"{path} is not {'a file' if path.exists() else 'there'}")
        self.total_bytes: int | None = sum(path.stat().st_size for path in self.paths)
        self.bytes_read: int | None = 0

    def identity(self) -> Any:
        """Names without folders, sizes and hashes of the files: they may be moved."""
        return [
            {"file": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
            for path in self.paths
        ] + ([{"text_field": self.text_field}] if self._has_fields() else [])

    def documents(self, start: Position = BEGINNING) -> Iterator[tuple[str, Position]]:
        """Yield each document with the position after it, beginning at `start`."""
        finished = sum(path.stat().st_size for path in self.paths[: start.parts])
        for part, path in enumerate(self.paths[start.parts :], start.parts):
            skipped = start.documents if part == start.parts else 0
            with path.open("rb") as raw:
                numbered = enumerate(self._read(path, raw), 1)
                for number, document in islice(numbered, skipped, None):
                    self.bytes_read = finished + raw.tell()
                    yield document, Position(part, number)
                finished += path.stat().st_size
                self.bytes_read = finished

    def sample(self, size: int) -> Iterator[str]:
        """Yield the beginnings of all files, of about `size` characters together."""
        share = -(-size // max(1, len(self.paths)))
        for path in self.paths:
            left = share
            with path.open("rb") as raw:
                for document in self._read(path, raw):
                    yield document
                    left -= len(document)
                    if left <= 0:
                        break

    def _has_fields(self) -> bool:
        return any(_format_of(path) in _JSON_LINES for path in self.paths)

    def _read(self, path: Path, raw: IO[bytes]) -> Iterator[str]:
        number = 0

        def counted(lines: Iterable[str]) -> Iterator[str]:
            nonlocal number
            for number, line in enumerate(lines, 1):  # noqa: B007 - errors name it
                yield line

        try:
            with io.TextIOWrapper(_decompressed(path, raw), encoding="utf-8") as text:
                lines = counted(text)
                if _format_of(path) in _TEXT:
                    yield from paragraphs_joined(lines)
                else:
                    yield from (found for line in lines if (found := self._from_json(line)))
        except CorpusError as error:
            raise CorpusError(f"{path}, line {number}: {error}") from error
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{path}, after line {number}: this is not UTF-8 ({error.reason}); convert it first"
            ) from error
        except _DAMAGED as error:
            raise CorpusError(
                f"{path}, after line {number}: truncated or damaged ({error})"
            ) from error

    def _from_json(self, line: str) -> str:
        if not line.strip():
            return ""
        try:
            record = json.loads(line)
        except ValueError as error:
            raise CorpusError(f"this is not JSON ({error})") from error
        return text_of(record, self.text_field)


class HubDataset:
    """A dataset of the Hugging Face hub (or a local one), streamed: nothing is stored on disk."""

    def __init__(
        self,
        name: str,
        *,
        config: str | None = None,
        split: str = "train",
        files: Sequence[str] = (),
        text_field: str = "text",
    ):
        self.name, self.config, self.split = name, config, split
        self.files, self.text_field = tuple(files), text_field
        self.total_bytes: int | None = None
        self.bytes_read: int | None = None
        why = "reading a dataset of the hub needs datasets"
        with needed("language", why, raises=MissingPackageError):
            import datasets
        try:
            self._rows = datasets.load_dataset(
                name, config, split=split, streaming=True, data_files=list(self.files) or None
            )
        except Exception as error:  # of many kinds: no network, no such dataset, no such split
            raise CorpusError(f"cannot open the dataset {name}: {error}") from error

    def identity(self) -> Any:
        """What was asked for; the hub's files themselves are not hashed."""
        return {
            "dataset": self.name,
            "config": self.config,
            "split": self.split,
            "files": list(self.files),
            "text_field": self.text_field,
        }

    def documents(self, start: Position = BEGINNING) -> Iterator[tuple[str, Position]]:
        """Yield each document with the position after it, beginning at `start`."""
        # A joined article spans rows, so those are read again and counted as documents.
        joined = self.name.rsplit("/", 1)[-1] == "wikitext"
        rows = self._texts(0 if joined else start.documents)
        texts = islice(articles_joined(rows), start.documents, None) if joined else rows
        for number, text in enumerate(texts, start.documents + 1):
            if text:
                yield text, Position(0, number)

    def sample(self, size: int) -> Iterator[str]:
        """Yield the first documents, of about `size` characters together."""
        for document, _ in self.documents():
            yield document
            size -= len(document)
            if size <= 0:
                return

    def _texts(self, skip: int) -> Iterator[str]:
        try:
            for row in self._rows.skip(skip):
                yield text_of(row, self.text_field)
        except CorpusError as error:
            raise CorpusError(f"{self.name}: {error}") from error
        except Exception as error:  # of many kinds: the network, the hub, a damaged file
            raise CorpusError(
                f"{self.name} cannot be read any further ({error}); run the same command again "
                "to continue"
            ) from error


def paragraphs_joined(lines: Iterable[str]) -> Iterator[str]:
    """Yield what stands between blank lines."""
    document: list[str] = []
    for line in lines:
        if not line.isspace():
            document.append(line)
        elif document:
            yield "".join(document).rstrip("\n")
            document = []
    if document:
        yield "".join(document).rstrip("\n")


_WIKITEXT_TITLE = re.compile(r" = [^=].* = \n?")


def articles_joined(rows: Iterable[str]) -> Iterator[str]:
    """Yield articles from the rows of WikiText, which are paragraphs: a title begins an article."""
    article: list[str] = []
    for row in rows:
        if _WIKITEXT_TITLE.fullmatch(row) and article:
            yield "".join(article).strip("\n")
            article = []
        if row.strip() or article:
            article.append(row)
    if article:
        yield "".join(article).strip("\n")


def text_of(record: Any, field: str) -> str:
    """Return the text in a record, or say what the record has instead."""
    if not isinstance(record, Mapping):
        raise CorpusError(f"an object with the field {field!r} is expected, got {record!r:.60}")
    if field not in record:
        names = [str(name) for name in record]
        raise CorpusError(
            f"there is no field {field!r}{nearest(field, names)}; it has {', '.join(names)}"
        )
    if not isinstance(record[field], str):
        raise CorpusError(f"the field {field!r} is not text, but {record[field]!r:.60}")
    return record[field] if not record[field].isspace() else ""


def _format_of(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSIONS:
        suffixes.pop()
    if not suffixes or suffixes[-1] not in (*_TEXT, *_JSON_LINES):
        known = ", ".join((*_TEXT, *_JSON_LINES))
        raise CorpusError(
            f"{path}: the kind of file is told by its name, which must end with one of {known}, "
            f"or one of these and {' or '.join(_COMPRESSIONS)}"
        )
    return suffixes[-1]


def _decompressed(path: Path, raw: IO[bytes]) -> Any:
    match path.suffix.lower():
        case ".gz":
            return gzip.GzipFile(fileobj=raw)
        case ".xz":
            return lzma.LZMAFile(raw)
    return raw
