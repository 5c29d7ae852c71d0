"""Sequences of different lengths: laid one after the other, or in pages."""

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


@dataclass(frozen=True)
class Paging:
    """Which pages of a cache hold the keys and values of each sequence.

    `table` is int32 [B, pages of a sequence] and `lengths` int32 [B], both contiguous. What lies in
    the table beyond a sequence's length is not read.
    """

    table: Tensor
    lengths: Tensor
