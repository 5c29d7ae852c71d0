"""Reading documents: formats, positions, and what is wrong with a file."""

import gzip
import json
import lzma

import pytest

from hyla.tasks.language import CorpusError, HubDataset, TextFiles
from hyla.tasks.language.corpora import Position, articles_joined
from tiny_text import documents, write_json_lines, write_text

TEXTS = documents(7)


def read(source, start=Position(0, 0)) -> list[str]:  # noqa: B008
    return [text for text, _ in source.documents(start)]


def compressed(path, suffix):
    out = path.with_name(path.name + suffix)
    out.write_bytes({".gz": gzip, ".xz": lzma}[suffix].compress(path.read_bytes()))
    return out


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
@pytest.mark.parametrize("kind", ["txt", "jsonl", "json"])
def test_every_format_gives_the_same_documents(tmp_path, kind, suffix):
    write = write_text if kind == "txt" else write_json_lines
    path = write(tmp_path / f"a.{kind}", TEXTS)
    path = compressed(path, suffix) if suffix else path
    source = TextFiles([path])
    assert read(source) == TEXTS
    assert source.bytes_read == source.total_bytes == path.stat().st_size


def test_blank_lines_in_any_number_and_windows_line_ends(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n\r\n one\r\n two \r\n\r\n\n \t\nthree")
    assert read(TextFiles([path])) == [" one\n two ", "three"]


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_a_last_document_without_a_line_end(tmp_path, suffix):
    path = tmp_path / "a.txt"
    path.write_text("one\n\ntwo", encoding="utf-8")
    source = TextFiles([compressed(path, suffix) if suffix else path] * 2)
    assert read(source) == ["one", "two"] * 2
    assert source.bytes_read == source.total_bytes


def test_reading_goes_on_at_any_position(tmp_path):
    paths = [write_text(tmp_path / f"{i}.txt", TEXTS[i : i + 3]) for i in (0, 3)]
    source = TextFiles(paths)
    numbered = list(source.documents())
    for i, (_, position) in enumerate(numbered):
        assert read(source, position) == [text for text, _ in numbered[i + 1 :]]


def test_documents_without_text_are_left_out(tmp_path):
    path = write_json_lines(tmp_path / "a.jsonl", ["one", "", " \n", "two"])
    path.write_text(path.read_text() + "\n")
    assert read(TextFiles([path])) == ["one", "two"]


def test_a_sample_comes_from_all_files(tmp_path):
    paths = [write_text(tmp_path / f"{i}.txt", [f"file {i} " * 10] * 50) for i in range(4)]
    sample = list(TextFiles(paths).sample(400))
    assert {text[:6] for text in sample} == {f"file {i}" for i in range(4)}
    assert len(sample) < 12


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\n{"text": "b"\n', r"a\.jsonl, line 2: this is not JSON"),
        (
            b'{"text": "a"}\n{"txet": "b"}\n',
            r"line 2: there is no field 'text' \(did you mean 'txet",
        ),
        (b'{"text": 3}\n', r"line 1: the field 'text' is not text, but 3"),
        (b"[1]\n", r"line 1: an object with the field 'text' is expected, got \[1\]"),
        (b'{"text": "\xff"}\n', r"a\.jsonl, after line 0: this is not UTF-8"),
    ],
)
def test_bad_lines_are_named(tmp_path, content, message):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        read(TextFiles([path]))


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_truncated_and_foreign_archives_are_named(tmp_path, suffix):
    path = compressed(write_text(tmp_path / "a.txt", TEXTS * 40), suffix)
    whole = path.read_bytes()
    for broken in (whole[: len(whole) // 2], b"no archive at all"):
        path.write_bytes(broken)
        with pytest.raises(CorpusError, match=rf"a\.txt\{suffix}, after line .* or damaged"):
            read(TextFiles([path]))


def test_files_that_cannot_be_corpora(tmp_path):
    with pytest.raises(CorpusError, match=r"its name, which must end with one of \.txt, \.jsonl"):
        TextFiles([tmp_path / "a.pdf"])
    with pytest.raises(CorpusError, match=r"a\.txt is not there"):
        TextFiles([tmp_path / "a.txt"])
    (tmp_path / "b.txt").mkdir()
    with pytest.raises(CorpusError, match=r"b\.txt is not a file"):
        TextFiles([tmp_path / "b.txt"])


def test_identity_knows_content_and_not_place(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        write_text(folder / "a.txt", TEXTS)
    first = TextFiles([here / "a.txt"]).identity()
    assert first == TextFiles([there / "a.txt"]).identity()
    write_text(there / "a.txt", TEXTS[1:])
    assert first != TextFiles([there / "a.txt"]).identity()
    assert json.loads(json.dumps(first)) == first


# --- Hugging Face --------------------------------------------------------------------------------


@pytest.fixture
def c4_file(tmp_path):
    """A file as allenai/c4 has them: JSON lines under the name .json.gz."""
    path = write_json_lines(
        tmp_path / "c4-train.00000-of-01024.json",
        TEXTS,
        url="https://example.org/a",
        timestamp="2019-04-25T12:57:54Z",
    )
    return compressed(path, ".gz")


def test_a_dataset_is_streamed_and_resumed(c4_file):
    pytest.importorskip("datasets")
    source = HubDataset("json", files=[str(c4_file)])
    numbered = list(source.documents())
    assert [text for text, _ in numbered] == TEXTS == read(TextFiles([c4_file]))
    assert read(source, numbered[3][1]) == TEXTS[4:]
    assert list(source.sample(1)) == TEXTS[:1]
    assert source.total_bytes is None


def test_errors_of_datasets_are_explained(c4_file, tmp_path):
    pytest.importorskip("datasets")
    with pytest.raises(CorpusError, match="json: there is no field 'body'; it has text, url"):
        read(HubDataset("json", files=[str(c4_file)], text_field="body"))
    with pytest.raises(CorpusError, match="cannot open the dataset json"):
        HubDataset("json", files=[str(tmp_path / "missing.json")])


def test_rows_of_wikitext_become_articles():
    rows = ["", " = One = \n", "", " a \n", " = = Part = = \n", " b \n", " = Two = \n", "", " c \n"]
    assert list(articles_joined(rows)) == [
        " = One = \n a \n = = Part = = \n b ",
        " = Two = \n c ",
    ]
