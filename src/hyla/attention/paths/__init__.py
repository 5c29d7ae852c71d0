"""Other ways to the same attention: chunks, packed sequences, pages, PyTorch's own kernels."""
