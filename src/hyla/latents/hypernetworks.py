r"""The value networks that attention generates, as explicit weights.

With biases, Eq. 4-5 read

$$ \mathrm{MHA}_q(X) = b^{\mathrm{out}} + \sum_k \big( W_{q,k} x_k + b_{q,k} \big), \qquad
   W_{q,k} = \sum_h a_{h,q,k} W^{\mathrm{out}}_h W^{\mathrm{value}}_h, \quad
   b_{q,k} = \sum_h a_{h,q,k} W^{\mathrm{out}}_h b^{\mathrm{value}}_h $$
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hyla.attention.hypernetwork import linear_value_network
from hyla.latents.adapters import adapter_of
from hyla.latents.capture import Inputs
from hyla.latents.observe import Site, UnsupportedModelError, has_own_layers


@dataclass(frozen=True, kw_only=True, eq=False)
class ValueNetworks:
    """The hypernetwork of one attention layer: what its codes generate value networks from.

    Heads that share keys and values (grouped queries) each have a copy of the shared weights.
    """

    w_value: Float[Tensor, "H D E"]
    b_value: Float[Tensor, "H D"] | None
    w_out: Float[Tensor, "H Eout D"]
    b_out: Float[Tensor, " Eout"] | None

    def products(self) -> Float[Tensor, "H Eout E"]:
        """Return W_out W_value of each head: the matrices that a code mixes."""
        return torch.einsum("hod,hde->hoe", self.w_out, self.w_value)

    def weights(self, codes: Float[Tensor, "N H"]) -> Float[Tensor, "N Eout E"]:
        """Return W_qk of each code."""
        return linear_value_network(codes, self.w_value, self.w_out).weight

    def biases(self, codes: Float[Tensor, "N H"]) -> Float[Tensor, "N Eout"]:
        """Return b_qk of each code."""
        if self.b_value is None:
            return codes.new_zeros(len(codes), self.w_out.shape[1])
        return torch.einsum("nh,hod,hd->no", codes, self.w_out, self.b_value)

    def __call__(
        self, code: Float[Tensor, "B H Tq Tk"], source: Float[Tensor, "B Tk E"]
    ) -> Float[Tensor, "B Tq Eout"]:
        """Apply each pair's own value network to its key's input, and sum over the keys."""
        outs = []
        for of_query in code.unbind(dim=2):  # [B, H, Tk]
            codes = of_query.transpose(1, 2).flatten(0, 1)
            weights = self.weights(codes).unflatten(0, source.shape[:2])
            biases = self.biases(codes).unflatten(0, source.shape[:2])
            outs.append(torch.einsum("bkoe,bke->bo", weights, source) + biases.sum(dim=1))
        out = torch.stack(outs, dim=1)
        return out if self.b_out is None else out + self.b_out


def value_networks(model: nn.Module, inputs: Inputs) -> dict[Site, ValueNetworks]:
    """Return the hypernetwork of every attention layer of a transformers model.

    `inputs` is a small batch on which the identity of Eq. 4-5 is checked for each layer (it forms
    W_qk for every pair, so a few tokens are enough). Layers of hyla need no reading: their
    `head_weights` are what `hyla.attention.hypernetwork` generates value networks from.

    Raises:
        UnsupportedModelError: the model is not one of transformers, the projections of this
            architecture are not known, or what they give is not what the layers compute.
    """
    name = type(model).__name__
    if has_own_layers(model):
        raise UnsupportedModelError(
            f"{name} has attention layers of hyla, which give their weights themselves: pass codes "
            "and layer.head_weights() to linear_value_network of hyla.attention.hypernetwork, or "
            "with attention='hyla' to hidden_value_network"
        )
    adapter = adapter_of(model)
    if adapter is None:
        raise UnsupportedModelError(
            f"{name} is not a transformers model: of others, the projections are not known"
        )
    return adapter.value_networks(model, inputs)
