"""Bridges to other libraries, one module each; each needs its library, and nothing else does."""
