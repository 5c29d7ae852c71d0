"""Sizes of the blocks that the kernels are made for, and of what they keep in shared memory."""

from dataclasses import dataclass

import torch

from hyla.attention.kernels.tensors import KINDS

EMBED = 128
"""Channels of a token."""
WIDTHS = (16, 32, 64)
"""Of all queries, keys or values of a token."""
CHUNK = 64
"""Hidden units whose weights are copied to shared memory at a time (`finish_forward.cu`)."""
SLICE = 128
"""Hidden units whose sums a block keeps in registers (`hidden_backward.cu`)."""
HIDDEN = (SLICE, 2 * SLICE)
"""Hidden units whose weights fit into shared memory (`stream_backward.cu`)."""
PRECISIONS = ("tf32", "bf16")
"""Of a run."""
_ROW = 128  # bytes of a row of a tile


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of one operator; what it has nothing to do with is 0."""

    dtype: torch.dtype
    qk: int = 0
    v: int
    hidden: int = 0

    @property
    def kind(self) -> int:
        """Return KIND of the sources."""
        return KINDS[self.dtype]

    @property
    def projected(self) -> int:
        """Return the width of queries, keys and values together."""
        return 2 * self.qk + self.v

    @property
    def slices(self) -> int:
        """Return the parts of the hidden layer that blocks have."""
        return self.hidden // SLICE

    def tile(self, rows: int, terms: int) -> int:
        """Return the bytes of an operand [rows, terms] (`layout.cuh`)."""
        return -(-terms * self.dtype.itemsize // _ROW) * rows * _ROW
