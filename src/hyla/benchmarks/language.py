"""Tokens a second of training the paper's language model, beside a plain PyTorch loop of the same.

`python -m hyla.benchmarks.language` prints a table and writes JSON. Tokens are random, so no corpus
is needed. Every figure is of whole steps: cutting the batch out of the data, forward, backward,
update. A model is timed only if its loss agrees with the reference path's in float32, and stays the
same when it is compiled.
"""

import argparse
import contextlib
import gc
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from hyla._environment import environment
from hyla.benchmarks.plain_gpt import PlainGPT, PlainLoop
from hyla.nn.decoders import DECODERS, decoder_config
from hyla.tasks.language.corpus import Tokens
from hyla.training.devices import resolve_device
from hyla.training.language.config import Execution, LanguageConfig, LanguageEvaluation
from hyla.training.language.steps import Steps
from hyla.training.language.throughput import peak_flops, utilisation
from hyla.training.population import Member
from hyla.training.run.ranks import Ranks

PLAIN = "plain PyTorch"
ATTENTIONS = ("softmax", "linear", "hyla")
VOCAB_SIZE = 32_000
TOLERANCE = {"bf16": 3e-2, "float32": 1e-4}
_SDPA = {
    "default": (),
    "cudnn": (SDPBackend.CUDNN_ATTENTION,),
    "flash": (SDPBackend.FLASH_ATTENTION,),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is measured."""

    size: str = "paper"
    length: int = 512
    tokens_per_step: int = 131_072
    precision: str = "bf16"
    micro_batch: int | None = None
    sdpa: str = "default"

    @property
    def batch_size(self) -> int:
        """Sequences of a step."""
        return max(1, self.tokens_per_step // self.length)


class _Loop(Protocol):
    def take(self) -> None: ...


def measure(
    device: torch.device, seconds: float = 5.0, case: Case | None = None
) -> Iterator[dict[str, Any]]:
    """Yield a row for each model at 512 and 1024 tokens, or at the case's length."""
    if case is None:
        small = {"size": "nano", "tokens_per_step": 1024, "precision": "float32"}
        base = Case() if device.type == "cuda" else Case(**small)
        lengths: Sequence[int] = (512, 1024)
    else:
        base, lengths = case, (case.length,)
    for length in lengths:
        yield from measure_length(replace(base, length=length), device, seconds)


def measure_length(case: Case, device: torch.device, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield a row for the plain loop and for each attention."""
    tokens = np.random.default_rng(0).integers(VOCAB_SIZE, size=4_000_000, dtype=np.uint16)
    rates: dict[str, float] = {}
    for name in (PLAIN, *ATTENTIONS):
        began = time.monotonic()
        error = _check(name, case, device)
        loop = _build(name, case, device, tokens)
        with _attention_by(case.sdpa if name != PLAIN else "default"):
            if isinstance(loop, Steps):
                error = max(error, _check_compiled(loop, name, case, device, tokens))
            rate, memory = _tokens_per_second(loop, case, device, seconds)
        rates[name] = rate
        shape = decoder_config(
            case.size,
            vocab_size=VOCAB_SIZE,
            sequence_length=case.length,
            attention="softmax" if name == PLAIN else name,
        )
        yield {
            "model": name,
            "length": case.length,
            "sequences": case.batch_size,
            "precision": case.precision,
            "tokens_per_second": rate,
            "over_plain": rate / rates[PLAIN],
            "over_softmax": rate / rates["softmax"] if "softmax" in rates else None,
            "mfu": utilisation(shape, rate, peak_flops(device, case.precision)),
            "peak_memory_gib": memory,
            "loss_error": error,
            "seconds_in_all": time.monotonic() - began,
        }
        del loop
        _forget(device)


def _config(attention: str, case: Case) -> LanguageConfig:
    return LanguageConfig(
        corpus="random tokens",
        model=decoder_config(
            case.size,
            vocab_size=VOCAB_SIZE,
            sequence_length=case.length,
            attention=attention,
        ),
        member=Member(warmup_steps=1000),
        steps=1_000_000,
        batch_size=case.batch_size,
        evaluation=LanguageEvaluation(every=1, sequences=1, final_sequences=1),
        log_every=1,
        precision=case.precision,
    )


def _build(name: str, case: Case, device: torch.device, tokens: np.ndarray) -> _Loop:
    if name == PLAIN:
        model = PlainGPT(_config("softmax", case).model).to(device)
        return PlainLoop(
            model,
            tokens,
            batch_size=case.batch_size,
            length=case.length,
            device=device,
            compile=device.type == "cuda",
        )
    execution = Execution(micro_batch=case.micro_batch)
    return Steps(_config(name, case), Tokens([tokens]), execution, Ranks(device))


def _check(name: str, case: Case, device: torch.device) -> float:
    """Return how far the loss is from the reference path's in float32; raise if too far."""
    case = replace(case, tokens_per_step=2 * case.length, micro_batch=None)
    config = _config("softmax" if name == PLAIN else name, case)
    tokens = np.random.default_rng(1).integers(VOCAB_SIZE, size=8 * case.length, dtype=np.uint16)
    exact = replace(config, precision="float32")
    slow = Execution(backend="reference", compile=False)
    reference = Steps(exact, Tokens([tokens]), slow, Ranks(device))
    batch = torch.from_numpy(tokens[: 2 * case.length + 2].astype(np.int64)).view(2, -1)
    batch = batch.to(device)
    expected = float(reference.losses(batch).mean()) / case.length
    if name == PLAIN:
        plain = PlainGPT(config.model).to(device)
        plain.load(reference.model.transformer)
        with torch.no_grad():
            found = float(plain(batch[:, :-1], batch[:, 1:]))
        tolerance = TOLERANCE["float32"]  # the plain model is compared as it is, without autocast
    else:
        fast = Steps(config, Tokens([tokens]), Execution(compile=False), Ranks(device))
        found = float(fast.losses(batch).mean()) / case.length
        tolerance = TOLERANCE[config.precision]
    return _compared(name, found, expected, tolerance)


def _check_compiled(
    loop: Steps, name: str, case: Case, device: torch.device, tokens: np.ndarray
) -> float:
    """Return how far the loss of the first step is from that of the model before compilation."""
    execution = Execution(micro_batch=case.micro_batch, compile=False)
    eager = Steps(_config(name, case), Tokens([tokens]), execution, Ranks(device))
    eager.take()
    loop.take()
    (found,), (expected,) = loop.mean_losses(), eager.mean_losses()
    return _compared(name, found, expected, TOLERANCE[case.precision])


def _compared(name: str, found: float, expected: float, tolerance: float) -> float:
    error = abs(found - expected)
    if not error <= tolerance:
        raise RuntimeError(f"{name}: the loss is {found} where {expected} is right: not timed")
    return error


def _tokens_per_second(
    loop: _Loop, case: Case, device: torch.device, seconds: float
) -> tuple[float, float | None]:
    """Return the median rate of timed slices, and the peak of memory in GiB."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(3):  # compiles, and lets the allocator settle
        loop.take()
    rates, slice_steps, deadline = [], 1, time.monotonic() + seconds
    while time.monotonic() < deadline or len(rates) < 3:
        _wait(device)
        began = time.monotonic()
        for _ in range(slice_steps):
            loop.take()
        _wait(device)
        elapsed = time.monotonic() - began
        if elapsed < seconds / 20:
            slice_steps *= 2  # too short to time
        else:
            tokens = case.batch_size * case.length
            rates.append(slice_steps * tokens / elapsed)
    gib = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    return sorted(rates)[len(rates) // 2], gib


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _forget(device: torch.device) -> None:
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _attention_by(kind: str) -> contextlib.AbstractContextManager:
    backends = _SDPA[kind]
    return sdpa_kernel(list(backends)) if backends else contextlib.nullcontext()


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m hyla.benchmarks.language", description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each figure")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--size", choices=DECODERS, default="paper")
    parser.add_argument("--tokens-per-step", type=int, default=Case.tokens_per_step)
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--precision", choices=TOLERANCE, default="bf16")
    parser.add_argument("--sdpa", choices=_SDPA, default="default", help="kernel of our softmax")
    parser.add_argument("--out", type=Path, help="JSON file of the rows")
    arguments = parser.parse_args()
    device = resolve_device(arguments.device)
    measured_with = environment(device)
    print(" ".join(f"{key} {value}" for key, value in measured_with.items() if value))
    rows = []
    for length in arguments.lengths:
        case = Case(
            size=arguments.size,
            length=length,
            tokens_per_step=arguments.tokens_per_step,
            precision=arguments.precision,
            micro_batch=arguments.micro_batch,
            sdpa=arguments.sdpa,
        )
        for row in measure(device, arguments.seconds, case):
            rows.append(row | {"size": arguments.size, "sdpa": arguments.sdpa})
            print(" · ".join(f"{key} {_shown(value)}" for key, value in row.items()), flush=True)
            if arguments.out is not None:  # after every row: what was measured survives
                arguments.out.parent.mkdir(parents=True, exist_ok=True)
                content = {"environment": measured_with, "rows": rows}
                arguments.out.write_text(json.dumps(content, indent=1) + "\n")


def _shown(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
