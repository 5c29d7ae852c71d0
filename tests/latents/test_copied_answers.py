"""A network whose code carries the answer, not the operation, must not pass for one that follows.

Operands are one of eight symbols, which the keys see: for HYLA, the cheapest code is the answer.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyla.latents import Specimens, Study, Swaps, swap_table
from hyla.nn import MultiHeadAttention

SYMBOLS = 8
STEPS = torch.tensor([0, 3])


class ShiftStudy(Study):
    known, unseen = "known", "unseen"
    operation = "operation"
    operations = ("keep", "shift")
    classes = {}  # noqa: RUF012
    decoding_metric = "accuracy"
    pairs = {"operand": [(-1, 0)]}  # noqa: RUF012

    def sample(self, split, *, seed, instances, index=0, device="cpu") -> Specimens:
        random = torch.Generator().manual_seed(2 * seed + index)
        operations = torch.randint(2, (instances,), generator=random)
        operands = torch.randint(SYMBOLS, (instances,), generator=random)
        return Specimens(
            inputs=tokens(operands, operations),
            operations=operations,
            answers=shifted(operands, operations).float(),
            labels={},
            decodable={},
            predictors={},
            operands=operands,
        )

    def prescribed(self, recipients: Specimens, operations: Tensor) -> Tensor:
        assert recipients.operands is not None
        return shifted(recipients.operands, operations).float()

    def predictions(self, logits: Tensor) -> Tensor:
        return logits[:, -1].argmax(dim=-1).float()

    def agree(self, predictions: Tensor, values: Tensor) -> Tensor:
        return predictions == values


def tokens(operands: Tensor, operations: Tensor) -> Tensor:
    shown = [F.one_hot(x, SYMBOLS + 2).float() for x in (operands, SYMBOLS + operations)]
    return torch.stack(shown, dim=1)


def shifted(operands: Tensor, operations: Tensor) -> Tensor:
    return (operands + STEPS[operations]) % SYMBOLS


@pytest.fixture(scope="module")
def table():
    torch.manual_seed(1)
    embedding, head = nn.Linear(SYMBOLS + 2, 16), nn.Linear(16, SYMBOLS)
    attention = MultiHeadAttention(16, 4, backend="reference")
    network = nn.Sequential(embedding, attention, head)
    operations = torch.arange(2).repeat_interleave(SYMBOLS)
    operands = torch.arange(SYMBOLS).repeat(2)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for _ in range(400):
        logits = network(tokens(operands, operations))[:, -1]
        loss = F.cross_entropy(logits, shifted(operands, operations))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    swaps = Swaps(network, ShiftStudy(), seed=0, instances=256)
    return swap_table(swaps).set_index("code")


def test_it_copies_and_does_not_follow(table):
    assert table.loc["donor", "copy_rate"] > 0.7
    assert table.loc["donor", "donor_rate"] < 0.4
    assert table.loc["permuted heads", "copy_rate"] < 0.4


def test_with_the_same_operands_copying_looks_like_following(table):
    assert table.loc["donor, same operands", "donor_rate"] > 0.9
    assert table.loc["same operation and operands", "stay_rate"] == 1
    assert table.loc["same operation", "stay_rate"] < 0.5
