"""Every figure and table of the paper, and the questions beyond it, by name."""

import importlib
from collections.abc import Iterable

from hyla._errors import nearest
from hyla.lab.experiment import Experiment

PAPER = (
    *("fig2b", "fig2c", "fig2d", "fig3", "fig4a", "fig4b"),
    *("fig5a", "fig5b", "fig5c", "fig5d", "fig5e", "fig5f", "fig6"),
    *("figA2", "figA3", "figA4", "figA5", "figA6", "figA7", "figA8", "figA9"),
    *("tableA1", "tableA2", "tableA3"),
)
BEYOND = ("scale", "equalscale", "phi", "sigma", "capacity", "dropout", "unambiguous", "codeswap")
NAMES = (*PAPER, *BEYOND)


def load(name: str) -> Experiment:
    """Return the experiment; `table-a1` and `FIG5C` are understood too."""
    wanted = name.replace("-", "").replace("_", "").lower()
    for known in NAMES:
        if known.lower() == wanted:
            return importlib.import_module(f"hyla.lab.figures.{wanted}").EXPERIMENT
    raise ValueError(
        f"{name!r} is not a figure or table here{nearest(name, NAMES)}; choose from "
        f"{' '.join(NAMES)}, or all"
    )


def load_all(names: Iterable[str]) -> list[Experiment]:
    """Return the experiments of these names, each once; `all` stands for every one."""
    wanted = [each for name in names for each in (NAMES if name == "all" else (name,))]
    found = [load(name) for name in wanted]
    return list({experiment.name: experiment for experiment in found}.values())
