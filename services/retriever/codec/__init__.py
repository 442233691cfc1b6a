"""Protos to the retriever's own shapes and back, and the checks at the door."""
