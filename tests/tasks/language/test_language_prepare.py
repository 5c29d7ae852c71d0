"""Preparing a corpus: whole or not at all, and the same files however often it was interrupted."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise

import numpy as np
import pytest

from tiny_text import SETTINGS, VOCAB_SIZE, documents, tiny_corpus, write_json_lines, write_text

pytest.importorskip("sentencepiece")

from hyla.tasks.language import (
    Corpus,
    CorpusConfig,
    CorpusError,
    TextFiles,
    Tokenizer,
    prepare,
)
from hyla.tasks.language import prepare as prepare_function
from hyla.tasks.language import shards as shards_module

TEXTS = documents(60)


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def many_shards(monkeypatch):
    """Chunks and shards so small that the tiny corpus has many."""
    monkeypatch.setattr(sys.modules[prepare_function.__module__], "_CHUNK", 500)
    return CorpusConfig(vocab_size=VOCAB_SIZE, validation_fraction=0.1, shard_tokens=400)


def source(tmp_path) -> TextFiles:
    return TextFiles([write_text(tmp_path / "text.txt", TEXTS)])


def test_tokens_are_the_documents_with_separators(tmp_path, many_shards):
    corpus = prepare(tmp_path / "out", source(tmp_path), settings=many_shards)
    assert len(corpus.manifest["splits"]["train"]["shards"]) > 3
    tokenizer = Tokenizer.load(corpus.tokenizer_path)
    found = {}
    for split in ("train", "validation"):
        tokens = corpus.tokens(split)
        starts = [*corpus.documents(split).tolist(), len(tokens)]
        found[split] = []
        for start, stop in pairwise(starts):
            *text, separator = tokens.read(start, stop - start).tolist()
            assert separator == corpus.separator
            found[split].append(tokenizer.decode(text))
    assert sorted(found["train"] + found["validation"]) == sorted(TEXTS)
    assert [t for t in TEXTS if t in found["train"]] == found["train"]  # in order
    assert found["validation"]
    for split, texts in found.items():
        content = corpus.manifest["splits"][split]
        assert content["documents"] == len(texts)
        assert content["bytes"] == sum(len(text.encode()) for text in texts)
        assert corpus.bytes_per_token(split) == content["bytes"] / len(corpus.tokens(split))
    corpus.verify()


def test_the_same_text_is_on_one_side(tmp_path):
    twice = TextFiles([write_text(tmp_path / "twice.txt", TEXTS + TEXTS)])
    once = prepare(tmp_path / "once", source(tmp_path), settings=SETTINGS).manifest
    both = prepare(tmp_path / "twice", twice, settings=SETTINGS).manifest
    for split in ("train", "validation"):
        assert both["splits"][split]["documents"] == 2 * once["splits"][split]["documents"]


def test_validation_files(tmp_path):
    held_out = TextFiles([write_json_lines(tmp_path / "v.jsonl", documents(5, seed=1))])
    corpus = prepare(tmp_path / "out", source(tmp_path), held_out, settings=SETTINGS)
    counts = {split: corpus.manifest["splits"][split]["documents"] for split in corpus.splits}
    assert counts == {"train": 60, "validation": 5}


def test_a_tokenizer_from_elsewhere(tmp_path):
    first = prepare(tmp_path / "first", source(tmp_path), settings=SETTINGS)
    texts = TextFiles([write_text(tmp_path / "more.txt", documents(20, seed=5))])
    second = prepare(tmp_path / "second", texts, tokenizer=first.tokenizer_path, settings=SETTINGS)
    assert second.manifest["tokenizer"] == first.manifest["tokenizer"]


def test_most_tokens(tmp_path, many_shards):
    settings = CorpusConfig(**(vars(many_shards) | {"max_tokens": 1000}))
    corpus = prepare(tmp_path / "out", source(tmp_path), settings=settings)
    assert 800 < len(corpus.tokens("train")) <= 1000


def test_killed_at_every_write_the_corpus_ends_the_same(tmp_path, many_shards, monkeypatch):
    expected = tmp_path / "expected"
    prepare(expected, source(tmp_path), settings=many_shards)
    out, interruptions = tmp_path / "out", 0
    real = shards_module.write_atomically
    writes_left = 0

    class Killed(BaseException):
        pass

    def write(path, content):
        nonlocal writes_left
        if writes_left == 0:
            path.with_name(f".{path.name}.tmp-1").write_bytes(content[: len(content) // 2])
            raise Killed
        writes_left -= 1
        real(path, content)

    monkeypatch.setattr(shards_module, "write_atomically", write)
    monkeypatch.setattr(sys.modules[prepare_function.__module__], "write_atomically", write)
    while True:
        writes_left = 2 + interruptions % 5  # two shards and the journal are five files
        try:
            prepare(out, source(tmp_path), settings=many_shards)
            break
        except Killed:
            interruptions += 1
            if (out / "preparation.json").exists():
                with pytest.raises(CorpusError, match="was interrupted; run the same"):
                    Corpus.open(out)
    assert interruptions > 3
    assert files(out) == files(expected)


KILL_SCRIPT = """
import sys
from pathlib import Path
from hyla.tasks.language import CorpusConfig, TextFiles, prepare
module = sys.modules[prepare.__module__]
module._CHUNK = 500
if __name__ == "__main__":
    text, out = map(Path, sys.argv[1:3])
    settings = CorpusConfig(vocab_size=400, validation_fraction=0.1, shard_tokens=400)
    import time
    def slowly(progress):
        print(progress.tokens, flush=True)
        time.sleep(0.05)
    prepare(out, TextFiles([text]), settings=settings, workers=2, on_progress=slowly)
"""


@pytest.mark.integration
def test_kill_minus_nine_with_workers(tmp_path, many_shards):
    text = source(tmp_path).paths[0]
    prepare(tmp_path / "expected", source(tmp_path), settings=many_shards)
    script = tmp_path / "script.py"
    script.write_text(KILL_SCRIPT)
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, str(script), str(text), str(out)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) > 900:
            break
    workers = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True
    ).stdout.split()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not (out / "manifest.json").exists()
    journal = json.loads((out / "preparation.json").read_text())
    assert journal["splits"]["train"]["shards"]
    prepare(out, source(tmp_path), settings=many_shards)
    assert files(out) == files(tmp_path / "expected")
    assert len(workers) >= 2
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in workers):
        assert time.monotonic() < deadline, "workers outlived their parent"
        time.sleep(0.05)


def test_a_finished_corpus_is_not_prepared_again(tmp_path):
    first = prepare(tmp_path / "out", source(tmp_path), settings=SETTINGS)
    before = {path: path.stat().st_mtime_ns for path in first.path.iterdir()}
    again = prepare(tmp_path / "out", source(tmp_path), settings=SETTINGS)
    assert again.fingerprint == first.fingerprint
    assert before == {path: path.stat().st_mtime_ns for path in first.path.iterdir()}


def test_other_input_is_refused(tmp_path, many_shards):
    prepare(tmp_path / "out", source(tmp_path), settings=SETTINGS)
    with pytest.raises(
        CorpusError, match=r"holds a corpus made from other input \(settings differ"
    ):
        prepare(tmp_path / "out", source(tmp_path), settings=many_shards)
    other = TextFiles([write_text(tmp_path / "text.txt", TEXTS[1:])])
    with pytest.raises(CorpusError, match=r"\(train differ\)"):
        prepare(tmp_path / "out", other, settings=SETTINGS)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(CorpusError, match="is not empty and holds no corpus"):
        prepare(tmp_path / "full", other, settings=SETTINGS)


def test_no_documents_at_all(tmp_path):
    empty = TextFiles([write_text(tmp_path / "text.txt", [])])
    with pytest.raises(CorpusError, match="no text to train a tokenizer on"):
        prepare(tmp_path / "out", empty, settings=SETTINGS)


def test_a_tokenizer_that_cannot_be_trained_leaves_the_folder_free(tmp_path):
    """The vocabulary that the error names is one that works, in the same folder."""
    with pytest.raises(CorpusError, match=r"give --vocab-size \d+ \(vocab_size\) or less") as error:
        prepare(tmp_path / "out", source(tmp_path))
    assert list((tmp_path / "out").iterdir()) == []
    (named,) = re.findall(r"--vocab-size (\d+)", str(error.value))
    settings = CorpusConfig(vocab_size=int(named), validation_fraction=0.1)
    corpus = prepare(tmp_path / "out", source(tmp_path), settings=settings)
    assert corpus.vocab_size == int(named)


def test_no_validation_documents(tmp_path):
    settings = CorpusConfig(vocab_size=VOCAB_SIZE, validation_fraction=1e-9)
    advice = r"no validation documents .* give --validation files, or a larger --validation-fract"
    with pytest.raises(CorpusError, match=advice):
        prepare(tmp_path / "out", source(tmp_path), settings=settings)
    # Whoever looks later is not sent to do the same again.
    with pytest.raises(CorpusError, match="out failed: there are no validation documents"):
        Corpus.open(tmp_path / "out")
    with pytest.raises(ValueError, match="validation_fraction must lie between 0 and 1, got 0"):
        CorpusConfig(validation_fraction=0)


def test_a_folder_whose_preparation_failed_takes_what_its_error_advises(tmp_path):
    out, few = tmp_path / "out", CorpusConfig(vocab_size=VOCAB_SIZE, validation_fraction=1e-9)
    for _ in range(2):  # the same again fails again
        with pytest.raises(CorpusError, match="in the same folder"):
            prepare(out, source(tmp_path), settings=few)
    assert prepare(out, source(tmp_path), settings=SETTINGS).manifest["splits"]["validation"]
    assert files(out) == files(prepare(tmp_path / "new", source(tmp_path), settings=SETTINGS).path)


def test_a_failed_preparation_takes_nobody_elses_files_with_it(tmp_path):
    few = CorpusConfig(vocab_size=VOCAB_SIZE, validation_fraction=1e-9)
    with pytest.raises(CorpusError, match="no validation documents"):
        prepare(tmp_path / "out", source(tmp_path), settings=few)
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(CorpusError, match="is not empty and holds no corpus"):
        prepare(tmp_path / "out", source(tmp_path), settings=SETTINGS)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "mine"


def test_what_is_no_corpus(tmp_path):
    with pytest.raises(
        CorpusError, match="is not a prepared corpus; make one with `hyla data prep"
    ):
        Corpus.open(tmp_path / "nowhere")


def test_damage_is_found(tmp_path):
    corpus = tiny_corpus(tmp_path)
    tokens = corpus.path / "train-00000.tokens.npy"
    whole = tokens.read_bytes()
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    tokens.write_bytes(flipped)
    with pytest.raises(CorpusError, match=r"train-00000\.tokens\.npy is damaged: its SHA-256"):
        Corpus.open(corpus.path).verify()
    for content in (whole[:-10], whole[:20], b""):
        tokens.write_bytes(content)
        with pytest.raises(
            CorpusError, match=r"train-00000\.tokens\.npy (is dam|cannot be mapped)"
        ):
            Corpus.open(corpus.path)
    tokens.unlink()
    with pytest.raises(CorpusError, match="cannot be mapped"):
        Corpus.open(corpus.path)
    manifest = corpus.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(CorpusError, match="another version of hyla"):
        Corpus.open(corpus.path)
    manifest.write_text("{")
    with pytest.raises(CorpusError, match="cannot be read"):
        Corpus.open(corpus.path)


def test_the_fingerprint_does_not_depend_on_the_place(tmp_path):
    corpus = tiny_corpus(tmp_path)
    shutil.copytree(corpus.path, tmp_path / "elsewhere")
    assert Corpus.open(tmp_path / "elsewhere").fingerprint == corpus.fingerprint


def test_unknown_splits_are_named(tmp_path):
    with pytest.raises(CorpusError, match=r"no split 'valid' \(did you mean 'validation'\?\)"):
        tiny_corpus(tmp_path).tokens("valid")


def test_tokens_across_shards(tmp_path, many_shards):
    corpus = prepare(tmp_path / "out", source(tmp_path), settings=many_shards)
    tokens = corpus.tokens("train")
    whole = np.concatenate(
        [np.load(path) for path in sorted(corpus.path.glob("train-*.tokens.npy"))]
    )
    for start, length in ((0, 0), (0, len(whole)), (399, 5), (17, 1200), (len(whole) - 1, 1)):
        assert np.array_equal(tokens.read(start, length), whole[start : start + length])
    with pytest.raises(IndexError, match="were asked for"):
        tokens.read(len(whole) - 1, 2)
