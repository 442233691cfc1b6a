"""Offline training of the learned reranker by iterative utility maximisation (IUM)."""
