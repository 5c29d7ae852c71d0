"""Beyond the paper: other normalisations of the latent code. A reviewer of the paper asked."""

from hyla.lab.claims import Claim, ahead
from hyla.lab.experiments.shared.variants import presets_compared
from hyla.results.selection import Estimate

_SIGMAS = {
    "hyla": "RMSHead",
    "hyla_minus_rmshead": "none",
    "hyla_minus_rmshead_plus_softmax": "softmax",
    "hyla_plus_softmax": "softmax, then RMSHead",
    "hyla_plus_softmax_last": "RMSHead, then softmax",
}


def _claims(task: str, scores: dict[str, Estimate | None]) -> list[Claim]:
    return ahead(
        f"{task}: of the normalisations of HYLA's code, RMSHead generalises best.",
        ("RMSHead", scores.pop("RMSHead")),
        scores,
    )


EXPERIMENT = presets_compared(
    _SIGMAS,
    _claims,
    name="sigma",
    title="Beyond the paper: the normalisation σ of the latent code",
    shows="HYLA's value network with other normalisations of the scores: over the heads, over the "
    "keys, both in either order, or none. The paper leaves the order in HYLA + softmax open.",
)
