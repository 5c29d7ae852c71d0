"""Token shards on disk: what a prepared corpus consists of, and the manifest that names it all.

A shard is two NumPy files that can be mapped into memory: ``train-00000.tokens.npy`` holds the
tokens of whole documents, each followed by the separator, and ``train-00000.documents.npy`` where
each of them begins. ``manifest.json`` is written last: without it, a corpus is not whole.
"""

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hyla._files import write_atomically

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.model"
JOURNAL = "preparation.json"  # until the manifest is there
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One shard, as the manifest has it."""

    name: str
    tokens: int
    documents: int
    bytes: int
    """UTF-8 bytes of the documents' text."""
    sha256: Mapping[str, str]
    """Hashes of the shard's files, by name."""


class ShardWriter:
    """Collects documents of one split and writes them as shards."""

    def __init__(self, directory: Path, split: str, dtype: np.dtype, shards: Sequence[Shard]):
        self.split = split
        self.shards = list(shards)
        self._directory = directory
        self._dtype = dtype
        self._clear()

    def _clear(self) -> None:
        self._parts: list[np.ndarray] = []
        self._lengths: list[int] = []
        self._bytes = 0
        self.pending_tokens = 0

    @property
    def tokens(self) -> int:
        """Tokens taken so far, written or not."""
        return sum(shard.tokens for shard in self.shards) + self.pending_tokens

    def add(self, tokens: np.ndarray, text_bytes: int) -> None:
        """Take the tokens of one document."""
        self._parts.append(tokens)
        self._lengths.append(len(tokens))
        self._bytes += text_bytes
        self.pending_tokens += len(tokens)

    def write(self) -> None:
        """Write what was taken since the last shard, if anything, as the next one."""
        if not self._parts:
            return
        name = f"{self.split}-{len(self.shards):05d}"
        starts = np.cumsum([0, *self._lengths[:-1]], dtype="<i8")
        content = {
            f"{name}.tokens.npy": np.concatenate(self._parts).astype(self._dtype, copy=False),
            f"{name}.documents.npy": starts,
        }
        hashes = {file: _write_array(self._directory / file, a) for file, a in content.items()}
        self.shards.append(
            Shard(
                name=name,
                tokens=self.pending_tokens,
                documents=len(self._lengths),
                bytes=self._bytes,
                sha256=hashes,
            )
        )
        self._clear()


def _write_array(path: Path, array: np.ndarray) -> str:
    """Write a .npy file and return its hash."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    content = buffer.getvalue()
    write_atomically(path, content)
    return hashlib.sha256(content).hexdigest()


def splits_to_json(splits: Mapping[str, Sequence[Shard]]) -> dict[str, Any]:
    """Return the shards of all splits with their sums, as plain values."""
    return {
        split: {
            "tokens": sum(shard.tokens for shard in shards),
            "documents": sum(shard.documents for shard in shards),
            "bytes": sum(shard.bytes for shard in shards),
            "shards": [asdict(shard) for shard in shards],
        }
        for split, shards in splits.items()
    }


def shards_from_json(splits: Mapping[str, Any]) -> dict[str, list[Shard]]:
    """Undo `splits_to_json`."""
    return {
        split: [Shard(**shard) for shard in content["shards"]] for split, content in splits.items()
    }
