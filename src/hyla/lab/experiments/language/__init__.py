"""The figure on language."""
