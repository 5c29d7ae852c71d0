"""`hyla doctor init`: the scales of a model's branches before any training."""

import dataclasses
import json as json_format
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from hyla.attention.spec import RECOMMENDED
from hyla.commands.shared.exits import usage_errors
from hyla.commands.shared.options import AttentionName, ScaleName, TaskName, check_task
from hyla.commands.shared.output import Screen, table
from hyla.nn import BranchScales
from hyla.nn.scales import MOST_TIMES_THE_STREAM, drowns
from hyla.training.run.branches import warning
from hyla.training.starts import start_of_language, start_of_task

# What the paper compares, and what is recommended.
_ATTENTIONS = ("softmax", "linear", "hyla", RECOMMENDED)
_MARK = "!"


def doctor_init(
    task: TaskName,
    /,
    *,
    scale: ScaleName = "laptop",
    attention: Annotated[list[AttentionName] | None, Parameter(show_choices=False)] = None,
    size: str | None = None,
    data: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Print the scales; what the command says of itself stands where it is registered.

    Parameters
    ----------
    task
        fuzzy, sraven, recall, language, or a plug-in's.
    scale
        smoke, laptop or paper, as for `hyla train`.
    attention
        hyla, softmax, linear, or other rows of Table A1; by default those three and the
        one that is recommended.
    size
        language: nano, mini, paper, small, medium or large.
    data
        language: folder of a corpus to take the batch from, instead of random tokens.
    json
        Print one JSON object instead.
    """
    with usage_errors():
        check_task(task)
        if task != "language" and (size is not None or data is not None):
            raise ValueError(f"--size and --data are settings of the task language, not of {task}")
        starts = {
            name: start_of_language(scale, name, size=size, data=data)
            if task == "language"
            else start_of_task(task, scale, name)
            for name in attention or _ATTENTIONS
        }
    found = {name: start.branch_scales() for name, start in starts.items()}
    if json:
        print(json_format.dumps(_as_tree(task, scale, found), indent=1))
    else:
        _show(task, scale, found)


def _as_tree(task: str, scale: str, found: dict[str, list[BranchScales]]) -> dict[str, Any]:
    return {
        "task": task,
        "scale": scale,
        "most_times_the_stream": MOST_TIMES_THE_STREAM,
        "attention": {
            name: {
                "blocks": [
                    dataclasses.asdict(block)
                    | {
                        "attention_ratio": block.attention_ratio,
                        "feed_forward_ratio": block.feed_forward_ratio,
                    }
                    for block in blocks
                ],
                "warning": warning(blocks, attention=name),
            }
            for name, blocks in found.items()
        },
    }


def _show(task: str, scale: str, found: dict[str, list[BranchScales]]) -> None:
    columns = ("block", "stream", "attention", "times", "stream", "feed-forward", "times")
    shown = table(
        f"{task}, {scale}: standard deviations at the start; {_MARK} drowns the stream",
        "model",
        *columns,
        numeric=columns,
    )
    for name, blocks in found.items():
        for number, block in enumerate(blocks, 1):
            shown.add_row(
                name if number == 1 else "",
                str(number),
                f"{block.stream:.3g}",
                f"{block.attention:.3g}",
                _times(block.attention_ratio, drowns(block.attention, block.stream)),
                f"{block.between:.3g}",
                f"{block.feed_forward:.3g}",
                _times(block.feed_forward_ratio, drowns(block.feed_forward, block.between)),
            )
    screen = Screen()
    screen.print(shown)
    for name, blocks in found.items():
        screen.say(f"{name}: {_verdict(name, blocks)}")


def _verdict(name: str, blocks: list[BranchScales]) -> str:
    found = warning(blocks, attention=name)
    if found is not None:
        return found
    times, branch, stream = max(
        each
        for block in blocks
        for each in (
            (block.attention_ratio, block.attention, block.stream),
            (block.feed_forward_ratio, block.feed_forward, block.between),
        )
    )
    if times <= MOST_TIMES_THE_STREAM:
        return f"no branch is more than {MOST_TIMES_THE_STREAM:g} times the stream that it joins"
    return (
        f"no branch drowns its stream: {times:.3g} times is the most, {branch:.3g} where the "
        f"stream is small itself ({stream:.3g})"
    )


def _times(ratio: float, too_large: bool) -> str:
    mark = _MARK if too_large else " "
    return f"{ratio:.2f} {mark}" if ratio < 10 else f"{ratio:.0f} {mark}"
