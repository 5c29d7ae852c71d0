"""Which query-key pairs to look at, said in words or listed."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from hyla._errors import check_choice

PAIR_NAMES = ("self", "previous", "all")
PairChoice: TypeAlias = str | Sequence[tuple[int, int]]
Pairs: TypeAlias = PairChoice | Mapping[str, PairChoice]
"""`self`: every token attending to itself; `previous`: to the token before it; `all`; or a list of
(query, key) positions, negative ones counted from the end. A mapping gives them for each kind of
attention (self, encoder, decoder, cross); a kind that it leaves out is not looked at."""


def check_pairs(pairs: Pairs) -> None:
    """Raise a ValueError for what cannot be a choice of pairs."""
    for choice in pairs.values() if isinstance(pairs, Mapping) else (pairs,):
        if isinstance(choice, str):
            check_choice("pairs", choice, PAIR_NAMES, " or list (query, key) positions")
        elif not choice or not all(len(pair) == 2 for pair in choice):
            raise ValueError(f"pairs must list (query, key) positions, got {choice!r}")


def choice_for(pairs: Pairs, kind: str) -> PairChoice | None:
    """Return the choice for one kind of attention; None if none is to be looked at.

    Queries and keys of cross-attention are of two sequences: none is "itself" or "previous".
    """
    choice = pairs.get(kind) if isinstance(pairs, Mapping) else pairs
    return None if kind == "cross" and choice in ("self", "previous") else choice


def resolve_pairs(
    choice: PairChoice, *, queries: int, keys: int, device: torch.device | str = "cpu"
) -> Int[Tensor, "P 2"]:
    """Return the (query, key) positions, none of them negative.

    Where there are fewer queries than keys, the last query is at the position of the last key.
    """
    first = keys - queries
    if isinstance(choice, str):
        positions = torch.arange(queries, device=device)
        if choice == "all":
            return torch.cartesian_prod(positions, torch.arange(keys, device=device))
        back = 1 if choice == "previous" else 0
        listed = torch.stack([positions, positions + first - back], dim=1)
        return listed[listed[:, 1] >= 0]
    listed = torch.tensor(choice, dtype=torch.int64, device=device)
    sizes = torch.tensor([queries, keys], device=device)
    outside = (listed >= sizes) | (listed < -sizes)
    if outside.any():
        wrong = tuple(listed[outside.any(dim=1)][0].tolist())
        raise ValueError(f"pair {wrong} lies outside of {queries} queries and {keys} keys")
    return torch.where(listed < 0, listed + sizes, listed)
