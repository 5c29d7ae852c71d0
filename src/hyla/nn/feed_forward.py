"""Position-wise networks: GELU MLP, SwiGLU, and a mixture of experts."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from hyla._errors import check_positive
from hyla.nn.initialise import initialise_linear_, lecun_normal_


class GeluMlp(nn.Module):
    """One hidden layer with the tanh-approximated GELU."""

    def __init__(self, embed_dim: int, mlp_dim: int):
        super().__init__()
        check_positive(embed_dim=embed_dim, mlp_dim=mlp_dim)
        self.up = nn.Linear(embed_dim, mlp_dim)
        self.down = nn.Linear(mlp_dim, embed_dim)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """LeCun normal weights, zero biases."""
        initialise_linear_(self.up, generator)
        initialise_linear_(self.down, generator)

    def forward(self, x: Float[Tensor, "*b E"]) -> Float[Tensor, "*b E"]:
        """Apply the network to each position."""
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class SwiGlu(nn.Module):
    """A SiLU-gated linear unit without biases, as in the authors' language models."""

    def __init__(self, embed_dim: int, mlp_dim: int):
        super().__init__()
        check_positive(embed_dim=embed_dim, mlp_dim=mlp_dim)
        self.gate = nn.Linear(embed_dim, mlp_dim, bias=False)
        self.up = nn.Linear(embed_dim, mlp_dim, bias=False)
        self.down = nn.Linear(mlp_dim, embed_dim, bias=False)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """LeCun normal weights."""
        for layer in (self.gate, self.up, self.down):
            initialise_linear_(layer, generator)

    def forward(self, x: Float[Tensor, "*b E"]) -> Float[Tensor, "*b E"]:
        """Apply the network to each position."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class MixtureOfExperts(nn.Module):
    """Top-k of E expert MLPs, mixed by the softmax of the k largest gate values (appendix A.1).

    Every expert is evaluated on every token and the others' outputs are weighted by zero. For the
    handful of small experts of Table A1 that is faster than routing, has static shapes (compile,
    vmap, CUDA graphs) and gives the same numbers; it does not save the work of unused experts.
    """

    def __init__(self, embed_dim: int, mlp_dim: int, *, num_experts: int, top_k: int):
        super().__init__()
        check_positive(embed_dim=embed_dim, mlp_dim=mlp_dim)
        check_experts(num_experts=num_experts, top_k=top_k)
        self.top_k = top_k
        self.gate = nn.Linear(embed_dim, num_experts, bias=False)
        self.up = nn.Parameter(torch.empty(num_experts, embed_dim, mlp_dim))
        self.down = nn.Parameter(torch.empty(num_experts, mlp_dim, embed_dim))
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """LeCun normal weights, expert by expert."""
        initialise_linear_(self.gate, generator)
        lecun_normal_(self.up, self.up.shape[1], generator)
        lecun_normal_(self.down, self.down.shape[1], generator)

    def forward(self, x: Float[Tensor, "*b E"]) -> Float[Tensor, "*b E"]:
        """Apply the mixture to each position."""
        hidden = F.gelu(torch.einsum("...e,nem->...nm", x, self.up), approximate="tanh")
        return torch.einsum("...n,...nm,nme->...e", self.weights(x), hidden, self.down)

    def weights(self, x: Float[Tensor, "*b E"]) -> Float[Tensor, "*b N"]:
        """Softmax over the k largest gate values, zero for the other experts."""
        gates = self.gate(x)
        kept, chosen = gates.topk(self.top_k, dim=-1)
        return torch.zeros_like(gates).scatter(-1, chosen, torch.softmax(kept, dim=-1))

    def load_balancing_loss(self, x: Float[Tensor, "*b E"]) -> Float[Tensor, ""]:
        """Return N · Σ_i f_i p_i: routed fraction times mean gate probability, 1 when balanced."""
        probabilities = torch.softmax(self.gate(x), dim=-1).flatten(0, -2)
        routed = (self.weights(x) > 0).to(x.dtype).flatten(0, -2) / self.top_k
        return probabilities.shape[-1] * (routed.mean(0) * probabilities.mean(0)).sum()


def check_experts(*, num_experts: int, top_k: int) -> None:
    """Raise a ValueError if a token cannot be routed to `top_k` of the experts."""
    check_positive(num_experts=num_experts, top_k=top_k)
    if top_k > num_experts:
        raise ValueError(f"top_k={top_k} exceeds num_experts={num_experts}")
