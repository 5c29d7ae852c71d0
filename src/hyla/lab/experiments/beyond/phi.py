"""Beyond the paper: does HYLA need the ReLU? A reviewer of the paper asked."""

from hyla.lab.claims import Claim, ahead
from hyla.lab.experiments.shared.variants import presets_compared
from hyla.results.selection import Estimate

_PHIS = {
    "hyla": "ReLU",
    "hyla.gelu": "GELU",
    "hyla.silu": "SiLU",
    "hyla.tanh": "tanh",
    "hyla_minus_nonlinearity": "identity",
}


def _claims(task: str, scores: dict[str, Estimate | None]) -> list[Claim]:
    linear = scores.pop("identity")
    return [
        claim
        for name, score in scores.items()
        for claim in ahead(
            f"{task}: a nonlinear value network ({name}) generalises better.",
            (name, score),
            {"identity": linear},
        )
    ]


EXPERIMENT = presets_compared(
    _PHIS,
    _claims,
    name="phi",
    title="Beyond the paper: the nonlinearity φ of the value network",
    shows="HYLA with other nonlinearities in place of the ReLU, and with none.",
)
