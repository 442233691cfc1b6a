"""Stubs of the protos ``evenmesh.reranker.v1``, generated."""
