"""`hyla sraven leaderboard`: the page of all entries."""

from pathlib import Path

from hyla._files import write_atomically
from hyla.commands.shared.exits import usage_errors, write_errors
from hyla.commands.shared.output import Screen
from hyla.results.leaderboard.entries import FOLDER
from hyla.results.leaderboard.page import PAGE, leaderboard_page


def leaderboard(*, entries: Path = FOLDER, page: Path = PAGE) -> None:
    """Write the page of the leaderboard from its entries.

    Parameters
    ----------
    entries
        Folder of the entries that `hyla sraven submit` wrote.
    page
        Markdown file to write.
    """
    with usage_errors():
        if not entries.is_dir():
            raise ValueError(f"there is no folder {entries}: --entries is where submit writes")
        text = leaderboard_page(entries)
        with write_errors(page):
            write_atomically(page, text.encode())
    Screen().say(f"Page: {page}")
