"""Entries of the leaderboard: a JSON file for each, `VARIANT/MODEL-seedN.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hyla._files import write_atomically
from hyla.results.leaderboard.scoring import Part, Score
from hyla.tasks.sraven.variants import VARIANTS, variant_named

FOLDER = Path("results/sraven/leaderboard")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Who answered a variant's instances, how they were trained, and what they reached."""

    variant: str
    hash: str
    """Of the variant, as it was when the answers were scored."""
    model: str
    """What the table calls it; entries of one name are its seeds."""
    score: Score
    seed: int | None = None
    """Of its training; None of what is not trained."""
    trained_on: int | None = None
    """Instances seen in training."""
    seconds: float | None = None
    """Time of the training."""
    device: str = ""
    """What it was trained on."""
    link: str = ""
    """Where it is described."""
    note: str = ""
    predictions_sha256: str = ""

    @property
    def file_name(self) -> str:
        """Its place below the leaderboard's folder."""
        words = re.sub(r"[^a-z0-9]+", "-", self.model.lower()).strip("-")
        seed = "" if self.seed is None else f"-seed{self.seed}"
        return f"{self.variant}/{words}{seed}.json"


def write_entry(entry: Entry, folder: Path = FOLDER) -> Path:
    """Write an entry, in the place of an earlier one of the same model and seed."""
    if not re.search(r"[a-z0-9]", entry.model.lower()):
        raise ValueError(f"a model needs a name with letters or digits, got {entry.model!r}")
    path = folder / entry.file_name
    if path.exists() and (other := json.loads(path.read_text("utf-8"))["model"]) != entry.model:
        raise ValueError(
            f"{path} is that of {other!r}: give {entry.model!r} a name of other letters"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in asdict(entry).items() if value not in (None, "")}
    kept["score"] |= {
        "accuracy": _shown(entry.score.whole),
        "share_of_ceiling": _rounded(entry.score.share_of_ceiling),
    }
    write_atomically(path, (json.dumps(kept, indent=1, ensure_ascii=False) + "\n").encode())
    return path


def read_entries(folder: Path = FOLDER) -> list[Entry]:
    """Read all entries; a ValueError about one whose variant is not what it was."""
    return list(_read(sorted(folder.glob("*/*.json"))))


def _read(paths: Iterable[Path]) -> Iterable[Entry]:
    for path in paths:
        try:
            tree: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            reached = _score(tree.pop("score"))
            entry = Entry(score=reached, **tree)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path} is no entry of the leaderboard: {error}") from error
        if entry.variant not in VARIANTS or variant_named(entry.variant).published["hash"] != (
            entry.hash
        ):
            raise ValueError(
                f"{path} was scored on another variant than {entry.variant} is now: score its "
                "answers again"
            )
        yield entry


def _score(tree: dict[str, Any]) -> Score:
    unambiguous, ambiguous = (
        None if tree[name] is None else Part(**tree[name]) for name in ("unambiguous", "ambiguous")
    )
    return Score(
        whole=Part(**tree["whole"]),
        unambiguous=unambiguous,
        ambiguous=ambiguous,
        by_rule=tree["by_rule"],
        ceiling=tree["ceiling"],
    )


def _shown(part: Part) -> dict[str, float | None]:
    """For people who look into the file: it is read from the counts."""
    return {name: _rounded(value) for name, value in part.accuracy._asdict().items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
