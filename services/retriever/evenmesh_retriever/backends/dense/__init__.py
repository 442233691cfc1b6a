"""Search by vectors: an encoder and exact search."""
