"""The rows of `hyla bench train`: the shapes of the paper, and what the authors' code reaches."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Steps a second of the authors' JAX release, measured on an H200 and on 2 CPU cores.
AUTHORS = {
    ("cuda", "sraven", "hyla", ""): "293 alone, 820 vmapped",
    ("cuda", "sraven", "softmax", ""): "207 alone",
    ("cuda", "sraven", "linear", ""): "252 alone",
    ("cuda", "sraven", "hyla", "width 4"): "193 alone",
    ("cuda", "sraven", "softmax", "width 4"): "212 alone",
    ("cuda", "fuzzy", "hyla", ""): "485 alone, 3,000 vmapped",
    ("cuda", "fuzzy", "softmax", ""): "461 alone, 4,040 vmapped",
    ("cuda", "fuzzy", "linear", ""): "445 alone, 4,230 vmapped",
    ("cpu", "sraven", "hyla", ""): "1.6",
    ("cpu", "sraven", "softmax", ""): "2.5",
    ("cpu", "fuzzy", "hyla", ""): "5.5",
}
# Where a variant departs from the paper's base model or task.
_DEPARTURES = {
    "width": ("model", "width_factor"),  # 16 heads a unit, on SRAVEN
    "depth": ("model", "num_layers"),
    "tokens": ("task", "sequence_length"),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the table."""

    task: str
    attention: str
    """Several, as in "hyla + softmax", are in one population, with as many members each."""
    members: int
    precision: str = "float32"
    variant: str = ""
    """What departs from the paper's base model: "width 4", "depth 8", "tokens 64"."""
    blocks: str = ""
    """ "plain" where no kernels compute around attention, though they could."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Where the task departs from the paper's."""

    def __str__(self) -> str:
        blocks = self.blocks and f"{self.blocks} blocks"
        parts = (self.task, self.attention, self.variant, f"x{self.members}", self.precision)
        return " ".join(part for part in (*parts, blocks) if part)

    @property
    def attentions(self) -> list[str]:
        """The attention of each member."""
        names = self.attention.split(" + ")
        return [name for name in names for _ in range(self.members // len(names))]

    def changes(self) -> dict[str, Any]:
        """Return the settings over the task's preset of the paper's scale."""
        changes: dict[str, Any] = {
            "task": dict(self.settings),
            "model": {"attention": self.attentions[0]},
            "members": {"seed": list(range(self.members))},
        }
        if self.variant:
            name, number = self.variant.split()
            part, setting = _DEPARTURES[name]
            changes[part][setting] = int(number)
        return changes


def cases(device: str, *, quick: bool = False) -> tuple[Case, ...]:
    """Return the rows for a GPU ("cuda") or a CPU, or the few that matter most."""
    rows = (_CUDA_QUICK, _CUDA_MORE) if device == "cuda" else (_CPU_QUICK, _CPU_MORE)
    return rows[0] if quick else rows[0] + rows[1]


def _rows(task: str, precision: str, *rows: tuple[str, int, str]) -> tuple[Case, ...]:
    return tuple(
        Case(task=task, attention=attention, members=members, precision=precision, variant=variant)
        for attention, members, variant in rows
    )


_TASKS = ("fuzzy", "sraven")
_CUDA_QUICK = (
    *_rows("sraven", "tf32", ("hyla", 12, ""), ("hyla", 24, ""), ("hyla", 1, "")),
    *_rows("sraven", "tf32", ("softmax", 12, ""), ("hyla", 4, "width 4")),
    *_rows("sraven", "tf32", ("hyla.expected2 + softmax + linear", 9, "")),
    *_rows("sraven", "bf16", ("hyla", 24, "")),
    *_rows("fuzzy", "tf32", ("hyla", 12, "")),
    *(
        Case(task=task, attention="hyla", members=12, precision="tf32", blocks="plain")
        for task in _TASKS
    ),
)
_CUDA_MORE = (
    *_rows("sraven", "tf32", ("hyla", 48, ""), ("linear", 12, ""), ("hyla.expected2", 12, "")),
    *_rows("sraven", "tf32", ("hyla", 12, "width 2"), ("softmax", 4, "width 4")),
    *_rows("sraven", "tf32", *(("hyla", members, "width 4") for members in (1, 2, 8))),
    *_rows("sraven", "tf32", ("hyla", 12, "depth 8"), ("hyla", 12, "depth 16")),
    *_rows("sraven", "float32", ("hyla", 12, "")),
    *_rows("fuzzy", "tf32", ("hyla", 1, ""), ("hyla", 24, ""), ("softmax", 12, "")),
    *_rows("fuzzy", "tf32", ("linear", 12, ""), ("hyla.expected2", 12, "")),
    *_rows("fuzzy", "tf32", *(("hyla", 12, f"tokens {tokens}") for tokens in (16, 64, 96))),
    *_rows("fuzzy", "float32", ("hyla", 12, "")),
    *_rows("fuzzy", "bf16", ("hyla", 24, "")),
)
_CPU_QUICK = tuple(
    Case(task=task, attention=attention, members=1)
    for task in _TASKS
    for attention in ("hyla", "softmax")
)
_CPU_MORE = (
    *_rows("fuzzy", "float32", ("linear", 1, ""), ("hyla.expected2", 1, "")),
    *_rows("fuzzy", "float32", *(("hyla", 1, f"tokens {tokens}") for tokens in (16, 64, 96))),
    *_rows("sraven", "float32", ("linear", 1, ""), ("hyla.expected2", 1, "")),
    *_rows("sraven", "float32", ("hyla", 1, "width 2"), ("hyla", 1, "depth 8")),
)
