"""Figure 6: language modelling."""

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from hyla.figures.drawing import PALETTE, Figure, Lines, Series, Table
from hyla.lab.claims import NOTICEABLE, PLAIN, Claim, Size
from hyla.lab.effects import Effect, difference, effect
from hyla.lab.estimate import in_words, language_seconds
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.language.stored import (
    corpus_folder,
    departures,
    language_runs,
    trains,
)
from hyla.lab.experiments.shared.panels import label_of
from hyla.lab.grids import METHODS, in_usual_order
from hyla.lab.measuring import Measurement, Measuring, NotAvailableError
from hyla.results.conditions import Conditions
from hyla.results.runs import Row, StoredRun, curve_rows, origin_of
from hyla.results.selection import Estimate, estimate, hyperparameters_of
from hyla.results.tables import Results
from hyla.tasks.language import Corpus, CorpusConfig, TextFiles, prepare
from hyla.training import merge
from hyla.training.language import language_config_from_tree, load_language_preset, train_language

_LOSS = "validation/loss"
_SMOKE_TOKENS = 20_000
_TIMES = 100  # points of a curve
_PAPER_TOKENS = 131e9
_PAPER = "50 M parameters, 131 B tokens of C4"


def _measure(measuring: Measuring) -> list[Row]:
    """Train the three methods if there is a corpus, and read the language runs of the scale."""
    corpus = _corpus(measuring)
    if corpus is not None:
        for method in METHODS:
            tree = load_language_preset(measuring.conditions.scale)
            changes = {"model": {"attention": method}, "steps": _steps(measuring.conditions)}
            config = language_config_from_tree(merge(tree, changes), corpus)
            train_language(
                config,
                corpus,
                root=measuring.root,
                device=measuring.device,
                max_seconds=measuring.seconds_left,
            )
    scale = measuring.conditions.scale
    rows: list[Row] = []
    for run in language_runs(measuring.root):
        if others := departures(run, load_language_preset(scale)):
            measuring.say(
                f"Figure 6 leaves {run.path.name} out: not the model of {scale} scale, but "
                f"with {others}"
            )
        else:
            rows += _rows(run)
    if not rows:
        raise NotAvailableError(
            f"there is neither a corpus nor a language model of {scale} scale: "
            f"{_ways_to_get_some(scale, measuring.root)}"
        )
    return rows


def _steps(conditions: Conditions) -> int:
    return max(1, load_language_preset(conditions.scale)["steps"] // conditions.shorten)


def _gpu_seconds(conditions: Conditions, root: Path | None) -> float:
    """Estimate the training of those of the three methods that are not finished."""
    steps = _steps(conditions)
    tree = merge(load_language_preset(conditions.scale), {"steps": steps})
    finished = [] if root is None else [r for r in language_runs(root) if r.summary is not None]
    # What `_measure` trains: a run at another rate does not spare it.
    asked = {method: merge(tree, {"model": {"attention": method}}) for method in METHODS}
    left = [name for name in METHODS if not any(trains(run, asked[name]) for run in finished)]
    tokens: int = steps * tree["batch_size"] * tree["model"]["sequence_length"]
    return language_seconds(dict.fromkeys(left, tokens))


def _announce(conditions: Conditions, root: Path) -> str:
    """Say that it trains language models, and on which corpus, or how to get one."""
    if conditions.scale == "smoke":
        return "trains three language models of smoke scale"
    if corpus_folder(root).exists():
        return (
            f"trains three language models on {corpus_folder(root)}: about "
            f"{in_words(_gpu_seconds(conditions, root))} of an H200 that are left"
        )
    return (
        f"needs a corpus in {corpus_folder(root)}, or language models under {root}: "
        f"{_ways_to_get_some(conditions.scale, root)}"
    )


def _ways_to_get_some(scale: str, root: Path) -> str:
    return (
        f"prepare one with `hyla data prepare {corpus_folder(root)} FILES`, or train with `hyla "
        f"train language CORPUS --scale {scale} --root {root}`"
    )


def _corpus(measuring: Measuring) -> Corpus | None:
    """Return the corpus beside the runs; at smoke scale this package's own text serves as one."""
    if measuring.conditions.scale == "smoke":
        return _smoke_corpus(measuring.root)
    folder = corpus_folder(measuring.root)
    return Corpus.open(folder) if folder.exists() else None


def _smoke_corpus(root: Path) -> Corpus:
    text = root / "smoke-corpus.txt"
    root.mkdir(parents=True, exist_ok=True)
    if not text.exists():
        sources = [f for f in resources.files("hyla.attention").iterdir() if f.name.endswith(".py")]
        ordered = sorted(sources, key=lambda file: file.name)
        text.write_text("".join(f"{file.read_text('utf-8')}\n\n" for file in ordered), "utf-8")
    settings = CorpusConfig(vocab_size=512, validation_fraction=0.3, max_tokens=_SMOKE_TOKENS)
    try:
        return prepare(root / "smoke-corpus", TextFiles([text]), settings=settings)
    except ImportError as error:
        raise NotAvailableError(str(error)) from error


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


_Runs = Sequence[Sequence[Row]]
"""The evaluations of each run, in the order of their steps."""
_Choices = Mapping[tuple[Any, ...], _Runs]
"""Runs that differ by their seeds alone, by their hyper-parameters."""


def _groups(results: Results) -> dict[str, dict[str, _Choices]]:
    """Return by group and method the runs of all seeds: finished ones, if there are any."""
    found: dict[str, dict[str, dict[str, list[Row]]]] = {}
    for row in sorted(results.rows, key=lambda row: row["step"]):
        methods = found.setdefault(f"{row['group']}, {row['precision']}", {})
        methods.setdefault(row["attention"], {}).setdefault(row["run"], []).append(row)
    return {
        group: {method: _choices(list(runs.values())) for method, runs in methods.items()}
        for group, methods in found.items()
    }


def _choices(runs: _Runs) -> _Choices:
    finished = [run for run in runs if run[-1]["finished"]]
    choices: dict[tuple[Any, ...], list[Sequence[Row]]] = {}
    for run in finished or runs:
        choices.setdefault(hyperparameters_of(run[-1]), []).append(run)
    return choices


def _best(methods: Mapping[str, _Choices]) -> dict[str, _Runs]:
    """Return each method's runs at its best hyper-parameters, of those tried on all three.

    A rate that one of the three was not given would put it behind the others.
    """
    tried = [set(methods[method]) for method in METHODS if method in methods]
    fair = set.intersection(*tried) if tried else set()

    def loss(runs: _Runs) -> float:
        mean = statistics.fmean(run[-1][_LOSS] for run in runs)
        return math.inf if math.isnan(mean) else mean

    return {
        method: min((choices[key] for key in fair & set(choices) or choices), key=loss)
        for method, choices in methods.items()
    }


def _figure(results: Results) -> Figure | None:
    panels = []
    for group, choices in _groups(results).items():
        methods = _best(choices)
        title = ", ".join(group.split(", ")[-3:])  # steps, corpus, precision; the table has more
        order = dict.fromkeys((*METHODS, *in_usual_order(methods)))
        curves = partial(_curves, colours=dict(zip(order, PALETTE, strict=False)))
        row = [curves(methods, "tokens", 1e-6, title, "training tokens (millions)")]
        if timed := _with_times(methods):
            row.append(curves(timed, "seconds", 1.0, "the same over time", "seconds of training"))
        panels.append(row)
    return Figure(panels=panels, note=f"The paper: {_PAPER}.") if panels else None


def _with_times(methods: Mapping[str, _Runs]) -> dict[str, _Runs]:
    """Return the runs whose times count; those that shared their GPU have none."""
    found = {
        method: [run for run in runs if all(row.get("seconds") is not None for row in run)]
        for method, runs in methods.items()
    }
    return {method: runs for method, runs in found.items() if runs}


def _curves(
    methods: Mapping[str, _Runs],
    clock: str,
    unit: float,
    title: str,
    label: str,
    *,
    colours: Mapping[str, str],
) -> Lines:
    """Return mean losses over a clock, at each time of the runs that were evaluated by then."""
    times = [row[clock] * unit for runs in methods.values() for run in runs for row in run]
    grid = np.linspace(min(times), max(times), _TIMES)

    def losses(run: Sequence[Row]) -> np.ndarray:
        own = [row[clock] * unit for row in run]
        return np.interp(grid, own, [row[_LOSS] for row in run], left=np.nan, right=np.nan)

    def mean(runs: _Runs) -> list[float]:
        return np.ma.masked_invalid([losses(run) for run in runs]).mean(0).filled(np.nan).tolist()

    series = [
        Series(
            name=label_of(method),
            y=mean(methods[method]),
            colour=colours[method],
        )
        for method in in_usual_order(methods)
    ]
    return Lines(
        title=title, x_label=label, y_label="validation loss", x=grid.tolist(), series=series
    )


def _final(runs: _Runs) -> list[Row]:
    """Return the last evaluations of the finished runs."""
    return [run[-1] for run in runs if run[-1]["finished"]]


def _text(loss: Estimate) -> str:
    if math.isnan(loss.mean):
        return "diverged"
    return f"{loss.mean:.4f}" + (
        "" if math.isnan(loss.standard_error) else f" ± {loss.standard_error:.4f}"
    )


def _table(results: Results) -> Table | None:
    rows: list[list[Any]] = []
    for group, methods in _groups(results).items():
        for method in in_usual_order(methods):
            for choice in sorted(methods[method]):
                if last := _final(methods[method][choice]):
                    perplexity = statistics.fmean(row["validation/perplexity"] for row in last)
                    settings = [f"{last[0][name]:g}" for name in ("learning_rate", "weight_decay")]
                    scores = [_text(estimate(last, _LOSS)), f"{perplexity:.2f}", str(len(last))]
                    rows.append([group, label_of(method), *settings, *scores])
    columns = ["training", "attention", "lr", "decay", "validation loss", "perplexity", "seeds"]
    note = (
        "Drawn and judged is each method at the best of the settings that HYLA, softmax and linear "
        "attention were all given."
    )
    return Table(columns=columns, rows=rows, note=note) if rows else None


def _claims(results: Results) -> list[Claim]:
    found = []
    for group, choices in _groups(results).items():
        methods = _best(choices)
        last = {method: _final(methods.get(method, [])) for method in METHODS}
        if not all(last.values()):
            continue
        loss = {method: estimate(rows, _LOSS) for method, rows in last.items()}
        numbers = ", ".join(f"{method} {_text(value)}" for method, value in loss.items())
        tokens = max(row["tokens"] for rows in last.values() for row in rows)
        share = f"{tokens / 1e6:,.3g} M tokens, {tokens / _PAPER_TOKENS:.2g} of the paper's"
        improves = difference(loss["linear"], loss["hyla"])
        for claim, effects, size in (
            ("HYLA improves over linear attention", [improves], NOTICEABLE),
            (
                "HYLA performs closely to softmax attention (nearer than to linear)",
                [improves, _nearer(**loss)],
                Size(least=0, why="below linear, and on softmax's side of the middle"),
            ),
        ):
            found.append(
                Claim(
                    text=f"Language modelling: {claim}.",
                    numbers=f"validation loss {numbers} after {share} ({group})",
                    effects=effects,
                    size=size,
                    unit=PLAIN,
                )
            )
    return found


def _nearer(*, hyla: Estimate, softmax: Estimate, linear: Estimate) -> Effect:
    """Return how far HYLA is on softmax's side of the middle between softmax and linear."""
    if hyla.mean < softmax.mean:  # beyond softmax, whose own distance to the middle it is
        return effect((0.5, linear), (-0.5, softmax))
    return effect((0.5, linear), (0.5, softmax), (-1, hyla))


EXPERIMENT = Experiment(
    name="fig6",
    title="Figure 6: language modelling",
    shows="Validation loss over the course of training: HYLA improves over linear attention and "
    "comes close to softmax attention.",
    measurement=Measurement(
        name="fig6",
        measure=_measure,
        announce=_announce,
        gpu_seconds=_gpu_seconds,
        key=("run", "member", "step"),
        of_runs=True,
    ),
    figure=_figure,
    table=_table,
    claims=_claims,
)
