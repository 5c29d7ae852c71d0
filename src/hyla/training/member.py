"""What distinguishes one trained model from others of its shape."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Member:
    """What distinguishes one model of a population from the others."""

    seed: int = 0
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    warmup_steps: int = 100

    def __post_init__(self):
        for name in ("learning_rate", "weight_decay", "warmup_steps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} must be finite and not negative, got {getattr(self, name)}"
                )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must lie between 0 and 2**63 - 1, got {self.seed}")

    def __str__(self) -> str:
        return (
            f"seed {self.seed} lr {self.learning_rate:g} wd {self.weight_decay:g} "
            f"warmup {self.warmup_steps}"
        )
