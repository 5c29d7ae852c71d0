"""Tokens a second of training the paper's language model, beside a plain PyTorch loop of the same.

    python -m hyla.benchmarks.language [--attentions softmax hyla] [--out language-cuda.json]

Tokens are random, so no corpus is needed. Every figure is of whole steps: cutting the batch out of
the data, forward, backward, update. A model is timed only if its loss agrees with the reference
path's in float32, and stays the same when it is compiled.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from hyla._clock import calls_per_second
from hyla.attention import resolve_spec
from hyla.benchmarks.cases import Row, check_rows, measured
from hyla.benchmarks.clock import forget_earlier, repeated
from hyla.benchmarks.command_line import parser_of, record
from hyla.benchmarks.plain_gpt import PlainGPT, PlainLoop
from hyla.nn.decoders import decoder_config
from hyla.tasks.language.corpus import Tokens
from hyla.training.language.config import Execution, LanguageConfig, LanguageEvaluation
from hyla.training.language.steps import Steps
from hyla.training.language.throughput import peak_flops, utilisation
from hyla.training.population import Member
from hyla.training.run.ranks import Ranks

PLAIN = "plain PyTorch"
MODELS = (PLAIN, "softmax", "linear", "hyla")
VOCAB_SIZE = 32_000
TOLERANCE = {"bf16": 3e-2, "float32": 1e-4}


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is measured."""

    size: str = "paper"
    length: int = 512
    tokens_per_step: int = 131_072
    precision: str = "bf16"

    @property
    def batch_size(self) -> int:
        """Sequences of a step."""
        return max(1, self.tokens_per_step // self.length)


class _Loop(Protocol):
    def take(self) -> None: ...


def measure(
    device: torch.device,
    seconds: float = 5.0,
    case: Case | None = None,
    *,
    models: Sequence[str] = MODELS,
) -> Iterator[Row]:
    """Yield a row for each model at 512 and 1024 tokens, or at the case's length.

    Of one that comes after, the speed over the plain loop's and over softmax's is given, too.
    """
    for name in set(models) - {PLAIN}:
        resolve_spec(name)  # raises now, not after others were measured
    if case is None:
        small = {"size": "nano", "tokens_per_step": 1024, "precision": "float32"}
        base = Case() if device.type == "cuda" else Case(**small)
        lengths: Sequence[int] = (512, 1024)
    else:
        base, lengths = case, (case.length,)
    for length in lengths:
        yield from measure_length(replace(base, length=length), device, seconds, models)


def measure_length(
    case: Case, device: torch.device, seconds: float, models: Sequence[str]
) -> Iterator[Row]:
    """Yield a row for each of the models, the plain loop or an attention's.

    One that fails has no figures and says why.
    """
    tokens = np.random.default_rng(0).integers(VOCAB_SIZE, size=4_000_000, dtype=np.uint16)
    rates: dict[str, float] = {}

    def described(name: str) -> Row:
        return {
            "model": name,
            "length": case.length,
            "sequences": case.batch_size,
            "precision": case.precision,
        }

    def rows_of(name: str) -> Iterator[Row]:
        forget_earlier(device)
        began = time.monotonic()
        error = _check(name, case, device)
        loop = _build(name, case, device, tokens)
        if isinstance(loop, Steps):
            error = max(error, _check_compiled(loop, name, case, device, tokens))
        rate, memory = _tokens_per_second(loop, case, device, seconds)
        rates[name] = rate
        shape = _config("softmax" if name == PLAIN else name, case).model
        yield described(name) | {
            "tokens_per_second": rate,
            "over_plain": rate / rates[PLAIN] if PLAIN in rates else None,
            "over_softmax": rate / rates["softmax"] if "softmax" in rates else None,
            "mfu": utilisation(shape, rate, peak_flops(device, case.precision)),
            "peak_memory_gib": memory,
            "loss_error": error,
            "seconds_in_all": time.monotonic() - began,
        }

    yield from measured(models, rows_of, described)


def _config(attention: str, case: Case) -> LanguageConfig:
    return LanguageConfig(
        corpus="random tokens",
        model=decoder_config(
            case.size, vocab_size=VOCAB_SIZE, sequence_length=case.length, attention=attention
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
    return Steps(_config(name, case), Tokens([tokens]), Execution(), Ranks(device))


def _check(name: str, case: Case, device: torch.device) -> float:
    """Return how far the loss is from the reference path's in float32; raise if too far."""
    case = replace(case, tokens_per_step=2 * case.length)
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
    eager = Steps(_config(name, case), Tokens([tokens]), Execution(compile=False), Ranks(device))
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
    run = repeated(loop.take)
    run(2)  # lets the allocator settle
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    rate = case.batch_size * case.length * calls_per_second(run, device, seconds)
    gib = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    return rate, gib


def main() -> None:
    """Measure, print and write on a machine that has torch, and not the command's packages."""
    parser = parser_of("language", __doc__)
    parser.add_argument(
        "--attentions",
        metavar="NAME",
        nargs="+",
        default=MODELS,
        help=f"only these, or {PLAIN!r}",
    )
    given = parser.parse_args()
    check_rows(record(measure, given.device, given.seconds, given.out, models=given.attentions))


if __name__ == "__main__":
    main()
