"""The subcommands of `hyla`, one module each, with one function of the same name."""
