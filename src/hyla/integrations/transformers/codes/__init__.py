"""The latent codes of Hugging Face models: the adapter that `hyla.latents` asks for them."""

from hyla.integrations.transformers.codes.interception import observing
from hyla.integrations.transformers.codes.projections import value_networks

__all__ = ["observing", "value_networks"]
