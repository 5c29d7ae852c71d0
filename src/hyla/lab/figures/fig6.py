"""Figure 6: language modelling."""

from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from hyla.lab.claims import NOT, REPRODUCED, Verdict
from hyla.lab.drawing import METHOD_COLOURS, Figure, Lines, Series, Table
from hyla.lab.experiment import Experiment
from hyla.lab.grids import METHODS
from hyla.lab.measuring import Measurement, Measuring, NotAvailableError
from hyla.lab.panels import label_of
from hyla.lab.results import Results
from hyla.lab.store import Row, StoredRun, curve_rows, origin_of, read_runs
from hyla.tasks.language import Corpus, Settings, TextFiles, prepare
from hyla.training import merge
from hyla.training.language import language_config_from_tree, load_language_preset, train_language

_LOSS = "validation/loss"
_SMOKE_TOKENS = 20_000
_TIMES = 100  # points of a curve
_PAPER_TOKENS = 131e9
_PAPER = "50 M parameters, 131 B tokens of C4"


def _measure(measuring: Measuring) -> list[Row]:
    """Train the three methods if there is a corpus, and read every language run that is here."""
    corpus = _corpus(measuring)
    if corpus is not None:
        for method in METHODS:
            tree = load_language_preset(measuring.setting.scale)
            steps = max(1, tree["steps"] // measuring.setting.shorten)
            changes = {"model": {"attention": method}, "steps": steps}
            config = language_config_from_tree(merge(tree, changes), corpus)
            train_language(
                config,
                corpus,
                root=measuring.root,
                device=measuring.device,
                max_seconds=measuring.seconds_left,
            )
    rows = [row for run in _language_runs(measuring.root) for row in _rows(run)]
    if not rows:
        raise NotAvailableError(
            "there is neither a corpus nor a language model: prepare one with `hyla data prepare "
            f"{measuring.root / 'corpus'} FILES`, or train with `hyla train language` into "
            f"{measuring.root}"
        )
    return rows


def _corpus(measuring: Measuring) -> Corpus | None:
    """Return the corpus beside the runs; at smoke scale this package's own text serves as one."""
    if measuring.setting.scale == "smoke":
        return _smoke_corpus(measuring.root)
    folder = measuring.root / "corpus"
    return Corpus.open(folder) if folder.exists() else None


def _smoke_corpus(root: Path) -> Corpus:
    text = root / "smoke-corpus.txt"
    root.mkdir(parents=True, exist_ok=True)
    if not text.exists():
        sources = [f for f in resources.files("hyla.attention").iterdir() if f.name.endswith(".py")]
        ordered = sorted(sources, key=lambda file: file.name)
        text.write_text("".join(f"{file.read_text('utf-8')}\n\n" for file in ordered), "utf-8")
    settings = Settings(vocab_size=512, validation_fraction=0.3, max_tokens=_SMOKE_TOKENS)
    try:
        return prepare(root / "smoke-corpus", TextFiles([text]), settings=settings)
    except ImportError as error:
        raise NotAvailableError(str(error)) from error


def _language_runs(root: Path) -> Iterator[StoredRun]:
    for run in read_runs(root):
        if run.config.get("task_name") == "language":
            yield run


def _rows(run: StoredRun) -> list[Row]:
    """Return the evaluations of a run with what it trains; `group` is what runs have in common."""
    config, model = run.config, run.config["model"]
    shape = f"{model['num_layers']} layers of {model['embed_dim']}"
    group = f"{shape}, batches of {config['batch_size']} × {model['sequence_length']} tokens, "
    group += f"{config['steps']:,} steps, corpus {config['corpus'][:8]}"
    settings = {"attention": model["attention"], "group": group, "precision": config["precision"]}
    finished = run.summary is not None
    rows = [
        {**settings, **config["member"], "finished": finished, **row, **origin_of(run)}
        for row in _records(run)
    ]
    return [row for row in rows if row.get(_LOSS) is not None]


def _records(run: StoredRun) -> list[Row]:
    """Return what a run of one model logged; a population's run has `members` instead."""
    single = StoredRun(
        path=run.path,
        config={"members": [run.config["member"]]},
        summary=run.summary,
        provenance=run.provenance,
    )
    return curve_rows(single)


def _groups(results: Results) -> dict[str, dict[str, list[Row]]]:
    """Return the rows by group and method, in the order of their steps."""
    groups: dict[str, dict[str, list[Row]]] = {}
    for row in sorted(results.rows, key=lambda row: row["step"]):
        groups.setdefault(row["group"], {}).setdefault(row["attention"], []).append(row)
    return groups


def _figure(results: Results) -> Figure | None:
    panels = []
    for group, methods in _groups(results).items():
        title = ", ".join(group.split(", ")[-2:])  # steps and corpus: the rest is in the table
        panels.append(
            [
                _curves(methods, "tokens", 1e-6, title, "training tokens (millions)"),
                _curves(methods, "seconds", 1.0, "the same over time", "seconds of training"),
            ]
        )
    return Figure(panels=panels, note=f"The paper: {_PAPER}.") if panels else None


def _curves(
    methods: Mapping[str, list[Row]], clock: str, unit: float, title: str, label: str
) -> Lines:
    """Return the losses over a clock, read off at the same times for all methods."""
    times = [row[clock] * unit for rows in methods.values() for row in rows]
    grid = np.linspace(min(times), max(times), _TIMES)
    series = []
    for method in METHODS:
        rows = methods.get(method)
        if rows:
            own = [row[clock] * unit for row in rows]
            losses = np.interp(grid, own, [row[_LOSS] for row in rows], left=np.nan, right=np.nan)
            colour = METHOD_COLOURS[method]
            series.append(Series(name=label_of(method), y=losses.tolist(), colour=colour))
    return Lines(
        title=title, x_label=label, y_label="validation loss", x=grid.tolist(), series=series
    )


def _final(rows: list[Row]) -> Row | None:
    finished = [row for row in rows if row["finished"]]
    return finished[-1] if finished else None


def _table(results: Results) -> Table | None:
    rows: list[list[Any]] = []
    for group, methods in _groups(results).items():
        for method in METHODS:
            last = _final(methods.get(method, []))
            if last is not None:
                perplexity = last.get("validation/perplexity")
                shown = "" if perplexity is None else f"{perplexity:.2f}"
                rows.append([group, label_of(method), f"{last[_LOSS]:.4f}", shown])
    columns = ["training", "attention", "validation loss", "perplexity"]
    return Table(columns=columns, rows=rows) if rows else None


def _verdicts(results: Results) -> list[Verdict]:
    found = []
    for group, methods in _groups(results).items():
        last = {method: _final(methods.get(method, [])) for method in METHODS}
        loss = {method: row[_LOSS] for method, row in last.items() if row is not None}
        if len(loss) < len(METHODS):
            continue
        numbers = ", ".join(f"{method} {value:.4f}" for method, value in loss.items())
        tokens = max(row["tokens"] for row in last.values() if row is not None)
        share = f"{tokens / 1e6:,.3g} M tokens, {tokens / _PAPER_TOKENS:.2g} of the paper's"
        closer = abs(loss["hyla"] - loss["softmax"]) < abs(loss["linear"] - loss["hyla"])
        for claim, holds in (
            ("HYLA improves over linear attention", loss["hyla"] < loss["linear"]),
            ("HYLA performs closely to softmax attention (nearer than to linear)", closer),
        ):
            found.append(
                Verdict(
                    claim=f"Language modelling: {claim}.",
                    status=REPRODUCED if holds else NOT,
                    number=f"validation loss {numbers} after {share} ({group})",
                )
            )
    return found


EXPERIMENT = Experiment(
    name="fig6",
    title="Figure 6: language modelling",
    shows="Validation loss over the course of training: HYLA improves over linear attention and "
    "comes close to softmax attention.",
    measurement=Measurement(name="fig6", measure=_measure),
    figure=_figure,
    table=_table,
    verdicts=_verdicts,
)
