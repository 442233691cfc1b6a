"""Stubs of the protos ``evenmesh.reranker``."""
