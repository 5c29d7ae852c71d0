"""The options `--task.*` that all subcommands share."""

from typing import Annotated

from cyclopts import Group, Parameter

from hyla.commands.options import TaskOptions, check_task_options, given
from hyla.tasks import SravenConfig

TaskSettings = Annotated[
    TaskOptions | None, Parameter(name="task", group=Group("Task", sort_key=9))
]


def task_config(options: TaskOptions | None) -> SravenConfig:
    """The paper's SRAVEN with the options that were given; a ValueError if they make no sense."""
    check_task_options("sraven", options)
    return SravenConfig(**given(options))
