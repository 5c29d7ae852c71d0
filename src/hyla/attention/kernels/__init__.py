"""Fused attention kernels: importing them needs no GPU, and `hyla.attention` not them."""

# How every kernel begins to refuse tensors that are not on a GPU, once all the rest fits a Hopper
# GPU: `explain` takes it for the promise of a kernel there.
ELSEWHERE = "all tensors must be on one CUDA device"
# How a kernel ends its refusal that only backend "auto" leaves alone: nobody has timed it.
ON_REQUEST = " (backend='fused' takes it)"
