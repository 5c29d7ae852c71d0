"""Sequences of different lengths laid one after the other, without padding."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """Where each sequence starts among the packed tokens.

    `query_starts` and `key_starts` are int32 [sequences + 1], from 0 to the number of tokens;
    `longest_query` and `longest_key` bound the lengths, so that nobody has to read them back.
    """

    query_starts: Tensor
    key_starts: Tensor
    longest_query: int
    longest_key: int
