"""Whether everything that was to be trained is, and what to say and return if not."""

from collections.abc import Sequence

from hyla.commands.exits import BusyError, UnfinishedError
from hyla.lab.plan.sweep import Share


def check_trained(shares: Sequence[Share], failures: Sequence[str], busy: Sequence[Share]) -> None:
    """Raise an error that says which of the shares, as they are now, are not finished.

    Args:
        shares: all that were asked for.
        failures: a line for everything that went wrong.
        busy: those of them that other processes are training.
    """
    left = {share.path for share in shares if not share.finished}
    if not left:
        return
    count = f"{len(left)} of {len(shares)} populations"
    if not failures and left <= {share.path for share in busy}:
        raise BusyError(
            f"{count} are being trained by other processes; the same command collects them later"
        )
    raise UnfinishedError(
        f"{count} are not finished; the same command continues them.{listed(failures)}"
    )


def listed(failures: Sequence[str]) -> str:
    """Return the failures as lines to follow a message."""
    return "".join(f"\n  {failure}" for failure in failures)
