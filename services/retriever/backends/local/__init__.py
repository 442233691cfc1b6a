"""Collections as immutable versioned folders on a local disk."""
