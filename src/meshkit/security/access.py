"""Which role opens which method. A method that is not here is open to nobody but ADMIN and SERVICE."""

from __future__ import annotations

from typing import Final

from meshkit.security.caller import Role

_ASK: Final = frozenset({Role.ASK})
_READ: Final = frozenset({Role.ASK, Role.INGEST})
_INGEST: Final = frozenset({Role.INGEST})
_FEEDBACK: Final = frozenset({Role.FEEDBACK})
_LEARN: Final = frozenset({Role.FEEDBACK, Role.TRAIN})
_TRAIN: Final = frozenset({Role.TRAIN})

_BY_SERVICE: Final[dict[str, dict[frozenset[Role], tuple[str, ...]]]] = {
    "ragmesh.orchestrator.v1.OrchestratorService": {_ASK: ("Ask", "Audit", "Converse")},
    "ragmesh.retriever.v1.RetrieverService": {
        _ASK: ("Retrieve",),
        _READ: ("ListRetrievers", "ListSources"),
    },
    "ragmesh.retriever.v1.CollectionService": {
        _READ: ("GetCollection", "ListCollections", "ListPassages", "GetPassages"),
        _INGEST: ("CreateCollection", "Ingest", "DeletePassages", "DeleteCollection"),
    },
    "ragmesh.reranker.v1.RerankerService": {_ASK: ("Rerank",)},
    "ragmesh.reranker.v1.FeedbackService": {
        _FEEDBACK: ("RecordFeedback", "RegisterAgent"),
        _LEARN: ("ListAgents", "ListModels", "GetTrainingStatus"),
        _TRAIN: ("ExportFeedback", "PromoteModel", "RollbackModel"),
    },
    "ragmesh.generator.v1.GeneratorService": {
        _ASK: ("Generate", "GenerateBatch", "ScoreRelevance", "ListModels"),
    },
    "ragmesh.evaluator.v1.EvaluatorService": {
        _ASK: (
            "Observe",
            "EvaluateExposure",
            "EvaluateUtility",
            "EvaluateTradeoff",
            "EvaluateRankings",
            "EvaluateRankedList",
            "EvaluateConversation",
            "Vote",
            "VoteAnytime",
            "SearchVoteWeights",
            "CompareRetrievers",
            "CompareSystems",
            "GetReport",
            "ListRuns",
            "ListConfigurations",
            "ListMeasurements",
        ),
    },
}

ROLES: Final = {
    f"/{service}/{method}": roles
    for service, table in _BY_SERVICE.items()
    for roles, methods in table.items()
    for method in methods
}
"""By a method's full name, ``/package.Service/Method``."""


def roles_of(method: str) -> frozenset[Role]:
    """Roles that open a method, by its full name; none where nobody decided."""
    return ROLES.get(method, frozenset())
