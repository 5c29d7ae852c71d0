"""`hyla sraven show`: one instance, in the terminal and as a picture."""

from pathlib import Path
from typing import Annotated

import torch
from cyclopts import Parameter

from hyla.commands.shared.exits import usage_errors, write_errors
from hyla.commands.shared.output import Screen, table
from hyla.commands.sraven.task import TaskOptions, task_config
from hyla.tasks.sraven import Sraven
from hyla.tasks.sraven.faces.rendering import draw_numbers, to_text
from hyla.tasks.sraven.faces.shapes import draw_shapes
from hyla.tasks.sraven.problem import Problem, Problems
from hyla.tasks.sraven.solver.exact import Reading, Solver

_MOST_ROWS = 20
_UNPERMUTED = {"test": "test_unpermuted", "ood": "ood_unpermuted"}


def show(
    *,
    split: str = "test",
    seed: int = 0,
    index: int = 0,
    permuted: Annotated[bool, Parameter(negative="--unpermuted")] = True,
    answer: Annotated[bool, Parameter(negative=())] = False,
    readings: Annotated[bool, Parameter(negative=())] = False,
    svg: Path | None = None,
    png: Path | None = None,
    shapes: Annotated[bool, Parameter(negative=())] = False,
    task_options: TaskOptions = None,
) -> None:
    """Show an instance: a grid of panels of integers, the last of them asked for.

    Every feature follows a rule along the rows, and each column shows the features in an order of
    its own. Try it, then see `--answer`.

    Examples:

    - `hyla sraven show --index 3`
    - `hyla sraven show --split ood --index 3 --answer`
    - `hyla sraven show --answer --svg instance.svg --shapes`

    Parameters
    ----------
    split
        train, validation or test (known combinations of rules), ood (unseen ones).
    seed
        Seed of the split and its instances.
    index
        Number of the instance.
    permuted
        Whether columns have orders of their own; --unpermuted is for test and ood.
    answer
        Also show the answer, the rule of each feature, and whether other answers fit the context.
    readings
        Also list all choices of rules and correspondences that fit the context.
    svg
        Draw it to this file, as in Figure 3A.
    png
        The same as PNG.
    shapes
        Draw it with shapes, after Figure 3B.
    """
    with usage_errors():
        if shapes and not (svg or png):
            raise ValueError("--shapes is for drawings: add --svg FILE or --png FILE")
        config = task_config(task_options)
        name = split if permuted else _unpermuted(split)
        problem = Problems(config, name, seed=seed)[index]
        picture = (draw_shapes if shapes else draw_numbers)(problem, answer=answer)
        # Without the solver the answer can still be shown; readings cannot.
        readable = Sraven(config).is_readable(name)
        if readings and not readable:
            raise ValueError("--readings does not work with distractors or blanks")
        judged = readings or (answer and readable)
        solver = Solver(config) if judged else None
    screen = Screen()
    screen.say(f"SRAVEN: {problem.address}")
    screen.print(to_text(problem, answer=answer))
    if solver is not None:
        _show_answers(screen, problem, solver)
    elif answer:
        screen.print(
            "\nWhether other answers fit is not known: the solver takes no distractors or blanks."
        )
    if readings and solver is not None:
        grid = torch.tensor(problem.panels)
        _show_readings(screen, solver.readings(grid, permuted=problem.permuted))
    for path, write in ((svg, picture.write_svg), (png, picture.write_png)):
        if path is not None:
            with usage_errors(), write_errors(path):
                write(path)
            screen.say(f"Drawn to {path}")


def _unpermuted(split: str) -> str:
    if split in _UNPERMUTED.values():
        return split
    if split not in _UNPERMUTED:
        raise ValueError(
            f"--unpermuted is for the splits {' and '.join(_UNPERMUTED)}, not for {split}"
        )
    return _UNPERMUTED[split]


def _show_answers(screen: Screen, problem: Problem, solver: Solver) -> None:
    solution = solver(torch.tensor(problem.panels).unsqueeze(0), permuted=problem.permuted)
    answers = solution.answers(0)
    if len(answers) == 1:
        screen.print("\nUnambiguous: every reading of the context prescribes this answer.")
        return
    screen.print(f"\nAmbiguous: readings of the context prescribe {len(answers)} answers.")
    shown = table("", "panel", "probability", "", numeric=("probability",))
    for panel, probability in answers[:_MOST_ROWS]:
        note = "the answer" if panel == problem.answer else ""
        shown.add_row(" ".join(map(str, panel)), f"{probability:.3g}", note)
    screen.print(shown)
    _mention_rest(screen, len(answers))


def _show_readings(screen: Screen, readings: list[Reading]) -> None:
    screen.print(
        f"\nReadings of the context: {len(readings)}. Each takes every position of every column "
        "into one rule; the positions of the columns are counted from 1.",
        highlight=False,
    )
    columns = ("probability", "panel", "rules with their positions")
    shown = table("", *columns, numeric=("probability",))
    for reading in readings[:_MOST_ROWS]:
        threads = (
            f"{thread.rule} {'→'.join(str(place + 1) for place in thread.positions)}"
            for thread in reading.threads
        )
        panel = " ".join(map(str, reading.panel))
        shown.add_row(f"{reading.probability:.3g}", panel, ", ".join(threads))
    screen.print(shown)
    _mention_rest(screen, len(readings))


def _mention_rest(screen: Screen, number: int) -> None:
    if number > _MOST_ROWS:
        screen.say(f"... and {number - _MOST_ROWS} less probable ones")
