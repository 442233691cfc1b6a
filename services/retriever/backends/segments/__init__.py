"""Collections on a local disk as immutable segments: live, memory-mapped, and whole after any crash."""
