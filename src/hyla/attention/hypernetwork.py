r"""The value networks that attention generates, as explicit weights (Eq. 2-7).

Attention never forms these matrices; they are here to be looked at, and to test the identity

$$ \mathrm{MHA}_q(X) = \sum_k W_{q,k} x_k, \qquad
   W_{q,k} = \sum_h a_{h,q,k} W^{\mathrm{out}}_h W^{\mathrm{value}}_h $$

and for HYLA $\sum_k W'_{q,k} \phi(W_{q,k} x_k)$ with the code on both sides. The weights are
given by head: `w_value` [H, Dv, E] so that `v_h = w_value[h] @ x`, and `w_out` [H, E_out, Dv].
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class LinearValueNetwork(NamedTuple):
    """`x -> weight @ x` for each of N query-key pairs (Eq. 5)."""

    weight: Float[Tensor, "N Eout E"]


class HiddenValueNetwork(NamedTuple):
    """`x -> outer @ φ(inner @ x)` for each of N query-key pairs (Eq. 7)."""

    inner: Float[Tensor, "N Dv E"]
    outer: Float[Tensor, "N Eout Dv"]


def pair_codes(code: Float[Tensor, "B H Tq Tk"], pairs: Int[Tensor, "N 3"]) -> Float[Tensor, "N H"]:
    """Pick the code of each (batch, query, key) in `pairs`."""
    if pairs.ndim != 2 or pairs.shape[1] != 3:
        raise ValueError(
            f"pairs must list (batch, query, key) as [N, 3], got shape {tuple(pairs.shape)}"
        )
    batch, query, key = pairs.unbind(dim=1)
    return code[batch, :, query, key]


def linear_value_network(
    codes: Float[Tensor, "N H"], w_value: Float[Tensor, "H Dv E"], w_out: Float[Tensor, "H Eout Dv"]
) -> LinearValueNetwork:
    """Generate W_qk of Eq. 4-5 for each code."""
    return LinearValueNetwork(torch.einsum("nh,hod,hde->noe", codes, w_out, w_value))


def hidden_value_network(
    codes: Float[Tensor, "N H"], w_value: Float[Tensor, "H Dv E"], w_out: Float[Tensor, "H Eout Dv"]
) -> HiddenValueNetwork:
    """Generate W_qk and W'_qk of Eq. 6-7 for each code."""
    return HiddenValueNetwork(
        inner=torch.einsum("nh,hde->nde", codes, w_value),
        outer=torch.einsum("nh,hod->nod", codes, w_out),
    )
