"""SentencePiece: training a tokenizer, and using one."""

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hyla._optional import needed
from hyla.tasks.language.corpora import CorpusError, MissingPackageError

VOCAB_SIZE = 32_000
SAMPLE_SIZE = 16_000_000
"""Characters of text that a tokenizer is trained on."""

# Longer lines are cut, not left out: SentencePiece silently skips what exceeds its limit of bytes.
_LINE_LENGTH = 1000


class Tokenizer:
    """Text to token ids and back, by a SentencePiece model."""

    def __init__(self, model: bytes):
        sentencepiece = _import()
        self.model = model
        try:
            self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise CorpusError(f"this is not a SentencePiece model ({error})") from error
        self.vocab_size: int = self._processor.vocab_size()
        self.separator: int = self._processor.eos_id()
        """The token after every document."""
        if self.separator < 0:
            raise CorpusError(
                "this SentencePiece model has no end-of-sentence token to put between documents; "
                "train it with eos_id"
            )

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """Read a SentencePiece model file."""
        try:
            return cls(Path(path).read_bytes())
        except (OSError, CorpusError) as error:
            raise CorpusError(f"cannot load the tokenizer {path}: {error}") from error

    @property
    def sha256(self) -> str:
        """Hash of the model."""
        return hashlib.sha256(self.model).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without separators."""
        return self._processor.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids; separators become blank lines."""
        texts, start = [], 0
        tokens = list(tokens)
        for stop in (*(i for i, t in enumerate(tokens) if t == self.separator), len(tokens)):
            texts.append(self._processor.decode(tokens[start:stop]))
            start = stop + 1
        return "\n\n".join(texts)

    def pieces(self) -> Iterator[str]:
        """Yield the surface of each piece that stands for text, spaces as spaces."""
        p = self._processor
        for i in range(self.vocab_size):
            if not (p.is_byte(i) or p.is_control(i) or p.is_unknown(i) or p.is_unused(i)):
                yield p.id_to_piece(i).replace("▁", " ")

    def keeps(self, text: str) -> bool:
        """Whether nothing in `text` is changed before it is cut into pieces."""
        return self._processor.normalize(text) == text.replace(" ", "▁")

    @property
    def has_bytes(self) -> bool:
        """Whether characters that no piece has are spelled in bytes."""
        return self._processor.is_byte(self._processor.piece_to_id("<0x0A>"))


def train_tokenizer(documents: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Train byte-pair encoding on a sample of text.

    Nothing is normalised and unknown characters are spelled in bytes, so decoding gives back the
    text, whatever it is.
    """
    lines = [
        line[i : i + _LINE_LENGTH]
        for document in documents
        for line in document.split("\n")
        for i in range(0, len(line), _LINE_LENGTH)
    ]
    if not lines:
        raise CorpusError("there is no text to train a tokenizer on")
    model = io.BytesIO()
    try:
        _import().SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=vocab_size,
            model_type="bpe",
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            max_sentence_length=8 * _LINE_LENGTH,
            minloglevel=2,  # errors alone
        )
    except RuntimeError as error:
        raise CorpusError(_explained(str(error), vocab_size)) from error
    return Tokenizer(model.getvalue())


def _explained(error: str, vocab_size: int) -> str:
    largest = re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", error)
    if largest:
        return (
            f"a vocabulary of {vocab_size:,} is too large for this corpus, which has only "
            f"{int(largest[1]):,} pieces: give --vocab-size {largest[1]} (vocab_size) or less, "
            "or more text"
        )
    smallest = re.search(r"smaller than required_chars\. \d+ vs (\d+)", error)
    if smallest:
        return (
            f"a vocabulary of {vocab_size:,} is too small for the bytes and the characters of this "
            f"corpus: give --vocab-size {smallest[1]} (vocab_size) or more"
        )
    return f"SentencePiece cannot train a tokenizer with vocab_size {vocab_size}: {error}"


def _import() -> Any:
    with needed("language", "tokenizers need SentencePiece", raises=MissingPackageError):
        import sentencepiece
    return sentencepiece
