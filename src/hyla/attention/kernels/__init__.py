"""Fused attention kernels: importing them needs no GPU, and `hyla.attention` not them."""
