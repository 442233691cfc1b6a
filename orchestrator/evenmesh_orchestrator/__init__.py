"""The orchestrator: runs retrieve, rerank, generate and observe for each ask, and streams what happens."""
