"""Questions to a model whose answers tell whether it attends as it should.

What is right is what the model does by attention of transformers' own, "eager" or "sdpa": where
that is causal, deaf to padding and the same with and without a cache, so has to be ours.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hyla.attention import AttentionSpec
from hyla.integrations.transformers.examples import Inputs
from hyla.integrations.transformers.presets import attention_function
from hyla.integrations.transformers.proof import AttentionFunction, expect_calls, watched
from hyla.integrations.transformers.substitution import (
    instead_of_ours,
    ours_replaced,
    with_masks_alone,
)

Verdict = Literal["right", "wrong", "refused", "failed", "not asked"]

# As a tuple it is not the preset that goes to PyTorch's kernels.
_SOFTMAX = AttentionSpec(normalisation=("softmax",), value="linear")
_TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-3}  # relative to the largest output
_LOW_PRECISION = 5e-2
_LEAK = 1e-5  # what is masked has no influence at all, save for the order of sums
_MASK_OF = {"decoder_input_ids": "decoder_attention_mask", "input_ids": "attention_mask"}


@dataclass(frozen=True)
class Finding:
    """What a probe found."""

    probe: str
    verdict: Verdict
    detail: str = ""


def probe_passes(model: PreTrainedModel, inputs: Inputs) -> Finding:
    """Two passes: all attention is ours, nothing is infinite, the second is like the first."""
    probe = "all attention is ours"
    expect_calls(model)
    try:
        first, second = outputs(model, inputs), outputs(model, inputs)
    except Exception as error:
        return failure_of(probe, error)
    if not all(bool(x.isfinite().all()) for x in first):
        return Finding(probe, "wrong", "the output is not finite")
    return judge(probe, difference(first, second), tolerance(model))


def probe_softmax(model: PreTrainedModel, inputs: Inputs) -> tuple[Finding, str]:
    """Our softmax gives what the model's own does: it hands over all that matters.

    The second result is the name of the attention that it is held to from here on.
    """
    probe = "softmax in our place is its own"
    try:
        with ours_replaced(model, watched(attention_function("softmax", _SOFTMAX))):
            got = outputs(model, inputs)
    except Exception as error:
        return failure_of(probe, error), "eager"
    found = None
    # Some models make masks for one of the two that are wrong for the other.
    for own in ("eager", "sdpa") if model._supports_sdpa else ("eager",):
        try:
            with instead_of_ours(model, own):
                expected = outputs(model, inputs)
        except Exception as error:
            found = found or Finding(probe, "not asked", f"its own fails: {describe(error)}")
            continue
        judged = judge(probe, difference(expected, got), tolerance(model))
        if judged.verdict == "right":
            return judged, own
        found = found or judged
    assert found is not None  # "eager" was tried
    return found, "eager"


def probe_masks(
    model: PreTrainedModel, inputs: Inputs, own: str, function: AttentionFunction
) -> Finding:
    """`function`, under the masks that the model makes for its own, gives what the model does."""
    probe = "masks mean what they mean to its own"
    calls = 0

    def counted(*args: Any, **more: Any) -> tuple[Tensor, Tensor | None]:
        nonlocal calls
        calls += 1
        return with_masks_alone(function, own)(*args, **more)

    try:
        got = outputs(model, inputs)
        with instead_of_ours(model, own, counted):
            expected = outputs(model, inputs)
    except Exception as error:
        return failure_of(probe, error)
    if not calls:
        return Finding(probe, "not asked", "its own attention cannot be replaced")
    return judge(probe, difference(expected, got), tolerance(model))


def probe_causality(model: PreTrainedModel, inputs: Inputs, own: str) -> Finding:
    """Another last token leaves all earlier outputs as they were."""

    def leak(name: str) -> float:
        changed = inputs[name].clone()
        changed[:, -1] = torch.where(changed[:, -1] == 4, 5, 4)
        first, second = (
            _by_position(model, inputs | {name: x}, name) for x in (inputs[name], changed)
        )
        return difference([first[:, :-1]], [second[:, :-1]])

    return _held_to_own("the future is not seen", model, inputs, own, leak, _LEAK)


def probe_padding(
    model: PreTrainedModel, inputs: Inputs, own: str, side: Literal["left", "right"]
) -> Finding:
    """What stands in the padding does not matter."""
    hidden = slice(0, 3) if side == "left" else slice(-3, None)

    def leak(name: str) -> float:
        tokens = inputs[name]
        mask = torch.ones_like(tokens)
        mask[-1, hidden] = 0
        changed = tokens.clone()
        changed[-1, hidden] = 7
        padded = inputs | {_MASK_OF[name]: mask}
        first, second = (_by_position(model, padded | {name: x}, name) for x in (tokens, changed))
        return difference([first[mask.bool()]], [second[mask.bool()]])

    return _held_to_own(f"padding on the {side} is not seen", model, inputs, own, leak, _LEAK)


def probe_cache(model: PreTrainedModel, inputs: Inputs, own: str) -> Finding:
    """The last output is the same whether earlier tokens come from a cache or not."""

    def gap(name: str) -> float:
        tokens = inputs[name]
        whole = _by_position(model, inputs, name)[:, -1]
        past = _call(model, inputs | {name: tokens[:, :-1]}, use_cache=True).past_key_values
        if past is None:
            raise LookupError("it returns no cache")
        last = inputs | {name: tokens[:, -1:]}
        step = _call(model, last, use_cache=True, past_key_values=past)
        return difference([whole], [_first(step, len(tokens), 1)[:, -1]])

    return _held_to_own("a cache changes nothing", model, inputs, own, gap, tolerance(model))


def tokens_of(inputs: Inputs) -> str | None:
    """Return the name of the tokens whose outputs a model gives one by one, if there are any."""
    return next((name for name in _MASK_OF if name in inputs), None)


def is_refusal(error: Exception) -> bool:
    """Whether an error is one of ours, which says what is wrong and what to do."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = bool(frames) and Path(frames[-1].filename).parent == Path(__file__).parent
    return ours and isinstance(error, ValueError)


def _held_to_own(
    probe: str,
    model: PreTrainedModel,
    inputs: Inputs,
    own: str,
    measure: Callable[[str], float],
    within: float,
) -> Finding:
    """Ask the same of the model's own attention, and of ours if that passed.

    `measure` is given the name of the tokens among the inputs.
    """
    name = tokens_of(inputs)
    if name is None:
        return Finding(probe, "not asked", "no tokens")
    try:
        with instead_of_ours(model, own):
            usual = measure(name)
    except Exception as error:
        return Finding(probe, "not asked", f"not with its own attention: {describe(error)}")
    if not usual <= within:
        return Finding(probe, "not asked", "it is not so with its own attention either")
    try:
        return judge(probe, measure(name), max(within, 10 * usual))
    except Exception as error:
        return failure_of(probe, error)


def judge(probe: str, difference: float, within: float) -> Finding:
    """Return whether two results that should be the same are."""
    wrong = not difference <= within
    return Finding(probe, "wrong" if wrong else "right", f"relative difference {difference:.1e}")


def failure_of(probe: str, error: Exception) -> Finding:
    """Return what an error says: that we refuse, or that something broke."""
    return Finding(probe, "refused" if is_refusal(error) else "failed", describe(error))


def describe(error: Exception) -> str:
    """Return an error on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def tolerance(model: PreTrainedModel) -> float:
    """Return by how much outputs of the same may differ, relative to the largest."""
    return _TOLERANCE.get(model.dtype, _LOW_PRECISION)


def _call(model: PreTrainedModel, inputs: Inputs, **more: Any) -> Any:
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices):
        torch.manual_seed(0)  # some models add noise
        return model(**inputs, **more)


def outputs(model: PreTrainedModel, inputs: Inputs) -> list[Tensor]:
    """Return every floating-point tensor that the model gives, its cache left out."""
    output = _call(model, inputs)
    return [x for key, value in _items(output) if key != "past_key_values" for x in _tensors(value)]


def _items(output: Any) -> list[tuple[str, Any]]:
    return list(output.items()) if hasattr(output, "items") else [("", output)]


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, tuple | list):
        return [x for part in value for x in _tensors(part)]
    if hasattr(value, "items"):
        return [x for _, part in value.items() for x in _tensors(part)]
    return []


def _by_position(model: PreTrainedModel, inputs: Inputs, name: str) -> Tensor:
    return _first(_call(model, inputs), *inputs[name].shape)


def _first(output: Any, batch: int, length: int) -> Tensor:
    """Return the first output that has an entry for each token."""
    for _, value in _items(output):
        for x in _tensors(value):
            if x.ndim >= 3 and x.shape[:2] == (batch, length):
                return x
    raise LookupError("no output has an entry for each token")


def difference(expected: list[Tensor], got: list[Tensor]) -> float:
    """Return the largest difference, relative to the largest entry of each tensor."""
    if [x.shape for x in expected] != [x.shape for x in got]:
        return float("inf")
    worst = 0.0
    for a, b in zip(expected, got, strict=True):
        if a.numel():
            scale = a.abs().amax().clamp_min(1e-6)
            worst = max(worst, float(((a - b).abs() / scale).nan_to_num(torch.inf).amax()))
    return worst
