"""`python -m hyla.lab.latents RUN ... --out DIR`: everything measured about the codes of runs.

Needs no more than pandas, scikit-learn and matplotlib; without plotly, there is no page.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from hyla.lab.latents import INSTANCES, analyse_subjects, load_subjects
from hyla.latents.analysis import TABLES
from hyla.training.devices import resolve_device


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the analysis from a plain command line."""
    parser = argparse.ArgumentParser(prog="python -m hyla.lab.latents", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--figure", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--member", nargs="+", type=int, default=[0])
    parser.add_argument("--pairs")
    parser.add_argument("--instances", type=int, default=INSTANCES)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(arguments)
    subjects = load_subjects(given.runs, given.member, resolve_device(given.device))
    analyse_subjects(
        subjects,
        given.out,
        figures=given.figure,
        pairs=given.pairs,
        instances=given.instances,
        on_table=lambda what: print(what, flush=True),
    )
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
