"""The options `--task.*` that all subcommands share."""

from typing import Annotated

from cyclopts import Group, Parameter

from hyla.commands.shared.options import SravenOptions, given
from hyla.tasks import SravenConfig

TaskOptions = Annotated[
    SravenOptions | None, Parameter(name="task", group=Group("Task", sort_key=9))
]


def task_config(options: SravenOptions | None) -> SravenConfig:
    """The paper's SRAVEN with the options that were given; a ValueError if they make no sense."""
    return SravenConfig(**given(options))
