"""The latent codes of trained runs: everything measured about them, in one folder.

    python -m hyla.lab.latents RUN ... --out DIR --device cuda

computes, for each run, decoding with its controls, the geometry and the swaps, and writes tables
(CSV, of all runs together), figures (PNG and PDF) and an interactive page for each run, and
analysis.json, which says what was computed from what. What DIR holds of other runs, and other
figures of these, stays. It needs no more than pandas, scikit-learn and matplotlib; without plotly,
there is no page. `hyla latents` does the same.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hyla._errors import check_positive, nearest
from hyla.latents._optional import required
from hyla.latents.analysis import TABLES, Analysis
from hyla.latents.page import write_page
from hyla.latents.report import write_figures
from hyla.latents.results import ACCOUNT, add_account, add_rows, read_accounts, read_rows
from hyla.latents.studies import Study, study_of
from hyla.nn import Transformer
from hyla.results.runs import load_model, read_run, untrained_like
from hyla.training import TrainConfig
from hyla.training.devices import resolve_device
from hyla.training.run.errors import RunDirectoryError

if TYPE_CHECKING:
    import pandas

INSTANCES = 2048


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One trained model of a run."""

    path: Path
    member: int
    model: Transformer
    config: TrainConfig

    @property
    def name(self) -> str:
        """The run, and which of its models if there are several."""
        alone = len(self.config.members) == 1
        return self.path.name if alone else f"{self.path.name}-member{self.member}"

    @cached_property
    def study(self) -> Study:
        """What there is to look at in its task."""
        return study_of(self.config.build_task())

    @property
    def seed(self) -> int:
        """The seed of its initial weights, its data and its split."""
        return self.config.members[self.member].seed

    @property
    def origin(self) -> dict[str, Any]:
        """Columns that tell its rows from those of others."""
        return {
            "run": self.path.name,
            "member": self.member,
            "task": self.config.task_name,
            "attention": self.config.model.attention,
            "seed": self.seed,
        }


def load_subjects(
    runs: Sequence[Path], members: Sequence[int], device: torch.device
) -> list[Subject]:
    """Load these members of every run; raises what `load_model` raises."""
    subjects = []
    for path in runs:
        for member in members:
            _refuse_language(path)
            model, config = load_model(path, member, device=device)
            subjects.append(Subject(path=Path(path), member=member, model=model, config=config))
    return subjects


def _refuse_language(path: Path) -> None:
    """Say how the codes of a language model are had: it has no operations to study."""
    if read_run(path).config.get("task_name") == "language":
        raise RunDirectoryError(
            f"{path} is a language model, whose operations nobody knows. Its codes are read in "
            "Python: record_codes of hyla.latents, with the transformer that load_language_model "
            "of hyla.training.language returns"
        )


def check_choice(
    subjects: Sequence[Subject],
    out: Path,
    figures: Sequence[str],
    pairs: str | None,
    instances: int,
) -> None:
    """Raise a ValueError for what cannot be done, before hours of work."""
    check_positive(instances=instances)
    read_accounts(out / ACCOUNT)
    for name in figures:
        if name not in TABLES:
            raise ValueError(
                f"figure {name!r} is unknown{nearest(name, TABLES)}; choose from {list(TABLES)}"
            )
    for name, count in Counter(subject.name for subject in subjects).items():
        if count > 1:
            raise ValueError(
                f"{count} of the runs are called {name}: their results would be written to one "
                "place; give each a folder of its own, one at a time"
            )
    for subject in subjects:
        names = list(subject.study.pairs)
        if pairs is not None and pairs not in names:
            raise ValueError(
                f"{subject.name} has no pairs {pairs!r}{nearest(pairs, names)}; choose from {names}"
            )


def analyse_subjects(
    subjects: Sequence[Subject],
    out: Path,
    *,
    figures: Sequence[str] = tuple(TABLES),
    pairs: str | None = None,
    instances: int = INSTANCES,
    on_table: Callable[[str], None] = lambda what: None,
) -> dict[str, "pandas.DataFrame"]:
    """Compute the tables behind the figures, write everything, and return the tables.

    `on_table` is told what is computed next.
    """
    check_choice(subjects, out, figures, pairs, instances)
    out.mkdir(parents=True, exist_ok=True)
    collected: dict[str, list["pandas.DataFrame"]] = {name: [] for name in figures}
    for subject in subjects:
        analysis = Analysis(
            subject.model,
            subject.study,
            seed=subject.seed,
            untrained=untrained_like(subject.model, subject.seed),
            pairs=pairs,
            instances=instances,
        )
        tables = {}
        for name in figures:
            on_table(f"{subject.name}: {name}")
            tables[name] = table = analysis.table(name)
            collected[name].append(_with_origin(table, subject))
            write_figures(name, table, subject.study, out / subject.name)
        for name in figures:
            add_rows(collected[name][-1], _table_path(out, name), subject.origin)
        if find_spec("plotly") is not None:
            page = out / subject.name / "latents.html"
            tables = _earlier_tables(subject, out, without=figures) | tables
            write_page(tables, subject.study, page, title=f"Latent codes of {subject.name}")
        run = read_run(subject.path)
        add_account(
            out,
            subject.origin,
            figures,
            next(subject.model.parameters()).device,
            pairs=analysis.pairs,
            instances=instances,
            config=subject.config.to_tree(),
            checkpoint_step=run.checkpoint_step,
            trained_on=run.provenance,
        )
    concat = required("pandas").concat
    return {name: concat(tables, ignore_index=True) for name, tables in collected.items()}


def _with_origin(table: "pandas.DataFrame", subject: Subject) -> "pandas.DataFrame":
    columns = [*subject.origin, *table.columns]
    return table.assign(**subject.origin).reindex(columns=columns)


def _earlier_tables(
    subject: Subject, out: Path, without: Sequence[str]
) -> dict[str, "pandas.DataFrame"]:
    """Return the tables of other figures that earlier calls left of a subject, for its page."""
    tables = {}
    for name in TABLES:
        table = read_rows(_table_path(out, name), subject.origin)
        if name not in without and table is not None:
            # Points are coloured by every column: not by those of other tasks.
            tables[name] = table.dropna(axis=1, how="all") if name == "embedding" else table
    return tables


def _table_path(out: Path, name: str) -> Path:
    """Where the rows of all subjects are; points of embeddings are too many for text."""
    binary = name == "embedding" and find_spec("pyarrow") is not None
    return out / f"{name}.{'parquet' if binary else 'csv'}"


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
