"""What is measured on recorded codes: geometry, decoding, swaps."""
