"""Looking at latent codes: of trained runs and of pretrained models, into tables and figures.

    python -m hyla.lab.latents RUN ... --out DIR --device cuda

is `hyla latents RUN ...` without what the command line needs.
"""

from hyla.lab.latents.runs import INSTANCES, analyse_subjects, check_choice, load_subjects

__all__ = ["INSTANCES", "analyse_subjects", "check_choice", "load_subjects"]
