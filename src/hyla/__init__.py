"""Attention as a hypernetwork, in PyTorch."""

__version__ = "0.1.0"
