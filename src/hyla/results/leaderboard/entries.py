"""Entries of the leaderboard: a JSON file for each, `VARIANT/MODEL-seedN.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hyla._files import write_json
from hyla.results.leaderboard.scoring import Part, Score
from hyla.tasks.sraven.variants import INSTANCES, VARIANTS

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
    write_json(path, kept, ensure_ascii=False)
    return path


def read_entries(folder: Path = FOLDER) -> list[Entry]:
    """Read all entries; a ValueError names the file of one that no answers can have made."""
    return list(_read(sorted(folder.glob("*/*.json"))))


def _read(paths: Iterable[Path]) -> Iterable[Entry]:
    for path in paths:
        try:
            tree: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            reached = _score(tree.pop("score"))
            entry = Entry(score=reached, **tree)
            _check(entry)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path} is no entry of the leaderboard: {error}") from error
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


def _check(entry: Entry) -> None:
    """Raise a ValueError about what no answers to the variant's instances can reach."""
    reached, known = entry.score, VARIANTS.get(entry.variant)
    if known is None or known.published["hash"] != entry.hash:
        raise ValueError(
            f"it was scored on another variant than {entry.variant} is now: score its answers again"
        )
    several = known.published["ambiguous"]
    want = (INSTANCES,) if several is None else (INSTANCES, *_divided(several))
    given = (reached.whole, reached.unambiguous, reached.ambiguous)
    parts = [part for part in given if part is not None]
    if tuple(part.instances for part in parts) != want:
        raise ValueError(
            f"its parts are of {[part.instances for part in parts]} instances, and those of "
            f"{entry.variant} are of {list(want)}"
        )
    if any(not 0 <= part.right <= part.instances for part in parts):
        raise ValueError("more of its answers are right than there are, or fewer than none")
    if len(parts) > 1 and sum(part.right for part in parts[1:]) != reached.whole.right:
        raise ValueError("the right answers of its parts do not add up to those of the whole")
    if reached.ceiling != known.published["ceiling"]:
        raise ValueError(
            f"its ceiling is {reached.ceiling}, and that of {entry.variant} is "
            f"{known.published['ceiling']}"
        )
    if not set(reached.by_rule) <= set(known.config.rules) or any(
        not 0 <= share <= 1 for share in reached.by_rule.values()
    ):
        raise ValueError("by_rule must hold a share from 0 to 1 for rules of the variant")
    for name in ("seed", "trained_on", "seconds"):
        value = getattr(entry, name)
        if value is not None and not value >= 0:
            raise ValueError(f"{name} is not negative, got {value}")


def _divided(ambiguous: float) -> tuple[int, int]:
    """How many instances have one answer, and how many several, by the share of the second."""
    several = round(ambiguous * INSTANCES)
    return INSTANCES - several, several


def _shown(part: Part) -> dict[str, float | None]:
    """For people who look into the file: it is read from the counts."""
    return {name: _rounded(value) for name, value in part.accuracy._asdict().items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
