"""`hyla doctor attention`: which path a call takes, why, and what would be faster."""

import dataclasses
import json as json_format
from typing import Annotated, Literal

import torch
from cyclopts import Parameter
from torch import Tensor

from hyla._errors import check_at_least_one
from hyla.attention import RECOMMENDED, explain, resolve_spec
from hyla.commands.shared.exits import FAILURE, usage_errors
from hyla.commands.shared.options import AttentionName
from hyla.training.devices import resolve_device


def doctor_attention(
    *,
    attention: Annotated[AttentionName, Parameter(show_choices=False)] = RECOMMENDED,
    heads: int = 8,
    size: int = 64,
    tokens: int = 1024,
    keys: int | None = None,
    batch: int = 1,
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32",
    causal: Annotated[bool, Parameter(negative=())] = False,
    padding: Annotated[bool, Parameter(negative=())] = False,
    bias: Annotated[bool, Parameter(negative=())] = False,
    gradients: bool = True,
    backend: Literal["auto", "fused", "reference"] = "auto",
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Print the explanation; what the command says of itself stands where it is registered.

    Parameters
    ----------
    attention
        hyla, softmax, linear, or other rows of Table A1.
    heads
        Heads of queries, keys and values.
    size
        Of each head.
    tokens
        Queries of a sequence.
    keys
        Keys of a sequence; as many as queries by default.
    batch
        Sequences.
    dtype
        Of queries, keys and values.
    causal
        Queries see no later keys.
    padding
        Some keys are padding.
    bias
        A bias is learned for each head and pair.
    gradients
        As in training.
    backend
        Who is asked for.
    json
        Print one JSON object instead.
    """
    with usage_errors():
        keys = tokens if keys is None else keys
        check_at_least_one(heads=heads, size=size, tokens=tokens, keys=keys, batch=batch)
        one = torch.empty(1, dtype=getattr(torch, dtype), device=resolve_device("auto"))
        one.requires_grad_(gradients)

        def shaped(*shape: int) -> Tensor:
            return one.expand(shape)  # nothing is computed: no memory for what nobody reads

        found = explain(
            shaped(batch, tokens, heads, size),
            *(shaped(batch, keys, heads, size) for _ in range(2)),
            attention=attention,
            value_weight=shaped(heads, size, size)
            if resolve_spec(attention).value == "deep"
            else None,
            bias=shaped(heads, tokens, keys) if bias else None,
            bias_masks=False,
            mask=torch.ones(batch, 1, 1, keys).bool().to(one.device) if padding else None,
            causal=causal,
            backend=backend,
        )
    print(json_format.dumps(dataclasses.asdict(found), indent=1) if json else found)
    return FAILURE if found.path is None else 0
