"""The authors' numbers in tests/golden, and what it takes to hold ours against them."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hyla.nn import state_dict_from_flax

GOLDEN = Path(__file__).parents[1] / "golden"


def load(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


def under(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The entries `prefix.*`, without the prefix."""
    start = f"{prefix}."
    return {key.removeprefix(start): x for key, x in arrays.items() if key.startswith(start)}


def ours(prefix: str, arrays: dict[str, np.ndarray], *, without: tuple[str, ...] = ()):
    """The authors' parameters (or gradients) `prefix.*`, by our names."""
    chosen = {key: x for key, x in under(prefix, arrays).items() if key not in without}
    return state_dict_from_flax(chosen)


def relative_error(got: Tensor | None, want: Tensor | np.ndarray) -> float:
    """Largest difference, relative to the largest magnitude that was wanted."""
    want = torch.as_tensor(want)
    assert got.shape == want.shape, f"shape {tuple(got.shape)}, wanted {tuple(want.shape)}"
    return float((got.detach() - want).abs().max() / want.abs().max().clamp_min(1e-30))
