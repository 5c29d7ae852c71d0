"""Fused transformer blocks for populations of narrow models."""

from hyla.training.population.blocks.block import why_not_run, why_not_shaped, with_fused_blocks

__all__ = ["why_not_run", "why_not_shaped", "with_fused_blocks"]
