"""Text, corpora and language models small enough for tests."""

import json
import random
from pathlib import Path
from typing import Any

from hyla.tasks.language import Corpus, CorpusConfig, TextFiles, prepare
from hyla.training import merge
from hyla.training.language import LanguageConfig, language_config_from_tree, load_language_preset

VOCAB_SIZE = 400
SETTINGS = CorpusConfig(vocab_size=VOCAB_SIZE, validation_fraction=0.1)


def documents(count: int = 60, *, seed: int = 0) -> list[str]:
    """Stories of a small world, with names, numbers and other scripts."""
    draw = random.Random(seed)
    names = ["Anna", "Bertil", "Çelik", "Dörte", "Эмма", "藤原"]
    verbs = ["saw", "greeted", "followed", "painted", "forgot"]
    things = ["the river", "a red door", "two  horses", "the year 1923", "nobody", "☃ snow"]
    return [
        "\n".join(
            f"{draw.choice(names)} {draw.choice(verbs)} {draw.choice(things)}, and left."
            for _ in range(draw.randint(1, 12))
        )
        for _ in range(count)
    ]


def write_text(path: Path, texts: list[str]) -> Path:
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return path


def write_json_lines(path: Path, texts: list[str], **more: Any) -> Path:
    lines = [json.dumps({"text": text, **more}, ensure_ascii=False) for text in texts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def tiny_corpus(folder: Path, count: int = 60) -> Corpus:
    """The corpus under `folder`, made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    source = write_text(folder / "text.txt", documents(count))
    return prepare(folder / "corpus", TextFiles([source]), settings=SETTINGS)


def tiny_language_config(corpus: Corpus, **changes: Any) -> LanguageConfig:
    """A run of 12 steps with records at 4, 6, 8 and 12."""
    tree = merge(
        load_language_preset("smoke"),
        {
            "model": {"embed_dim": 16, "mlp_dim": 32, "sequence_length": 16},
            "member": {"warmup_steps": 2},
            "steps": 12,
            "log_every": 4,
            "evaluation": {"every": 6, "sequences": 6, "final_sequences": 9},
        },
    )
    return language_config_from_tree(merge(tree, changes), corpus)
