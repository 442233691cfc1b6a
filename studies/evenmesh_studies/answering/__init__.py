"""Evaluate retrieval, reranking and answering on question sets."""
