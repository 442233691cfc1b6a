"""Which methods may be sent again: decided for every method of the contract, kept to by every channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

REPEATABLE: Final[dict[str, frozenset[str]]] = {
    "ragmesh.orchestrator.v1.OrchestratorService": frozenset(),
    "ragmesh.retriever.v1.RetrieverService": frozenset({"Retrieve", "ListRetrievers", "ListSources"}),
    "ragmesh.retriever.v1.CollectionService": frozenset(
        {
            "GetCollection",
            "ListCollections",
            "ListPassages",
            "GetPassages",
            "DeletePassages",
            "DeleteCollection",
        }
    ),
    "ragmesh.reranker.v1.RerankerService": frozenset({"Rerank"}),
    "ragmesh.reranker.v1.FeedbackService": frozenset(
        # Feedback is recorded once for each id, however often it comes; so is an agent for its name.
        {
            "RecordFeedback",
            "ExportFeedback",
            "RegisterAgent",
            "ListAgents",
            "ListModels",
            "GetTrainingStatus",
        }
    ),
    "ragmesh.generator.v1.GeneratorService": frozenset(
        {"Generate", "GenerateBatch", "ScoreRelevance", "ListModels"}
    ),
    "ragmesh.evaluator.v1.EvaluatorService": frozenset(
        {
            "EvaluateExposure",
            "EvaluateUtility",
            "EvaluateTradeoff",
            "EvaluateRankings",
            "EvaluateRankedList",
            "EvaluateConversation",
            "Vote",
            "SearchVoteWeights",
            "CompareRetrievers",
            "CompareSystems",
            "GetReport",
            "ListRuns",
            "ListConfigurations",
            "ListMeasurements",
        }
    ),
}
"""Methods that change nothing, or change it once however often they come, by service."""

ONCE: Final[dict[str, frozenset[str]]] = {
    # Each is observed, and an observation of its own.
    "ragmesh.orchestrator.v1.OrchestratorService": frozenset({"Ask", "Audit", "Converse"}),
    "ragmesh.retriever.v1.RetrieverService": frozenset(),
    # Made a second time is an error; what is ingested is a stream, begun again by its sender.
    "ragmesh.retriever.v1.CollectionService": frozenset({"CreateCollection", "Ingest"}),
    "ragmesh.reranker.v1.RerankerService": frozenset(),
    # A second promotion or roll-back goes one version further.
    "ragmesh.reranker.v1.FeedbackService": frozenset({"PromoteModel", "RollbackModel"}),
    "ragmesh.generator.v1.GeneratorService": frozenset(),
    # Streams of many messages; the courier knows what of its own arrived, and ids make it count once.
    "ragmesh.evaluator.v1.EvaluatorService": frozenset({"Observe", "VoteAnytime"}),
}
"""Methods that no channel sends again by itself, by service."""


def check(service: str, methods: Sequence[str]) -> None:
    """Raises ValueError where one of the service's methods must not be sent again."""
    wrong = sorted(ONCE.get(service, frozenset()).intersection(methods))
    if wrong:
        raise ValueError(f"{service}: {', '.join(wrong)} must not be sent again, see meshkit.retries")
