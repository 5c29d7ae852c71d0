"""The tasks as subjects of latent analyses; what a study is stands beside the tasks."""

from hyla.tasks import Task
from hyla.tasks.study import Specimens, Study

__all__ = ["NoStudyError", "Specimens", "Study", "study_of"]


class NoStudyError(ValueError):
    """A task says nothing about what its codes are of."""


def study_of(task: Task) -> Study:
    """Return the task's study of codes; of the paper's tasks, the one of its latent analysis."""
    if task.study is None:
        raise NoStudyError(
            f"there is no study of {type(task).__name__}: derive one from hyla.latents.Study, and "
            "return it from the task's property `study`"
        )
    return task.study
