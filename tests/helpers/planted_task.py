"""A task with a planted answer: two operations that can reach the output through the code alone.

A sequence has two tokens: an operand of four numbers, and a query that names an operation, the
largest or the smallest. The network is one attention layer and a linear read-out of its output at
the query, without a residual connection: what the query says can act on the operand only through
the code of the pair (query, operand). Its keys do not see the numbers, so the code cannot carry the
answer itself.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from hyla.latents import Specimens, Study
from hyla.nn import MultiHeadAttention

SIZE = 4


class PlantedStudy(Study):
    known, unseen = "known", "unseen"
    operation = "operation"
    operations = ("largest", "smallest")
    classes = {"operation": operations}  # noqa: RUF012
    decoding_metric = "accuracy"
    pairs = {"operand": [(-1, 0)], "self": [(-1, -1)]}  # noqa: RUF012

    def sample(self, split, *, seed, instances, index=0, device="cpu") -> Specimens:
        random = torch.Generator().manual_seed(1000 * seed + index)
        operations = torch.randint(2, (instances,), generator=random)
        operands = torch.randn(instances, SIZE, generator=random)
        query = F.one_hot(SIZE + operations, SIZE + 2).float()
        inputs = torch.stack([F.pad(operands, (0, 2)), query], dim=1)
        return Specimens(
            inputs=inputs,
            operations=operations,
            answers=_answers(operands, operations),
            labels={"operation": operations.numpy()},
            decodable={"operation": operations.numpy()},
            predictors={"inputs": operands.numpy(), "target": operands.numpy()[:, :1]},
        )

    def prescribed(
        self, recipients: Specimens, operations: Int64[Tensor, " N"]
    ) -> Float[Tensor, " N"]:
        return _answers(recipients.inputs[:, 0, :SIZE], operations)

    def predictions(self, logits: Float[Tensor, "N T O"]) -> Float[Tensor, " N"]:
        return logits[:, -1].argmax(dim=-1).float()

    def agree(
        self, predictions: Float[Tensor, "*#any"], values: Float[Tensor, "*#any"]
    ) -> Bool[Tensor, "*any"]:
        return predictions == values


class PlantedNetwork(nn.Module):
    def __init__(self, attention: str):
        super().__init__()
        self.attention = MultiHeadAttention(
            SIZE + 2, 4, qk_dim=16, v_dim=64, attention=attention, backend="reference"
        )
        self.head = nn.Linear(SIZE + 2, SIZE)
        self.blind_keys_()

    @torch.no_grad()
    def blind_keys_(self) -> None:
        self.attention.k_proj.weight[:, :SIZE] = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x))


def untrained_network(attention: str, seed: int = 0) -> PlantedNetwork:
    torch.manual_seed(seed)
    return PlantedNetwork(attention)


def trained_network(attention: str, seed: int = 0, steps: int = 300) -> PlantedNetwork:
    network, study = untrained_network(attention, seed), PlantedStudy()
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-2)
    for step in range(steps):
        batch = study.sample("known", seed=5, instances=128, index=step)
        loss = F.cross_entropy(network(batch.inputs)[:, -1], batch.answers.long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        network.blind_keys_()
    return network


def _answers(operands: Tensor, operations: Tensor) -> Tensor:
    return torch.where(operations == 0, operands.argmax(dim=-1), operands.argmin(dim=-1)).float()
