"""The size of the SRAVEN task."""

from __future__ import annotations

from dataclasses import dataclass

from hyla._errors import nearest
from hyla.tasks.base import check_combinable, check_positive
from hyla.tasks.sraven.rules import PAPER_RULES, RULES


@dataclass(frozen=True, kw_only=True)
class SravenConfig:
    """Size, rules and split of SRAVEN; the defaults are the paper's."""

    num_features: int = 4
    """M: integers in a panel."""
    num_values: int = 8
    """K: an integer lies in [0, K)."""
    grid_size: int = 3
    """G: rows and columns of the grid."""
    rules: tuple[str, ...] = PAPER_RULES
    """Names of the rules, from `RULES`; labels are indices into them."""
    held_out_fraction: float = 0.25
    """Share of the rule combinations that training never shows."""
    unambiguous: bool = False
    """Reject instances whose context allows several answers (see `SravenSampler`)."""

    def __post_init__(self) -> None:
        check_combinable(num_features=self.num_features)
        check_positive(num_values=self.num_values, grid_size=self.grid_size)
        if self.grid_size < 2:
            raise ValueError(f"grid_size must be at least 2, got {self.grid_size}")
        if self.num_values < self.grid_size:
            raise ValueError(
                f"num_values must be at least grid_size={self.grid_size}, because "
                f"distribute_three draws that many distinct values, got {self.num_values}"
            )
        for name in self.rules:
            if name not in RULES:
                raise ValueError(
                    f"rules: {name!r} is not one of {', '.join(RULES)}" + nearest(name, RULES)
                )
        if len(set(self.rules)) != len(self.rules) or not self.rules:
            raise ValueError(f"rules must be a non-empty set of names, got {self.rules}")
