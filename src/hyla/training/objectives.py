"""The earlier name of the tasks' objectives."""

from hyla.tasks import Objective

__all__ = ["Objective"]
