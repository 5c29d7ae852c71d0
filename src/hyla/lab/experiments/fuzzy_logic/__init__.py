"""The figures on fuzzy logic."""
