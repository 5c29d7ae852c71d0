"""Populations: models of one shape that train together on a task."""

from hyla.training.member import Member
from hyla.training.population.population import Population

__all__ = ["Member", "Population"]
