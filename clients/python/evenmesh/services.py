"""The five services by their short names."""

from typing import Final

SERVICES: Final = ("orchestrator", "retriever", "reranker", "generator", "evaluator")
"""In the order in which they are listed; the orchestrator is the one that most clients call."""
