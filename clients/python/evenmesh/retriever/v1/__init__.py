"""Stubs of the protos ``evenmesh.retriever.v1``, generated."""
