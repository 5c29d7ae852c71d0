"""Every figure and table of the paper, and the questions beyond it, by name."""

import importlib
from collections.abc import Iterable

from hyla._errors import nearest
from hyla.lab.experiment import Experiment

_ROOMS = {
    "fuzzy_logic": ("fig2b", "fig2c", "fig2d", "figA2", "figA3"),
    "sraven": (
        *("fig3", "fig4a", "fig4b", "fig5a", "fig5b", "fig5c", "fig5d", "fig5e", "fig5f"),
        *("figA4", "figA5", "figA6", "figA7", "figA8", "figA9"),
    ),
    "language": ("fig6",),
    "tables": ("tableA1", "tableA2", "tableA3"),
    "beyond": (
        "scale",
        "equalscale",
        "phi",
        "sigma",
        "capacity",
        "dropout",
        "unambiguous",
        "codeswap",
        "recall",
        "cross",
        "fewtrained",
    ),
}
BEYOND = _ROOMS["beyond"]
PAPER = tuple(
    sorted(name for room, names in _ROOMS.items() if room != "beyond" for name in names)
)  # fig2b ... fig6, figA2 ... figA9, tableA1 ...: the order of the paper
NAMES = (*PAPER, *BEYOND)


def load(name: str) -> Experiment:
    """Return the experiment; `table-a1` and `FIG5C` are understood too."""
    wanted = _plain(name)
    for room, names in _ROOMS.items():
        for known in names:
            if wanted == _plain(known):
                module = f"hyla.lab.experiments.{room}.{known.lower()}"
                return importlib.import_module(module).EXPERIMENT
    raise ValueError(
        f"{name!r} is not a figure or table here{nearest(name, NAMES)}; choose from "
        f"{' '.join(NAMES)}, or all"
    )


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def load_all(names: Iterable[str]) -> list[Experiment]:
    """Return the experiments of these names, each once; `all` stands for every one."""
    wanted = [each for name in names for each in (NAMES if name == "all" else (name,))]
    found = [load(name) for name in wanted]
    return list({experiment.name: experiment for experiment in found}.values())
