"""What the fused kernels compute: one member of the attention family, by name."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

NORMALISATIONS = ("none", "rms_head")
PHIS = {"identity": 0, "relu": 1, "gelu_tanh": 2, "gelu": 3, "silu": 4}
OUTPUTS = {"plain": 0, "rows": 2, "rms": 3}  # OUTPUT of the sources; 1 is plain with a gain


@dataclass(frozen=True, kw_only=True)
class Formula:
    """Which attention of the family is computed.

    `normalisation` names its steps in the order in which they are applied, with + between them.
    `output` is what becomes of a query's output o, all heads of it: `gain` · o ("plain"), that
    times a factor which is given for the query ("rows"), or `gain` times o divided by its root
    mean square, `output_eps` added to the mean ("rms").
    """

    normalisation: str
    value: str
    phi: str
    scale: float
    eps: float
    causal: bool
    output: str = "plain"
    gain: float = 1.0
    output_eps: float = 1e-6

    def why_unsupported(
        self, values: Iterable[str], normalisations: Iterable[str] = NORMALISATIONS
    ) -> str | None:
        """Say what a kernel for these value networks does not know, or return None."""
        if self.normalisation not in normalisations:
            return f"it takes normalisation {_either(normalisations)}, got {self.normalisation!r}"
        if self.value not in values:
            return f"it takes the value network {_either(values)}, got {self.value!r}"
        if self.value != "linear" and self.phi not in PHIS:
            return f"it takes phi {_either(PHIS)}, got {self.phi!r}"
        return None

    def macros(self) -> dict[str, int]:
        """Return the definitions that the sources share."""
        return {
            "NORMALISED": int(self.normalisation.endswith("rms_head")),
            "RMS_FIRST": int(self.normalisation == "rms_head+softmax"),
            "SOFTMAX": int(self.has_softmax),
            "PHI": PHIS[self.phi if self.value != "linear" else "identity"],
        }

    @property
    def has_softmax(self) -> bool:
        """Whether the keys of a query depend on each other: by the sum that is divided by."""
        return "softmax" in self.normalisation

    @property
    def output_kind(self) -> int:
        """Return OUTPUT of the sources: 0 where the output is left as it is."""
        return OUTPUTS[self.output] or int(self.gain != 1)


@cache
def read_sources(
    *names: str, package: str = __name__.rpartition(".")[0], folder: str = "cuda"
) -> str:
    """Return sources in a folder of a package, this one or another, one after the other."""
    sources = resources.files(package) / folder
    return "".join(sources.joinpath(name).read_text(encoding="utf-8") for name in names)


def _either(names: Iterable[str]) -> str:
    return " or ".join(repr(name) for name in names)
