"""Ask the OSV database whether any version in constraints.txt has a known vulnerability.

Fails if one has. Says so in one line, and does not fail, where the database cannot be reached.
"""

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
DATABASE = "https://api.osv.dev/v1/querybatch"
SECONDS = 5
ACCEPTED: Mapping[str, str] = {}
"""Vulnerabilities that do not matter here, by id, and why."""


def main() -> int:
    """Return how the check ended, as a program's exit status."""
    pins = read_pins(CONSTRAINTS.read_text())
    try:
        found = vulnerabilities(pins)
    except urllib.error.HTTPError as error:
        print(f"Known vulnerabilities: the database refused to answer ({error})")
        return 1 if error.code < 500 else 0
    except OSError as error:
        print(f"Known vulnerabilities: not checked, the database cannot be reached ({error})")
        return 0
    for pin, ids in found.items():
        print(f"{pin} has known vulnerabilities: {', '.join(ids)}; `make constraints` updates it")
    print(f"Known vulnerabilities: {len(found)} of {len(pins)} packages have any")
    return 1 if found else 0


def read_pins(text: str) -> list[str]:
    """Return the lines that pin a version."""
    return [line for line in text.splitlines() if "==" in line and not line.startswith("#")]


def vulnerabilities(pins: list[str]) -> dict[str, list[str]]:
    """Return the ids of what is known of each pinned version, if anything is."""
    named = [pin.split("==") for pin in pins]
    queries = [
        {"package": {"name": name, "ecosystem": "PyPI"}, "version": version}
        for name, version in named
    ]
    request = urllib.request.Request(
        DATABASE,
        json.dumps({"queries": queries}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        results = json.load(answer)["results"]
    ids = [[one["id"] for one in result.get("vulns", ())] for result in results]
    unknown = [[id for id in some if id not in ACCEPTED] for some in ids]
    return {pin: some for pin, some in zip(pins, unknown, strict=True) if some}


if __name__ == "__main__":
    sys.exit(main())
