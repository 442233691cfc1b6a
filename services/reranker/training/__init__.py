"""Offline training of the learned reranker: iterative utility maximisation and what it needs."""
