"""One run, whatever it trains: its loop, its directory, its checkpoints, and how it stops."""
