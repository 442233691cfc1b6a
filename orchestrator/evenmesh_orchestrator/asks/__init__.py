"""Run an ask: retrieve, rerank, generate, observe."""
