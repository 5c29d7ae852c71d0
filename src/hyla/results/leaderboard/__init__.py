"""The leaderboard of SRAVEN: answers to a variant's instances, their scores, and the page."""

from hyla.results.leaderboard.entries import Entry, read_entries, write_entry
from hyla.results.leaderboard.scoring import Score, score

__all__ = ["Entry", "Score", "read_entries", "score", "write_entry"]
