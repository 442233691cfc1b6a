"""Keep collections on a local disk as immutable segments: live, memory-mapped, consistent after a crash."""
