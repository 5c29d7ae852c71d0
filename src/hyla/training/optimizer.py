"""AdamW with warmup and cosine decay, for a population: every member has its own settings."""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

BETAS = (0.9, 0.999)
EPS = 1e-8
FINAL_FRACTION = 0.1  # of the peak learning rate, where the cosine ends


def scheduled_rate(
    step: Int64[Tensor, ""], *, peak: Float[Tensor, " P"], warmup: Float[Tensor, " P"], total: int
) -> Float[Tensor, " P"]:
    """Learning rate of the update that follows `step` earlier ones.

    Linear from 0 over the warmup, then a cosine to a tenth of the peak. As in the authors'
    release the cosine ends `warmup` steps before the total, and the rate stays there.
    """
    length = (total - 2 * warmup).clamp(min=1)
    progress = ((step - warmup) / length).clamp(0, 1)
    cosine = 0.5 * (1 + torch.cos(math.pi * progress))
    decayed = peak * (FINAL_FRACTION + (1 - FINAL_FRACTION) * cosine)
    return torch.where(step < warmup, peak * step / warmup.clamp(min=1), decayed)


def adamw_(
    parameters: Float[Tensor, "P N"],
    first_moment: Float[Tensor, "P N"],
    second_moment: Float[Tensor, "P N"],
    gradients: Float[Tensor, "P N"],
    *,
    step: Int64[Tensor, ""],
    rate: Float[Tensor, " P"],
    weight_decay: Float[Tensor, " P"],
    decayed: Float[Tensor, " N"],
    alive: Bool[Tensor, " P"],
) -> Bool[Tensor, " P"]:
    """Update the parameters and moments of the members that are `alive`, in place.

    A member whose parameters would not be finite is left as it is. Returns which were updated.
    `decayed` is 1 for the entries that weight decay applies to and 0 for the exempt ones.
    """
    count = (step + 1).to(parameters.dtype)
    first = torch.lerp(first_moment, gradients, 1 - BETAS[0])
    second = torch.lerp(second_moment, gradients.square(), 1 - BETAS[1])
    # 1 - β^count, which float32 would round by 1e-5 of itself in the first steps.
    first_weight, second_weight = (-torch.expm1(count * math.log(beta)) for beta in BETAS)
    direction = (first / first_weight) / ((second / second_weight).sqrt() + EPS)
    decay = weight_decay[:, None] * decayed
    updated = parameters - rate[:, None] * (direction + decay * parameters)
    alive = alive & updated.isfinite().all(dim=1)
    take = alive[:, None]
    first_moment.copy_(torch.where(take, first, first_moment))
    second_moment.copy_(torch.where(take, second, second_moment))
    parameters.copy_(torch.where(take, updated, parameters))
    return alive


def decay_mask(parameters: Mapping[str, Tensor]) -> dict[str, bool]:
    """Which parameters weight decay applies to: those of rank two or more.

    The biases of the q, k and v projections count as rank two, [heads, head size], because they
    do in the authors' layout and were decayed in their runs.
    """
    per_head = ("q_proj.bias", "k_proj.bias", "v_proj.bias")
    return {name: p.ndim > 1 or name.endswith(per_head) for name, p in parameters.items()}
