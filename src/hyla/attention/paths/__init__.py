"""Other ways to the same attention: chunks of queries, packed sequences, PyTorch's own kernels."""
