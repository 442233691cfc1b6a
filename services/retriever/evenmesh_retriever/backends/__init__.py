"""Implementations of the retriever's ports."""
