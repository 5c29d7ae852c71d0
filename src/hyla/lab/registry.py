"""Every figure and table of the paper, and the questions beyond it, by name."""

import importlib
from collections.abc import Iterable

from hyla import _plugins
from hyla._errors import nearest
from hyla.lab.experiment import Experiment

ROOMS = {
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
"""The experiments of hyla itself, by the folder that their modules are in."""
BEYOND = ROOMS["beyond"]
PAPER = tuple(
    sorted(name for room, names in ROOMS.items() if room != "beyond" for name in names)
)  # fig2b ... fig6, figA2 ... figA9, tableA1 ...: the order of the paper
NAMES = (*PAPER, *BEYOND)
_OWN: dict[str, Experiment] = {}


def register_experiment(experiment: Experiment) -> None:
    """Add a figure of one's own, of a plug-in: `hyla reproduce` and the report then know it."""
    if _plain(experiment.name) in map(_plain, (*NAMES, "all")):
        raise ValueError(f"{experiment.name!r} is a name of hyla itself; give yours another")
    _OWN[experiment.name] = experiment


def all_names() -> tuple[str, ...]:
    """The names of hyla's experiments, and of those that plug-ins register."""
    _plugins.load()
    return (*NAMES, *_OWN)


def load(name: str) -> Experiment:
    """Return the experiment; `table-a1` and `FIG5C` are understood too."""
    wanted = _plain(name)
    for room, names in ROOMS.items():
        for known in names:
            if wanted == _plain(known):
                module = f"hyla.lab.experiments.{room}.{known.lower()}"
                return importlib.import_module(module).EXPERIMENT
    names = all_names()
    for known, experiment in _OWN.items():
        if wanted == _plain(known):
            return experiment
    raise ValueError(
        f"{name!r} is not a figure or table here{nearest(name, names)}; choose from "
        f"{' '.join(names)}, or all"
    )


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def load_all(names: Iterable[str]) -> list[Experiment]:
    """Return the experiments of these names, each once; `all` stands for every one."""
    wanted = [each for name in names for each in (all_names() if name == "all" else (name,))]
    found = [load(name) for name in wanted]
    return list({experiment.name: experiment for experiment in found}.values())
