"""Dense retrieval: an encoder and exact search over its vectors."""
