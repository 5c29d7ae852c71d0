"""Fused transformer blocks for populations of narrow models."""

from hyla.training.population.blocks.block import (
    FusedBlock,
    why_not_fused,
    why_not_run,
    why_not_shaped,
    with_fused_blocks,
)

__all__ = ["FusedBlock", "why_not_fused", "why_not_run", "why_not_shaped", "with_fused_blocks"]
