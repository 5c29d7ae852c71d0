"""`hyla train`: a task, a model, a population; a table at the end. Language has its own command."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Group, Parameter

from hyla.commands.shared.exits import continued_after_ctrl_c, usage_errors
from hyla.commands.shared.options import (
    AttentionName,
    EvaluationOptions,
    ModelOptions,
    TaskName,
    TaskOptions,
    check_model_options,
    check_task,
    check_task_options,
    given,
    variant_settings,
    without_none,
)
from hyla.commands.shared.output import HEADINGS, Screen, score, score_columns, table
from hyla.commands.shared.training import RunOptions, TrainingOptions
from hyla.results.selection import validation_metric
from hyla.training import TrainConfig, config_from_tree, load_preset, merge, run_path
from hyla.training import train as train_population
from hyla.training.devices import resolve_device

_POPULATION = Group("Population: every combination of these is one model", sort_key=1)
_TRAINING = Group("Training", sort_key=2)
_RUN = Group("Where and how it runs", sort_key=3)
_MODEL = Group("Model", sort_key=4)
_TASK = Group("Task", sort_key=5)
_EVALUATION = Group("Evaluation", sort_key=6)
_USUAL, _HERE = TrainingOptions(), RunOptions()

_LANGUAGE_HELP = """Train a language model on a corpus made by `hyla data prepare`.

A run is a directory named after its settings: stop it at any time, and the same command
continues where it was, on the same or another number of processes.

For example:

- `hyla train language data/wiki`: a small model, minutes on a laptop
- `hyla train language data/wiki --scale paper --steps 2000 --attention softmax`
- `hyla train language data/wiki --from runs/language-softmax-...`: from softmax to HYLA
- `torchrun --nproc-per-node 8 -m hyla train language data/c4 --scale paper --strategy fsdp`

Exit codes: 0 finished; 75 stopped with a checkpoint, run it again; 130 Ctrl-C; 2 wrong usage;
1 anything else.
"""

train = App(name="train")
# By name, to be imported when it is called; the list of commands shows the first line of the help.
train.command(
    "hyla.commands.train_language:train_language",
    name="language",
    help=_LANGUAGE_HELP,
)


@train.default
@continued_after_ctrl_c()
def train_task(
    task: Annotated[TaskName, Parameter(show_default=False)] = "",
    /,
    *,
    training: Annotated[TrainingOptions, Parameter(name="*", group=_TRAINING)] = _USUAL,
    variant: Annotated[str | None, Parameter(group=_TASK)] = None,
    seeds: Annotated[int | None, Parameter(group=_POPULATION)] = None,
    lr: Annotated[
        list[float] | None, Parameter(name=("--lr", "--learning-rate"), group=_POPULATION)
    ] = None,
    weight_decay: Annotated[list[float] | None, Parameter(group=_POPULATION)] = None,
    warmup_steps: Annotated[list[int] | None, Parameter(group=_POPULATION)] = None,
    run: Annotated[RunOptions, Parameter(name="*", group=_RUN)] = _HERE,
    attention: Annotated[
        AttentionName | None, Parameter(name=("--attention", "--model.attention"), group=_MODEL)
    ] = None,
    model: Annotated[ModelOptions | None, Parameter(group=_MODEL)] = None,
    task_options: Annotated[TaskOptions | None, Parameter(name="task", group=_TASK)] = None,
    evaluation: Annotated[EvaluationOptions | None, Parameter(group=_EVALUATION)] = None,
) -> None:
    """Train models on a task: one, or a population that differs in seeds and settings.

    What is not given comes from the task's preset at the chosen scale. A run is a directory named
    after its settings: stop it at any time, and the same command continues where it was. A
    finished run is not trained again.

    Examples:

    - `hyla train fuzzy`: HYLA on fuzzy logic, a few minutes on a laptop
    - `hyla train sraven --attention softmax --seeds 3 --lr 1e-3 3e-4`: six models side by side
    - `hyla train fuzzy --scale paper --model.num-layers 4 --task.held-out-fraction 0.5`
    - `hyla train sraven --variant trained1`: a variant of `hyla sraven variants`
    - `hyla train language data/wiki`: a language model, which has settings of its own
    - `hyla train mytask --plugin mytask.py`: a task of your own

    Exit codes: 0 finished; 75 stopped with a checkpoint, run it again; 130 Ctrl-C; 2 wrong usage;
    1 anything else.

    Parameters
    ----------
    task
        fuzzy (fuzzy logic functions), sraven (symbolic Raven's matrices), recall (associative
        recall), or one that a plug-in registers; language is a command.
    variant
        Name of a task's variant, which fixes all its settings; sraven has some.
    seeds
        Number of seeds: 0 to N - 1.
    lr
        Peak learning rates.
    weight_decay
        Weight decays.
    warmup_steps
        Steps of linear warmup.
    attention
        hyla, softmax, linear, another row of Table A1, or a plug-in's; hyla.expected2 is what we
        recommend for models of your own. hyla.silu has another φ, hyla.rms4 a normalised output.
    """
    grid = {
        "seed": None if seeds is None else list(range(seeds)),
        "learning_rate": lr,
        "weight_decay": weight_decay,
        "warmup_steps": warmup_steps,
    }
    options = training.settings() | {
        "members": without_none(grid),
        "model": given(model) | without_none({"attention": attention}),
        "task": given(task_options),
        "evaluation": given(evaluation),
    }
    with usage_errors():
        check_task(task)
        tree = training.over(load_preset(task, training.scale))
        check_task_options(task, task_options)
        if variant is not None:
            options["task"] = variant_settings(task, variant, options["task"])
        if tree["task_name"] != task:
            raise ValueError(
                f"{training.config} is for the task {tree['task_name']!r}, not for {task!r}"
            )
        if options["members"] and not isinstance(tree["members"], Mapping):
            raise ValueError(
                f"the members of {training.config} are no grid: leave out --seeds, --lr and so on"
            )
        # An empty dict would replace what is not one in the file, such as a list of members.
        chosen = {name: value for name, value in options.items() if value != {}}
        settings = config_from_tree(merge(tree, chosen))
        check_model_options(model, settings.model)
        settings.check_device(resolve_device(run.device))
        run.check()
        path = run_path(settings, run.root)

    run.say_if_too_late(path)
    summary = train_population(settings, **run.arguments(settings.to_tree()))
    _show(settings, summary, path)


def _show(config: TrainConfig, summary: dict[str, Any], path: Path) -> None:
    """Print a row per member; of several, the best by validation is marked."""
    headline = config.build_task().headline
    members = summary["members"]
    chosen_by = validation_metric([member["metrics"] for member in members], headline)

    def chosen_value(member: dict[str, Any]) -> float:
        return member["metrics"].get(chosen_by, math.nan)

    sound = [m for m in members if m["diverged_at"] is None and not math.isnan(chosen_value(m))]
    best = max(sound, key=chosen_value, default=None)
    columns = score_columns(config.evaluation, headline)
    shown = table(
        f"{config.task_name}, {config.model.attention}, {config.steps} steps: {headline}",
        *(*HEADINGS.values(), *columns, ""),
        numeric=(*HEADINGS.values(), *columns),
    )
    for member in members:
        notes = []
        if member["diverged_at"] is not None:
            notes.append(f"diverged at step {member['diverged_at']}")
        if member is best and len(members) > 1:
            notes.append(f"best by {chosen_by.partition('/')[0]}")
        shown.add_row(
            *(f"{member[name]:g}" for name in HEADINGS),
            *(score(member["metrics"].get(metric)) for metric in columns.values()),
            ", ".join(notes),
        )
    screen = Screen()
    screen.print(shown)
    screen.say(f"{summary['seconds']:.0f} s of training; run directory: {path}")
