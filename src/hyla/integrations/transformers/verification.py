"""Whether a model attends as it should under one of our names: `verify`."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from hyla.integrations.transformers.examples import example_inputs
from hyla.integrations.transformers.probes import (
    Finding,
    probe_cache,
    probe_causality,
    probe_masks,
    probe_padding,
    probe_passes,
    probe_softmax,
)
from hyla.integrations.transformers.substitution import configs_of_ours, instead_of_ours


@dataclass(frozen=True)
class Verification:
    """What `verify` found out about a model."""

    model: str
    findings: tuple[Finding, ...]

    @property
    def right(self) -> bool:
        """Whether nothing speaks against the model."""
        return all(finding.verdict in ("right", "not asked") for finding in self.findings)

    def __str__(self) -> str:
        lines = [f"{self.model}: {'attends as it should' if self.right else 'NOT RIGHT'}"]
        width = max(len(finding.probe) for finding in self.findings)
        for found in self.findings:
            lines.append(f"  {found.probe:<{width}}  {found.verdict:<9}  {found.detail}".rstrip())
        return "\n".join(lines)


def verify(model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None) -> Verification:
    """Say whether a model attends as it should under a name that `register` made.

    The model is run a dozen times, on `inputs` (what its forward takes, without padding) or on
    short examples made from its config. It is held to its own eager attention: all attention is
    ours, masks mean the same, the future and the padding are not seen, a cache changes nothing.
    Parts that the inputs do not reach are not judged.

    >>> print(verify(model))  # doctest: +SKIP
    """
    ours = configs_of_ours(model)
    if not ours:
        raise ValueError(
            f"{type(model).__name__} has attn_implementation="
            f"{model.config._attn_implementation!r}; give it a registered name first"
        )
    training = model.training
    model.eval()
    try:
        return _verify(model, inputs, str(ours[0]._attn_implementation))
    finally:
        model.train(training)


def _verify(model: PreTrainedModel, inputs: Mapping[str, Tensor] | None, name: str) -> Verification:
    with instead_of_ours(model):
        given = example_inputs(model) if inputs is None else dict(inputs)
    findings = [probe_passes(model, given)]
    if findings[0].verdict == "right":
        softmax, own = probe_softmax(model, given)
        findings += [
            softmax,
            probe_masks(model, given, own, AttentionInterface._global_mapping[name]),
            probe_causality(model, given, own),
            probe_padding(model, given, own, "left"),
            probe_padding(model, given, own, "right"),
            probe_cache(model, given, own),
        ]
    return Verification(type(model).__name__, tuple(findings))
