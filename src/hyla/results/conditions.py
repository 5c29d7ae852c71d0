"""The circumstances that results shown together share: scale, length of training, precision."""

import dataclasses
import re
from dataclasses import dataclass

from hyla._errors import check_choice
from hyla.training import SCALES, TrainConfig
from hyla.training.precision import check_precision

_LABEL = re.compile(r"(?P<scale>[a-z]+)(-short(?P<shorten>\d+))?(-(?P<precision>tf32|bf16))?")
_DEFAULT_PRECISION = "float32"


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """A scale of the presets, perhaps with shorter training or in another precision.

    Results of different conditions are never averaged or compared with each other: they have a
    folder each of its own in the store, named by its `label`.
    """

    scale: str = "laptop"
    shorten: int = 1
    """Every run takes one in `shorten` of its scale's steps."""
    precision: str = _DEFAULT_PRECISION

    def __post_init__(self):
        check_choice("scale", self.scale, SCALES)
        if self.shorten < 1:
            raise ValueError(f"shorten must be at least 1, got {self.shorten}")
        check_precision(self.precision)

    @property
    def label(self) -> str:
        """Name of their folder: paper, paper-short4, paper-short4-tf32."""
        shorter = f"-short{self.shorten}" if self.shorten > 1 else ""
        precision = f"-{self.precision}" if self.precision != _DEFAULT_PRECISION else ""
        return self.scale + shorter + precision

    @classmethod
    def from_label(cls, label: str) -> "Conditions":
        """Return the conditions whose `label` this is."""
        found = _LABEL.fullmatch(label)
        if found is None or found["scale"] not in SCALES:
            raise ValueError(f"{label!r} is not the name of conditions, such as paper-short4-tf32")
        return cls(
            scale=found["scale"],
            shorten=int(found["shorten"] or 1),
            precision=found["precision"] or _DEFAULT_PRECISION,
        )

    def __str__(self) -> str:
        return self.heading(self.precision)

    def heading(self, precision: str) -> str:
        """Return scale, length and precision in words, for models of a precision of their own."""
        length = f", 1/{self.shorten} of the steps" if self.shorten > 1 else ""
        return f"{self.scale} scale{length}, {precision}"

    def apply(self, config: TrainConfig) -> TrainConfig:
        """Return the config of a run of this scale under these conditions."""
        steps = max(1, config.steps // self.shorten)
        return dataclasses.replace(config, steps=steps, precision=self.precision)
