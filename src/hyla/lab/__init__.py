"""The lab: sweeps over settings, where they run, and the results they leave on disk."""
