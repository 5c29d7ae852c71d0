"""Small trained models in two files: weights (safetensors), and all there is to say (JSON).

The explorer ships a few of them, so that it works on a machine that never trained anything.
"""

import json
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from hyla._files import write_atomically
from hyla.nn import Transformer
from hyla.training import TrainConfig, config_from_tree


@dataclass(frozen=True, kw_only=True)
class Description:
    """What is known of a packed model."""

    config: dict[str, Any]
    """The tree of a `TrainConfig` whose one member is this model."""
    scores: dict[str, float]
    """The headline metric by split, at the end of training."""
    provenance: list[dict[str, Any]]
    """One entry per start of the run: device, versions, commit."""
    source: str
    """The run and member that it was packed from."""
    precision: dict[str, Any]
    """How the weights are stored, and what that was measured to change."""
    scores_of_seeds: dict[str, dict[str, float]]
    """Scores of the models that differ by their seed alone, by seed, this one included: how it was
    chosen among them, and whether it is typical."""
    seconds: float | None = None
    """How long its run trained, all models at once; None of those packed before it was kept."""
    models: int = 1
    """How many trained in these seconds."""


def write_packed(stem: Path, model: Transformer, dtype: torch.dtype, about: Description) -> int:
    """Write STEM.safetensors and STEM.json; return their size in bytes."""
    weights = {name: tensor.to(dtype).contiguous() for name, tensor in model.state_dict().items()}
    contents = {
        ".safetensors": safetensors.torch.save(weights),
        ".json": (json.dumps(asdict(about), indent=1) + "\n").encode(),
    }
    for suffix, content in contents.items():
        write_atomically(stem.with_name(stem.name + suffix), content)
    return sum(map(len, contents.values()))


def read_description(stem: Path) -> tuple[Description, TrainConfig]:
    """Return what STEM.json says, and its config built."""
    about = Description(**json.loads(stem.with_name(f"{stem.name}.json").read_bytes()))
    return about, config_from_tree(about.config)


def read_weights(stem: Path, config: TrainConfig) -> Transformer:
    """Return the model of STEM.safetensors, in single precision."""
    content = stem.with_name(f"{stem.name}.safetensors").read_bytes()
    model = Transformer(config.model)
    model.load_state_dict(
        {name: tensor.float() for name, tensor in safetensors.torch.load(content).items()}
    )
    return model.eval()


def shipped_folder() -> Path:
    """Return where the models lie that come with the package."""
    return Path(str(resources.files("hyla.explorer"))) / "models"


def shipped_models() -> dict[str, Path]:
    """Return the stems of all models that come with the package, by name."""
    stems = sorted(path.with_suffix("") for path in shipped_folder().glob("*.json"))
    return {stem.name: stem for stem in stems}
