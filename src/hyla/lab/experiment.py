"""What a figure or table of the paper is, here: what to train, what to measure, what to show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hyla.figures.drawing import Figure, Table
from hyla.lab.claims import Claim
from hyla.lab.measuring import Measurement
from hyla.results.tables import Results


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One figure, table, or question beyond the paper."""

    name: str
    title: str
    shows: str
    """What the reader is to see in it, in the paper's words or ours."""
    sweeps: Callable[[str], Sequence[dict[str, Any]]] = lambda scale: ()
    """The runs it needs at a scale, as trees of `hyla.lab.methods`, without `members.*`."""
    measurement: Measurement | None = None
    """What is measured on trained models, or without any, beside their scores."""
    figure: Callable[[Results], Figure | None] = lambda results: None
    table: Callable[[Results], Table | None] = lambda results: None
    claims: Callable[[Results], Sequence[Claim]] = lambda results: ()
    """The paper's claims, each with what was measured here; the report judges them together."""
