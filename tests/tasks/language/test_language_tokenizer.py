"""Tokenizers: lossless, and the same tokens word by word as in one go."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_text import VOCAB_SIZE, documents

pytest.importorskip("sentencepiece")
import sentencepiece

from hyla.tasks.language import CorpusError, Tokenizer, train_tokenizer
from hyla.tasks.language.encoding import Encoder, token_dtype

TOKENIZER = train_tokenizer(documents(), VOCAB_SIZE)
ENCODER = Encoder(TOKENIZER)
PIECES = [
    *TOKENIZER.pieces(),
    " ",
    "  ",
    "\n",
    "\n\n",
    "</s>",
    "<0x0A>",
    "▁",
    "\t",
    "ﬁ",
    "𝄞",
    "\u00a0",
]


def test_size_and_separator():
    assert TOKENIZER.vocab_size == VOCAB_SIZE
    assert 0 <= TOKENIZER.separator < VOCAB_SIZE
    assert TOKENIZER.separator not in TOKENIZER.encode("</s> anything")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=["Cs"]), max_size=30))
def test_word_by_word_is_the_same(parts):
    text = "".join(parts)
    assert ENCODER.by_word
    (got,) = [ENCODER.encode([text])]
    assert got.tokens.tolist() == [*TOKENIZER.encode(text), TOKENIZER.separator]


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0▁"), max_size=40))
def test_decoding_gives_the_text_back(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_separators_are_decoded_as_blank_lines():
    tokens = [*TOKENIZER.encode("one"), TOKENIZER.separator, *TOKENIZER.encode("two")]
    assert TOKENIZER.decode(tokens) == "one\n\ntwo"


def test_a_tokenizer_of_another_make_is_used_whole():
    other = train_with_defaults(documents())
    encoder = Encoder(other)
    assert not encoder.by_word  # it normalises: words would not be the same
    text = documents(1)[0]
    assert encoder.encode([text]).tokens.tolist() == [*other.encode(text), other.separator]


def train_with_defaults(texts: list[str], **changes) -> Tokenizer:
    import io

    model = io.BytesIO()
    lines = [line for text in texts for line in text.split("\n")]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=60,
        minloglevel=2,
        **changes,
    )
    return Tokenizer(model.getvalue())


def test_a_vocabulary_too_large_for_the_text():
    with pytest.raises(CorpusError, match=r"32,000 is too large for this corpus, .* or less"):
        train_tokenizer(documents(), 32_000)


def test_a_vocabulary_too_small_for_the_characters():
    with pytest.raises(CorpusError, match="100 is too small for the bytes") as error:
        train_tokenizer(documents(), 100)
    (named,) = re.findall(r"give --vocab-size (\d+) \(vocab_size\) or more", str(error.value))
    assert train_tokenizer(documents(), int(named)).vocab_size == int(named)


def test_no_text_at_all():
    with pytest.raises(CorpusError, match="no text to train a tokenizer on"):
        train_tokenizer(["", "\n"], 100)


def test_files_that_are_no_tokenizers(tmp_path):
    path = tmp_path / "a.model"
    with pytest.raises(CorpusError, match=r"cannot load the tokenizer .*a\.model"):
        Tokenizer.load(path)
    path.write_bytes(b"not a model")
    with pytest.raises(CorpusError, match="not a SentencePiece model"):
        Tokenizer.load(path)
    with pytest.raises(CorpusError, match="no end-of-sentence token"):
        train_with_defaults(documents(), eos_id=-1)


def test_large_vocabularies_take_four_bytes():
    assert token_dtype(65_536).itemsize == 2
    assert token_dtype(65_537).itemsize == 4


def test_a_missing_package_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    for kind in (CorpusError, ImportError):
        with pytest.raises(kind, match=r"need SentencePiece: pip install .*hyla\[language\]"):
            Tokenizer(b"")
