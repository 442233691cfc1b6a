"""ragmesh: a gRPC mesh for retrieval-augmented generation that measures who gets shown to the model.

What programs use is here by name; it is loaded when first used, so that ``import ragmesh`` costs nothing::

    import ragmesh

    with ragmesh.Client() as mesh:
        print(mesh.answer("Which flour keeps a loaf soft?", alpha=2, samples=20).text)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshkit.errors import MeshError
    from ragmesh.addresses import Addresses
    from ragmesh.aio import AsyncClient
    from ragmesh.audit import AuditReport, AuditSample, AuditSettled
    from ragmesh.client import Client
    from ragmesh.collection import Collection, Ingested, Lexical
    from ragmesh.conversation import (
        CitedEntity,
        ConversationOptions,
        ConversationReport,
        GroupFairness,
        GroupTarget,
        LookedFor,
        TurnResult,
    )
    from ragmesh.conversation_calls import AsyncConversation, Conversation
    from ragmesh.events import (
        Answer,
        AskResult,
        Citation,
        Cost,
        Degraded,
        Delta,
        Done,
        Event,
        Failed,
        Ranked,
        Report,
        Retrieved,
        Vote,
    )
    from ragmesh.feedback import (
        AgentSummary,
        Feedback,
        FeedbackResult,
        ModelVersion,
        Recorded,
        StoredFeedback,
        Training,
        TrainingStatus,
    )
    from ragmesh.filters import Between, Filter
    from ragmesh.passage import Passage
    from ragmesh.readers import ReadError
    from ragmesh.reports import (
        Configuration,
        ConfigurationSummary,
        DegradationCount,
        Estimate,
        ExposureShare,
        Measurement,
        Run,
        RunReport,
    )
    from ragmesh.request import Agent, AskOptions, Decoding
    from ragmesh.retrieval import Retrieval, RetrieveOptions, Source
    from ragmesh.status import Health, ServiceStatus

_HOME_OF = {
    "meshkit.errors": ("MeshError",),
    "ragmesh.addresses": ("Addresses",),
    "ragmesh.aio": ("AsyncClient",),
    "ragmesh.audit": ("AuditReport", "AuditSample", "AuditSettled"),
    "ragmesh.client": ("Client",),
    "ragmesh.collection": ("Collection", "Ingested", "Lexical"),
    "ragmesh.conversation": (
        "CitedEntity",
        "ConversationOptions",
        "ConversationReport",
        "GroupFairness",
        "GroupTarget",
        "LookedFor",
        "TurnResult",
    ),
    "ragmesh.conversation_calls": ("AsyncConversation", "Conversation"),
    "ragmesh.events": (
        "Answer",
        "AskResult",
        "Citation",
        "Cost",
        "Degraded",
        "Delta",
        "Done",
        "Event",
        "Failed",
        "Ranked",
        "Report",
        "Retrieved",
        "Vote",
    ),
    "ragmesh.feedback": (
        "AgentSummary",
        "Feedback",
        "FeedbackResult",
        "ModelVersion",
        "Recorded",
        "StoredFeedback",
        "Training",
        "TrainingStatus",
    ),
    "ragmesh.filters": ("Between", "Filter"),
    "ragmesh.passage": ("Passage",),
    "ragmesh.readers": ("ReadError",),
    "ragmesh.reports": (
        "Configuration",
        "ConfigurationSummary",
        "DegradationCount",
        "Estimate",
        "ExposureShare",
        "Measurement",
        "Run",
        "RunReport",
    ),
    "ragmesh.request": ("Agent", "AskOptions", "Decoding"),
    "ragmesh.retrieval": ("Retrieval", "RetrieveOptions", "Source"),
    "ragmesh.status": ("Health", "ServiceStatus"),
}
_MODULE_OF = {name: module for module, names in _HOME_OF.items() for name in names}

__all__ = [
    "Addresses",
    "Agent",
    "AgentSummary",
    "Answer",
    "AskOptions",
    "AskResult",
    "AsyncClient",
    "AsyncConversation",
    "AuditReport",
    "AuditSample",
    "AuditSettled",
    "Between",
    "Citation",
    "CitedEntity",
    "Client",
    "Collection",
    "Configuration",
    "ConfigurationSummary",
    "Conversation",
    "ConversationOptions",
    "ConversationReport",
    "Cost",
    "Decoding",
    "DegradationCount",
    "Degraded",
    "Delta",
    "Done",
    "Estimate",
    "Event",
    "ExposureShare",
    "Failed",
    "Feedback",
    "FeedbackResult",
    "Filter",
    "GroupFairness",
    "GroupTarget",
    "Health",
    "Ingested",
    "Lexical",
    "LookedFor",
    "Measurement",
    "MeshError",
    "ModelVersion",
    "Passage",
    "Ranked",
    "ReadError",
    "Recorded",
    "Report",
    "Retrieval",
    "RetrieveOptions",
    "Retrieved",
    "Run",
    "RunReport",
    "ServiceStatus",
    "Source",
    "StoredFeedback",
    "Training",
    "TrainingStatus",
    "TurnResult",
    "Vote",
]


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
