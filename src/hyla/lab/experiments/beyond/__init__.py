"""Questions that the paper leaves open."""
