"""Speed and memory, each measured beside its baseline and only after a correctness check."""
