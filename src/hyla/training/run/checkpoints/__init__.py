"""Checkpoints of a run, as one file each or as a directory to which every rank writes its part."""
