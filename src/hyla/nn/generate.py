"""Continuing token sequences: greedily, or by sampling."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hyla._errors import check_positive
from hyla.nn.transformer import Transformer


def generate(
    model: Transformer,
    tokens: Int[Tensor, "B T"],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    stop_token: int | None = None,
    generator: torch.Generator | None = None,
    cached: bool = True,
) -> Int[Tensor, "B Tnew"]:
    """Return `tokens` followed by up to `max_new_tokens` more.

    `temperature` 0 takes the most likely token. `top_p` samples from the fewest tokens that have
    that probability together. A sequence that reached `stop_token` repeats it, and when all have,
    generation ends. Not `cached`, every step computes all positions anew: the same tokens, slowly.
    """
    new = list(
        generate_steps(
            model,
            tokens,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            stop_token=stop_token,
            generator=generator,
            cached=cached,
        )
    )
    return torch.cat([tokens, *(step[:, None] for step in new)], dim=1)


def generate_steps(
    model: Transformer,
    tokens: Int[Tensor, "B T"],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    stop_token: int | None = None,
    generator: torch.Generator | None = None,
    cached: bool = True,
) -> Iterator[Int[Tensor, " B"]]:
    """Yield the new tokens one position after the other; arguments as in `generate`."""
    check_positive(max_new_tokens=max_new_tokens)
    if tokens.ndim != 2 or tokens.shape[1] < 1:
        raise ValueError(f"tokens must have shape [B, T] with T ≥ 1, got {tuple(tokens.shape)}")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must be finite and not negative, got {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must lie in (0, 1], got {top_p}")
    cache = model.new_cache(tokens.shape[1] + max_new_tokens) if cached else None

    @torch.inference_mode()
    def steps() -> Iterator[Int[Tensor, " B"]]:
        unread = tokens
        stopped = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
        for _ in range(max_new_tokens):
            logits = model(unread, cache=cache, last=1)
            assert isinstance(logits, Tensor)
            chosen = choose(logits[:, -1].float(), temperature, top_p, generator)
            if stop_token is not None:
                chosen = chosen.masked_fill(stopped, stop_token)
                stopped |= chosen == stop_token
            yield chosen
            if stopped.all():
                return
            unread = chosen[:, None] if cached else torch.cat([unread, chosen[:, None]], dim=1)

    return steps()


def choose(
    logits: Float[Tensor, "B V"],
    temperature: float,
    top_p: float,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " B"]:
    """Choose a token for each row of logits."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    probabilities, order = torch.softmax(logits / temperature, dim=-1).sort(descending=True)
    # A token stays if those before it do not make up top_p yet; the first one always does.
    before = probabilities.cumsum(dim=-1) - probabilities
    probabilities = probabilities.masked_fill(before >= top_p, 0.0)
    drawn = torch.multinomial(probabilities, 1, generator=generator)
    return order.gather(-1, drawn)[:, 0]
