"""What several experiments share: panels, scaling laws, measurements of latent codes."""
