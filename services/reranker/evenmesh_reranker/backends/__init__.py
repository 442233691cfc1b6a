"""Rerankers: implementations of :class:`evenmesh_reranker.ports.Reranker`."""
