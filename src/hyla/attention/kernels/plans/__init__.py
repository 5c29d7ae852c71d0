"""How a kernel divides its work: threads, tiles, shared memory."""
