"""Documents to tokens, fast: word by word from a table, in several processes."""

import multiprocessing
import os
import re
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np

from hyla.tasks.language.tokenizer import Tokenizer

# A word with the space before it, or a line break, or a space that no word follows.
_WORD = re.compile(r" ?[^ \n]+|\n| ")
# What a normaliser would change: runs of spaces, spaces at the ends, ligatures, fractions, accents.
_PROBE = " a  ﬁ½\u00a0A\u030a "
_MOST_WORDS = 1 << 20  # about 200 MB

Label = TypeVar("Label")


class Encoded(NamedTuple):
    """The tokens of some documents, each with its separator."""

    tokens: np.ndarray
    lengths: list[int]


class Encoder:
    """A tokenizer as a table of words.

    Text is Zipfian: almost every word has been encoded before. Where no piece of the vocabulary
    reaches over the beginning of a word, words can be encoded one by one with the same result,
    and looked up the next time, which is several times faster than SentencePiece alone.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.dtype = token_dtype(tokenizer.vocab_size)
        self._tokenizer = tokenizer
        self._separator = self._to_bytes([tokenizer.separator])
        self._words: dict[str, bytes] = {}
        self.by_word = (
            tokenizer.has_bytes
            and tokenizer.keeps(_PROBE)
            and all(len(_WORD.findall(piece)) == 1 for piece in tokenizer.pieces())
        )

    def encode(self, documents: list[str]) -> Encoded:
        """Encode the documents and put a separator after each."""
        encoded = [self._encode(document) + self._separator for document in documents]
        lengths = [len(tokens) // self.dtype.itemsize for tokens in encoded]
        return Encoded(np.frombuffer(b"".join(encoded), dtype=self.dtype), lengths)

    def _encode(self, text: str) -> bytes:
        if not self.by_word:
            return self._to_bytes(self._tokenizer.encode(text))
        if len(self._words) > _MOST_WORDS:
            self._words.clear()
        known, parts = self._words, []
        for word in _WORD.findall(text):
            tokens = known.get(word)
            if tokens is None:
                tokens = known[word] = self._to_bytes(self._tokenizer.encode(word))
            parts.append(tokens)
        return b"".join(parts)

    def _to_bytes(self, tokens: list[int]) -> bytes:
        return np.array(tokens, dtype=self.dtype).tobytes()


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the smallest type that holds the token ids, in the byte order of the files."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


class EncodingPool:
    """Processes that encode chunks of documents; with one worker, this process itself."""

    def __init__(self, tokenizer: Tokenizer, workers: int):
        self._workers = workers
        self._encoder, self._pool = None, None
        if workers == 1:
            self._encoder = Encoder(tokenizer)
        else:
            # Not forked: the caller may have threads (a progress bar, PyTorch) a fork would lose.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(workers, context, _start_worker, (tokenizer.model,))

    def __enter__(self) -> "EncodingPool":
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def encode(
        self, chunks: Iterable[tuple[list[str], Label]]
    ) -> Iterator[tuple[list[str], Encoded, Label]]:
        """Encode chunks, each with a label of the caller's, and yield them in their order."""
        waiting: deque[tuple[list[str], Future[Encoded], Label]] = deque()
        for documents, label in chunks:
            if self._encoder is not None:
                yield documents, self._encoder.encode(documents), label
                continue
            assert self._pool is not None
            waiting.append((documents, self._pool.submit(_encode_in_worker, documents), label))
            if len(waiting) > 2 * self._workers:
                documents, future, label = waiting.popleft()
                yield documents, future.result(), label
        for documents, future, label in waiting:
            yield documents, future.result(), label


_encoder: Encoder


def _start_worker(model: bytes) -> None:
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends the pool
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _encoder = Encoder(Tokenizer(model))


def _end_with_parent() -> None:
    """Leave no orphan behind a parent that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _encode_in_worker(documents: list[str]) -> Encoded:
    return _encoder.encode(documents)
