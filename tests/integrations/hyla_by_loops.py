"""HYLA once more, from Eq. 6 of the paper alone: one query after the other, in float64.

It takes what transformers hands to a model's own "eager" attention, and shares no code with hyla.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

EPS = 1e-6


def hyla_by_loops(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    q, k, v = (x.detach().double().numpy() for x in (query, key, value))
    B, H, Q, D = q.shape
    K = k.shape[2]
    k, v = (x.repeat(H // x.shape[1], axis=1) for x in (k, v))
    scale = D**-0.5 if scaling is None else float(scaling)
    added = np.zeros((B, H, Q, K))
    hidden = np.zeros((B, H, Q, K), dtype=bool)
    if attention_mask is not None:
        given = attention_mask[..., :K]
        if given.dtype == torch.bool:
            hidden = np.broadcast_to(~given.numpy(), hidden.shape)
        else:
            given = np.broadcast_to(given.detach().double().numpy(), added.shape)
            hidden = given <= -70
            seen = given[~hidden]
            if seen.size and seen.min() != seen.max():  # a constant is no bias
                added = np.where(hidden, 0, given)
    if position_bias is not None:
        added = added + position_bias[..., :K].detach().double().numpy()
    out = np.zeros((B, Q, H, v.shape[-1]))
    for b in range(B):
        for i in range(Q):
            scores = (k[b] * q[b, :, i, None]).sum(-1) * scale + added[b, :, i]  # [H, K]
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            scores = np.where(hidden[b, :, i], 0, scores)
            code = scores / np.sqrt((scores**2).mean(0) + EPS)
            network = np.maximum(np.einsum("hk,hkd->kd", code, v[b]), 0)  # one for each key
            out[b, i] = np.einsum("hk,kd->hd", code, network)
    return torch.from_numpy(out).to(query.dtype), None
