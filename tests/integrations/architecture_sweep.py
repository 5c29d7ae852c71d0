"""Every architecture that transformers ships, under "hyla": right, refused, or not to be had here.

    python tests/integrations/architecture_sweep.py [model_type ...]

Without arguments it writes docs/huggingface-architectures.md.
"""

import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from hyla_by_loops import hyla_by_loops
from tiny_models import CONFIG_MAPPING_NAMES, build, model_class, tiny_configs
from transformers import PreTrainedConfig, PreTrainedModel

from hyla.integrations.transformers import register
from hyla.integrations.transformers.examples import Inputs, example_inputs
from hyla.integrations.transformers.probes import (
    Finding,
    describe,
    difference,
    failure_of,
    judge,
    is_refusal,
    outputs,
    probe_cache,
    probe_causality,
    probe_masks,
    probe_padding,
    probe_passes,
    probe_softmax,
    tolerance,
)
from hyla.integrations.transformers.substitution import instead_of_ours

NAME = "hyla"


@dataclass(frozen=True)
class Result:
    """What became of an architecture."""

    model_type: str
    model: str
    verdict: str  # "right", "refused", "wrong", "failed", "not built"
    detail: str
    findings: tuple[Finding, ...] = ()


def sweep(model_type: str) -> Result:
    """Build the smallest model of an architecture and ask everything of it."""
    try:
        kind = model_class(model_type)
        if kind is None:
            return Result(model_type, "", "not built", "no model class of its own")
        config, inputs = _running_config(kind, model_type)
    except Exception as error:
        return Result(model_type, "", "not built", describe(error))
    try:
        model = build(kind, config, NAME)
    except Exception as error:
        verdict = "refused" if is_refusal(error) else "failed"
        return Result(model_type, kind.__name__, verdict, describe(error))
    findings = [probe_passes(model, inputs)]
    if findings[0].verdict == "right":
        softmax, own = probe_softmax(model, inputs)
        findings += [
            softmax,
            probe_masks(model, inputs, own, hyla_by_loops),
            probe_causality(model, inputs, own),
            probe_padding(model, inputs, own, "left"),
            probe_padding(model, inputs, own, "right"),
            probe_cache(model, inputs, own),
            probe_saving(model, inputs),
        ]
    for verdict in ("wrong", "failed", "refused"):
        for found in findings:
            if found.verdict == verdict:
                detail = found.detail if verdict == "refused" else f"{found.probe}: {found.detail}"
                return Result(model_type, kind.__name__, verdict, detail, tuple(findings))
    return Result(model_type, kind.__name__, "right", "", tuple(findings))


def _running_config(
    kind: type[PreTrainedModel], model_type: str
) -> tuple[PreTrainedConfig, Inputs]:
    """Return the smallest config whose model runs by itself, and inputs for it."""
    errors = []
    for config in tiny_configs(model_type):
        try:
            return config, example_inputs(build(kind, config, "eager"))
        except Exception as error:
            errors.append(error)
    raise errors[0]


def probe_saving(model: PreTrainedModel, inputs: Inputs) -> Finding:
    """Saved and loaded, the model gives the same."""
    probe = "saved and loaded"
    try:
        again = _saved_and_loaded(model)
        return judge(probe, difference(outputs(model, inputs), outputs(again, inputs)), tolerance(model))
    except Exception as error:
        failure = failure_of(probe, error)
    try:
        with instead_of_ours(model):
            _saved_and_loaded(model)
    except Exception as error:
        return Finding(probe, "not asked", f"nor with its own attention: {describe(error)}")
    return failure


def _saved_and_loaded(model: PreTrainedModel) -> PreTrainedModel:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return type(model).from_pretrained(folder).eval()


def main(model_types: list[str]) -> None:
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    register()
    results = []
    for model_type in model_types or CONFIG_MAPPING_NAMES:
        results.append(sweep(model_type))
        found = results[-1]
        print(found.verdict, found.model_type, found.model, found.detail[:400], sep=" | ", flush=True)
        if sys.argv[1:]:
            for finding in found.findings:
                print("    ", finding)
    print(Counter(result.verdict for result in results))


if __name__ == "__main__":
    main(sys.argv[1:])
