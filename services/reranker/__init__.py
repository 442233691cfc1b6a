"""The reranker: scores candidates again, for one agent."""
