"""`hyla generate`: a trained language model continues a text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import torch
from cyclopts import Parameter
from torch import Tensor

from hyla.commands.shared.exits import usage_errors
from hyla.nn.generate import generate_steps
from hyla.tasks.language import Tokenizer
from hyla.training.language import load_language_model


def generate(
    run: Path,
    /,
    *,
    prompt: str = "",
    max_new_tokens: Annotated[int, Parameter(alias="--tokens")] = 100,
    samples: int = 1,
    temperature: float = 0.8,
    top_p: float = 0.95,
    seed: int = 0,
    cache: Annotated[bool, Parameter(negative="--no-cache")] = True,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> None:
    """Continue a text with a trained language model.

    Examples:

    - `hyla generate runs/language-hyla-0123456789ab --prompt "= The history of"`
    - `hyla generate runs/language-hyla-0123456789ab --temperature 0`: the most likely text

    Parameters
    ----------
    run
        Run directory of `hyla train language`; its newest checkpoint is used.
    prompt
        Text to continue; none begins a new document.
    max_new_tokens
        Most tokens to add; a document may end before.
    samples
        Number of continuations.
    temperature
        0 takes the most likely token; 1 samples from the model's own distribution.
    top_p
        Sample from the fewest tokens that have this probability together.
    seed
        Seed of the sampling.
    cache
        Keep keys and values between steps; without, everything is computed anew: the same, slowly.
    device
        auto takes the GPU if there is one.
    """
    with usage_errors():
        loaded = load_language_model(run, device)
        model, tokenizer = loaded.transformer, loaded.tokenizer
        where = model.embedding.weight.device
        # Every document that the model has seen stood after a separator.
        begin = [tokenizer.separator, *tokenizer.encode(prompt)]
        continuations = [
            generate_steps(
                model,
                torch.tensor([begin], device=where),
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                top_p=top_p,
                stop_token=tokenizer.separator,
                generator=torch.Generator(where).manual_seed(seed + sample),
                cached=cache,
            )
            for sample in range(samples)
        ]
    for number, steps in enumerate(continuations, 1):
        if samples > 1:
            print(f"--- {number}")
        _print_as_it_comes(tokenizer, begin[1:], steps)


def _print_as_it_comes(tokenizer: Tokenizer, text: list[int], steps: Iterator[Tensor]) -> None:
    """Print a text that grows with each token; some characters take several."""
    shown = tokenizer.decode(text)
    print(shown, end="", flush=True)
    for step in steps:
        text = [*text, int(step)]
        grown = tokenizer.decode(text)
        if not grown.endswith("\N{REPLACEMENT CHARACTER}"):
            print(grown[len(shown) :], end="", flush=True)
            shown = grown
    print()
