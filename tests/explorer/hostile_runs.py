"""Folders that look like runs and are none: what lies among runs, by accident or by malice."""

import json
import os
from pathlib import Path

CONFIG = {"steps": 30, "model": {"attention": "hyla"}, "task_name": "fuzzy", "members": [{}]}
RECORD = '{"step": %d, "loss": [0.5, 0.25], "ood/r2": [0.1, 0.2]}\n'
DEEP = "[" * 200_000


def add_run(folder: Path, *, lines: int = 3, **changed: object) -> Path:
    """A run that is not finished and can be read."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changed}))
    with (folder / "metrics.jsonl").open("w") as log:
        log.writelines(RECORD % (step + 1) for step in range(lines))
    return folder


def add_hostile_folders(root: Path) -> list[str]:
    """Fill `root`, and return the names of the folders that cannot be listed as runs."""
    for name in ("config.json", "metrics.jsonl", "finished.json", "provenance.json"):
        pipe = add_run(root / f"pipe-{name}") / name
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
        place = add_run(root / f"folder-{name}") / name
        place.unlink(missing_ok=True)
        place.mkdir()
        (add_run(root / f"deep-{name}") / name).write_text(DEEP)
    (add_run(root / "large-finished.json") / "finished.json").write_bytes(b" " * (17 << 20))
    (add_run(root / "garbage") / "metrics.jsonl").write_bytes(b"garbage\n" * 100)
    add_run(root / "surrogate", task_name="\ud800")
    add_run(root / "infinite", steps=float("inf"))
    (add_run(root / "long-number") / "config.json").write_text('{"steps": ' + "9" * 5000 + "}")
    bad = sorted(path.name for path in root.iterdir())
    # Odd, and yet runs.
    odd = add_run(root / "odd-metrics") / "metrics.jsonl"
    odd.write_text('{"step": 1, "\\ud800": [1], "\\u0000": [2], "": [3]}\n')
    add_run(Path(os.fsdecode(os.fsencode(root) + b"/not-utf-8-\xff\xfe")))
    return bad
