"""How many models train together on a GPU: as many as are fastest, measured once for each shape."""

import json
from collections.abc import Callable
from pathlib import Path

import torch

from hyla._files import write_json
from hyla.training import TrainConfig
from hyla.training.compiling import folder_of_compiled, keep_compiled
from hyla.training.identity import computed, fingerprint
from hyla.training.population.throughput import FIRST_SIZE, fastest_size

WORTH_MEASURING = 2_000_000
"""Model-steps, some ten minutes of an H200: less is trained in the time that measuring takes."""


def measured_size(
    config: TrainConfig, root: Path, device: torch.device, say: Callable[[str], None] | None
) -> int | None:
    """Return the number of models to train together at most, as it is known under `root`.

    Where it is not, measures it and tells `say`, if there is one and it is worth the time;
    returns None otherwise. `config` has all members that are left to train.
    """
    folder = folder_of_compiled(root).parent / "populations"
    path = folder / f"{_key(config, device)}.json"
    if path.exists():
        return json.loads(path.read_text())["members"]
    few = len(config.members) <= FIRST_SIZE
    if say is None or few or config.steps * len(config.members) < WORTH_MEASURING:
        return None
    say(f"measuring how many models of {config.model.attention} to train together")
    keep_compiled(root)
    size = fastest_size(config, device, say)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, {"members": size})
    return size


def _key(config: TrainConfig, device: torch.device) -> str:
    """Return a name for what decides the speed."""
    shape = {name: value for name, value in computed(config).items() if name != "steps"}
    return fingerprint(shape | {"device": torch.cuda.get_device_name(device)})[:16]
