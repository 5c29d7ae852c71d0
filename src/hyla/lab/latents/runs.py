"""The latent codes of trained runs: everything measured about them, in one folder.

The tables hold the rows of all models, and `analyses.csv` says how each was computed and of what.
Whoever computes a table of a model again replaces its rows; everything else in the folder stays.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from hyla import _errors
from hyla._errors import check_positive
from hyla._optional import required
from hyla.lab.latents.figures import drawings, write_drawings
from hyla.lab.latents.findings import findings
from hyla.latents.analysis import TABLES, Analysis
from hyla.results.csv_table import rows_of_frame
from hyla.results.origins import has_values, measured_with, put_rows, read_with_origins
from hyla.results.runs import ORIGIN, Row, flat_settings, origin_of, read_run
from hyla.results.subjects import Subject
from hyla.tasks.study import NoStudyError, study_of
from hyla.training.run.errors import CheckpointError, RunDirectoryError

INSTANCES = 2048
ANALYSES = "analyses.csv"
DIGITS = ".6g"


def load_subjects(
    runs: Sequence[Path],
    members: Sequence[int],
    device: torch.device,
    *,
    leave_out: Callable[[str], None] | None = None,
) -> list[Subject]:
    """Load these members of every run; raises what `load_model` and `study_of` raise.

    With `leave_out`, a run that cannot be looked into is left out, and it is told why, unless there
    is no other.
    """
    subjects, refused = [], []
    for path in runs:
        try:
            _refuse_language(path)
            of_run = [Subject.of_run(path, member, device=device) for member in members]
            study_of(of_run[0].task)  # raises if there is none
            subjects += of_run
        except (RunDirectoryError, CheckpointError) as error:
            refused.append(error)
        except NoStudyError as error:
            refused.append(NoStudyError(f"{path}: {error}"))
    if refused and (leave_out is None or not subjects):
        raise refused[0]
    for error in refused:
        if leave_out is not None:
            leave_out(f"left out: {error}")
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
    subjects: Sequence[Subject], figures: Sequence[str], *, pairs: str | None, instances: int
) -> None:
    """Raise a ValueError for what cannot be done, before hours of work."""
    check_positive(instances=instances)
    required("matplotlib")
    for name in figures:
        _errors.check_choice("figure", name, TABLES)
    for name, count in Counter(subject.name for subject in subjects).items():
        if count > 1:
            raise ValueError(
                f"{count} of the runs are called {name}: their results would be written to one "
                "place; give each a folder of its own, one at a time"
            )
    for subject in subjects:
        if pairs is not None:
            _errors.check_choice(f"{subject.name}: pairs", pairs, subject.study.pairs)


def analyse_subjects(
    subjects: Sequence[Subject],
    out: Path,
    *,
    figures: Sequence[str] = tuple(TABLES),
    pairs: str | None = None,
    instances: int = INSTANCES,
    on_table: Callable[[str], None] = lambda what: None,
) -> dict[str, list[Row]]:
    """Compute the tables behind the figures, write everything, and return the tables.

    `on_table` is told what is computed next.
    """
    check_choice(subjects, figures, pairs=pairs, instances=instances)
    collected: dict[str, list[Row]] = {name: [] for name in figures}
    for subject in subjects:
        analysis = Analysis(
            subject.model,
            subject.study,
            seed=subject.seed,
            untrained=subject.untrained,
            pairs=pairs,
            instances=instances,
        )
        for name in figures:
            on_table(f"{subject.name}: {name}")
            table = rows_of_frame(analysis.table(name), digits=DIGITS, **subject.columns)
            collected[name] += table
            _put(name, table, analysis, subject, out)
        _draw(subject, figures, pairs, out)
    return collected


def _put(name: str, table: Sequence[Row], analysis: Analysis, subject: Subject, out: Path) -> None:
    """Put a table of a model where those of all models are, and say how it was computed."""
    origin = measured_with(next(subject.model.parameters()).device)
    put_rows([{**origin, **row} for row in table], out / f"{name}.csv", of=subject.columns)
    account: Row = {
        **subject.columns,
        "table": name,
        "pairs": analysis.pairs,
        "instances": analysis.instances,
    }
    if subject.run is not None:
        run = read_run(subject.run)
        trained = {f"trained/{column}": value for column, value in origin_of(run).items()}
        account |= {"checkpoint_step": run.checkpoint_step, **trained}
    settings = flat_settings(subject.config.to_tree())
    account |= {**settings, **asdict(subject.config.members[subject.member]), **origin}
    put_rows([account], out / ANALYSES, of={**subject.columns, "table": name})


def _draw(subject: Subject, figures: Sequence[str], pairs: str | None, out: Path) -> None:
    """Draw these tables of a model to files, and all that there are to its page."""
    tables = {name: _stored(out / f"{name}.csv", subject) for name in TABLES}
    drawn = {
        name: drawings(
            name, rows, operation=subject.study.operation, metric=subject.study.decoding_metric
        )
        for name, rows in tables.items()
        if rows
    }
    study = subject.study
    write_drawings(
        drawn,
        out / subject.name,
        title=f"Latent codes of {subject.name}",
        files_of=figures,
        findings=findings(tables, study, pairs or next(iter(study.pairs))),
    )


def _stored(path: Path, subject: Subject) -> list[Row]:
    """Return a model's rows of a table, with the columns that are its own."""
    own = subject.columns
    rows = [row for row in read_with_origins(path) if has_values(row, own)]
    kept = {name for row in rows for name in row if row[name] is not None} - {*own, *ORIGIN}
    return [{name: value for name, value in row.items() if name in kept} for row in rows]
