"""Stubs of the protos ``evenmesh.retriever``."""
