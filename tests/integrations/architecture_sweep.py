"""Every architecture that transformers ships, under "hyla": right, refused, or not to be had here.

    python tests/integrations/architecture_sweep.py

writes docs/huggingface-architectures.md.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import transformers
from hyla_by_loops import hyla_by_loops
from tiny_models import ATTEMPTS, build, model_classes, tiny_config
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import configuration_auto

from hyla.integrations.transformers import register
from hyla.integrations.transformers.examples import Inputs, example_inputs
from hyla.integrations.transformers.probes import (
    Finding,
    describe,
    difference,
    failure_of,
    is_refusal,
    judge,
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
PAGE = Path(__file__).parents[2] / "docs" / "huggingface-architectures.md"
VERDICTS = {
    "right": "attends as it should, by every probe that can be asked",
    "refused": "an error says why, when the model is made or in its first forward pass",
    "not built": "no model was built or run here, and the table says why: nothing is known",
    "failed": "an error that does not say what is wrong",
    "wrong": "computes something else in silence",
}


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
        kind, config, inputs = smallest_that_runs(model_type)
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


def smallest_that_runs(
    model_type: str,
) -> tuple[type[PreTrainedModel], PreTrainedConfig, Inputs]:
    """Return a class and its smallest config whose model runs by itself, and inputs for it."""
    errors = []
    for kind in model_classes(model_type):
        for sizes in ATTEMPTS:
            try:
                config = tiny_config(model_type, sizes)
                return kind, config, example_inputs(build(kind, config, "eager"))
            except Exception as error:
                errors.append(error)
    raise errors[0] if errors else LookupError("it has no model class of its own")


def probe_saving(model: PreTrainedModel, inputs: Inputs) -> Finding:
    """Saved and loaded, the model gives the same."""
    probe = "saved and loaded"
    found = _comparison_of_saved(probe, model, inputs)
    if found.verdict != "right":
        with instead_of_ours(model):
            own = _comparison_of_saved(probe, model, inputs)
        if own.verdict != "right":
            return Finding(probe, "not asked", "nor is it so with its own attention")
    return found


def _comparison_of_saved(probe: str, model: PreTrainedModel, inputs: Inputs) -> Finding:
    try:
        gap = difference(outputs(model, inputs), outputs(_saved_and_loaded(model), inputs))
    except Exception as error:
        return failure_of(probe, error)
    return judge(probe, gap, tolerance(model))


def _saved_and_loaded(model: PreTrainedModel) -> PreTrainedModel:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return type(model).from_pretrained(folder).eval()


def page(results: list[Result]) -> str:
    """Return docs/huggingface-architectures.md."""
    count = Counter(result.verdict for result in results)
    by_verdict = {
        verdict: [result for result in results if result.verdict == verdict] for verdict in count
    }
    lines = [
        "# Architectures of transformers",
        "",
        f"Every config class that transformers {transformers.__version__} ships, under",
        f'`attn_implementation="{NAME}"`: the smallest model that it builds by rule, compared with',
        "HYLA written once more for this test (loops, float64) in the place of its own attention.",
        "Made by `python tests/integrations/architecture_sweep.py`; `make test-slow` checks it.",
        "[`verify(model)`](huggingface.md#is-a-model-right) asks the same of a model of yours.",
        "",
        "| verdict | architectures | |",
        "|---|---|---|",
    ]
    lines += [
        f"| {verdict} | {count[verdict]} | {meaning} |" for verdict, meaning in VERDICTS.items()
    ]
    if by_verdict.get("right"):
        lines += ["", "## Right", "", "| architecture | model |", "|---|---|"]
        lines += [f"| {result.model_type} | {result.model} |" for result in by_verdict["right"]]
    for verdict in ("wrong", "failed", "refused", "not built"):
        if by_verdict.get(verdict):
            lines += ["", f"## {verdict.capitalize()}", "", "| architecture | model | why |"]
            lines.append("|---|---|---|")
            for result in by_verdict[verdict]:
                lines.append(f"| {result.model_type} | {result.model} | {_cell(result.detail)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Return a reason that is short, on one line, and no Markdown."""
    text = text.removeprefix("InterfaceIgnoredError: ").replace("|", "/").replace("`", "'")
    text = text.split(" Choose an")[0].split(" Use an implementation")[0]
    text = text.replace("<", "&lt;").replace("_", "\\_").replace("*", "\\*")
    return text if len(text) <= 240 else text[:237] + "..."


def sweep_all() -> Iterator[Result]:
    """Yield what became of each architecture, in alphabetical order."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    register()
    for model_type in sorted(vars(configuration_auto)["CONFIG_MAPPING_NAMES"]):
        yield sweep(model_type)


def main() -> None:
    """Write the page, saying on the way what became of each."""
    results = []
    for result in sweep_all():
        results.append(result)
        print(result.verdict, result.model_type, result.model, result.detail, sep=" | ", flush=True)
    PAGE.write_text(page(results), encoding="utf-8")
    print(Counter(result.verdict for result in results))


if __name__ == "__main__":
    main()
