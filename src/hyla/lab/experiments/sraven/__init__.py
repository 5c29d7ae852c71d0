"""The figures on SRAVEN."""
