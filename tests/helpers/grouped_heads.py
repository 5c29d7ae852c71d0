"""Groups of heads that share keys and values: what kernels are tried with, wherever they run."""

import torch

HIDDEN, SOFTMAX = "hyla.silu", "hyla_minus_rmshead_plus_softmax.silu"
SOFTMAX_LAST = "hyla_plus_softmax_last.silu"

SHAPES = ("heads", "groups", "width", "dtype")
KERNEL_CASES = [
    (8, 2, 64, torch.bfloat16, HIDDEN),
    (8, 1, 32, torch.float16, HIDDEN),
    (12, 4, 32, torch.bfloat16, HIDDEN),
    (8, 2, 64, torch.bfloat16, SOFTMAX),
    (8, 2, 64, torch.bfloat16, SOFTMAX_LAST),
    (8, 2, 64, torch.bfloat16, "linear_rmshead"),
    (32, 8, 64, torch.bfloat16, HIDDEN),
    (12, 4, 128, torch.bfloat16, HIDDEN),
    # In plain arithmetic.
    (8, 2, 64, torch.float32, HIDDEN),
    (3, 1, 32, torch.float32, HIDDEN),
    (3, 1, 32, torch.float32, SOFTMAX_LAST),
    (8, 2, 64, torch.float32, "linear_rmshead"),
    (40, 8, 64, torch.bfloat16, HIDDEN),
    # Small heads.
    (8, 2, 4, torch.float32, HIDDEN),
    (6, 1, 8, torch.float32, "softmax"),
]
"""Each a shape and the name of the attention."""
DECODING_CASES = [
    (8, 2, 64, torch.bfloat16),
    (8, 1, 64, torch.float32),
    (12, 3, 80, torch.float16),
    (32, 8, 128, torch.bfloat16),
    (32, 1, 128, torch.float32),
    (6, 2, 64, torch.bfloat16),  # groups that cross the teams of lanes
    (10, 1, 64, torch.bfloat16),
    (64, 8, 8, torch.bfloat16),
]
