"""A prepared corpus: tokens mapped from disk, checked against the manifest."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hyla._errors import nearest
from hyla._files import sha256_of
from hyla.tasks.language.corpora import CorpusError
from hyla.tasks.language.shards import (
    FORMAT,
    JOURNAL,
    MANIFEST,
    TOKENIZER,
    Shard,
    shards_from_json,
)


class Tokens:
    """The tokens of a split, one after the other over all shards."""

    def __init__(self, shards: Sequence[np.ndarray]):
        self._shards = list(shards)
        self._starts = np.cumsum([0, *(len(shard) for shard in shards)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, start: int, length: int) -> np.ndarray:
        """Return `length` tokens from `start` on, across shards if need be."""
        if not 0 <= start <= start + length <= len(self):
            raise IndexError(f"tokens {start} to {start + length} of {len(self)} were asked for")
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        parts, position, stop = [], start, start + length
        while position < stop:
            offset = position - int(self._starts[first])
            part = self._shards[first][offset : offset + stop - position]
            parts.append(part)
            position += len(part)
            first += 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [self._shards[0][:0]])


class Corpus:
    """What `prepare` wrote."""

    def __init__(self, path: Path, manifest: dict[str, Any]):
        """Prefer `Corpus.open`, which checks the files."""
        self.path = path
        self.manifest = manifest
        self.vocab_size: int = manifest["vocab_size"]
        self.separator: int = manifest["separator"]
        self._shards = shards_from_json(manifest["splits"])

    @classmethod
    def open(cls, path: Path | str) -> "Corpus":
        """Open the corpus in the folder `path`; `verify` also reads and hashes all of it."""
        path = Path(path)
        try:
            manifest = json.loads((path / MANIFEST).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            if (path / JOURNAL).exists():
                raise CorpusError(_why_unfinished(path)) from None
            what = f"FOLDER {path}" if path.is_file() else f"{path} FILES"
            raise CorpusError(
                f"{path} is not a prepared corpus; make one with `hyla data prepare {what}`"
            ) from None
        except (OSError, ValueError) as error:
            raise CorpusError(f"{path / MANIFEST} cannot be read: {error}") from error
        if manifest.get("format") != FORMAT:
            raise CorpusError(f"{path} was prepared by another version of hyla; prepare it anew")
        corpus = cls(path, manifest)
        for split in corpus.splits:
            corpus.tokens(split)  # raises where a file is missing or too short
        return corpus

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self._shards)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the vocabulary and all tokens: the same text prepared alike has the same."""
        content = [self.manifest["tokenizer"]["sha256"]] + [
            [split, [shard.sha256[f"{shard.name}.tokens.npy"] for shard in shards]]
            for split, shards in self._shards.items()
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def tokenizer_path(self) -> Path:
        """The SentencePiece model."""
        return self.path / TOKENIZER

    def tokens(self, split: str) -> Tokens:
        """Return the tokens of a split, mapped into memory."""
        return Tokens(
            [
                self._map(f"{shard.name}.tokens.npy", shard.tokens)
                for shard in self._shards_of(split)
            ]
        )

    def documents(self, split: str) -> np.ndarray:
        """Return where each document of a split begins, as positions in its tokens."""
        starts, offset = [], 0
        for shard in self._shards_of(split):
            starts.append(self._map(f"{shard.name}.documents.npy", shard.documents) + offset)
            offset += shard.tokens
        return np.concatenate(starts)

    def bytes_per_token(self, split: str) -> float:
        """Bytes of text that a token of the split stands for, separators being tokens too."""
        shards = self._shards_of(split)
        return sum(shard.bytes for shard in shards) / sum(shard.tokens for shard in shards)

    def verify(self) -> None:
        """Read every file and compare its hash with the manifest's; raise where one differs."""
        files = {TOKENIZER: self.manifest["tokenizer"]["sha256"]}
        for shards in self._shards.values():
            for shard in shards:
                files |= shard.sha256
        for file, expected in files.items():
            if sha256_of(self.path / file) != expected:
                raise CorpusError(
                    f"{self.path / file} is damaged: its SHA-256 is not the manifest's"
                )

    def _shards_of(self, split: str) -> list[Shard]:
        if split not in self._shards:
            raise CorpusError(
                f"{self.path} has no split {split!r}{nearest(split, self.splits)}; "
                f"it has {', '.join(self.splits)}"
            )
        return self._shards[split]

    def _map(self, file: str, length: int) -> np.ndarray:
        path = self.path / file
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise CorpusError(
                f"{path} cannot be mapped ({error}); copy or prepare it anew"
            ) from error
        if array.shape != (length,):
            raise CorpusError(f"{path} is damaged: it holds {array.shape}, not {length} numbers")
        return array


def _why_unfinished(path: Path) -> str:
    reason = json.loads((path / JOURNAL).read_bytes()).get("failed")
    if reason is None:
        return (
            f"the preparation of {path} was interrupted; run the same `hyla data prepare` again to "
            "finish it"
        )
    return f"the preparation of {path} failed: {reason}"
