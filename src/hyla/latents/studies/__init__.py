"""The tasks as subjects of latent analyses."""

from hyla.latents.studies.base import Specimens, Study
from hyla.latents.studies.fuzzy import FuzzyStudy
from hyla.latents.studies.sraven import SravenStudy
from hyla.tasks import FuzzyLogic, Sraven, Task

__all__ = ["FuzzyStudy", "Specimens", "SravenStudy", "Study", "study_of"]


def study_of(task: Task) -> Study:
    """Return the study of the paper's latent analysis for a task."""
    if isinstance(task, Sraven):
        return SravenStudy(task)
    if isinstance(task, FuzzyLogic):
        return FuzzyStudy(task)
    raise ValueError(f"there is no study of {type(task).__name__}: derive one from Study")
