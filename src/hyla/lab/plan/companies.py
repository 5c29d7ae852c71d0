"""Populations that train as one: few models leave a GPU idle, whatever their attention."""

from collections.abc import Sequence

from hyla.lab.plan.shares import PopulationSize, Share
from hyla.training import company_key


def companies(shares: Sequence[Share], together: PopulationSize) -> list[list[Share]]:
    """Put the shares that can train together into companies, in the order of the shares.

    A company has as many models at most as each of its populations may have.
    """
    found: list[list[Share]] = []
    joined: dict[tuple[str, str], list[Share]] = {}
    for share in shares:
        kind = None if share.trained else company_key(share.config)
        if kind is None:
            found.append([share])
            continue
        own = joined.setdefault((kind, share.state), [])
        if models_of([*own, share]) > min(together(each.config) for each in [*own, share]):
            own = joined[kind, share.state] = []
        if not own:
            found.append(own)
        own.append(share)
    return found


def models_of(shares: Sequence[Share]) -> int:
    """Return how many models the shares have."""
    return sum(len(share.config.members) for share in shares)
