"""The tables of the appendix."""
