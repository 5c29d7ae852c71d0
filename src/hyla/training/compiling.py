"""How training compiles its models."""

from typing import Any

OPTIONS: dict[str, Any] = {
    # Strides padded to a round number let torch 2.11 read a tensor in another layout than it was
    # written in: https://github.com/pytorch/pytorch/issues/194281. Of attention by the equations
    # on a GPU all gradients of the scores were garbage.
    "comprehensive_padding": False
}
