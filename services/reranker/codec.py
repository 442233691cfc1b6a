"""Between the wire and the domain; every bound of the proto's comments is checked here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from meshkit import checks
from meshkit.errors import InvalidField
from ragmesh.reranker.v1 import feedback_service_pb2 as feedback_pb
from ragmesh.reranker.v1 import reranker_service_pb2 as pb
from services.reranker.domain import Agent, Passage, Reranked, ServedModel

MAX_AGENT_BYTES: Final = 128
"""Longest task or model id of an agent. Bytes."""


@dataclass(frozen=True, slots=True)
class RerankCall:
    """A checked request with its defaults filled in."""

    query: str
    passages: Sequence[Passage]
    agent: Agent
    reranker: str
    keep: int


def decode_rerank(message: pb.RerankRequest) -> RerankCall:
    """Checks a request.

    Raises:
        InvalidField: a field is out of its bounds.
    """
    query = checks.text("query", message.query)
    checks.passages("passages", message.passages)
    keep = len(message.passages)
    if message.HasField("top_k"):
        keep = checks.between("top_k", message.top_k, 1, keep)
    agent = Agent(message.agent.task_id, message.agent.model_id)
    for field, value in (("agent.task_id", agent.task_id), ("agent.model_id", agent.model_id)):
        if (size := len(value.encode())) > MAX_AGENT_BYTES:
            raise InvalidField(field, f"must be at most {MAX_AGENT_BYTES} bytes, has {size}")
    return RerankCall(query, message.passages, agent, message.reranker, keep)


def encode_rerank(reranked: Reranked) -> pb.RerankResponse:
    """Scores and order."""
    return pb.RerankResponse(
        scores=reranked.scored.scores,
        order=reranked.order,
        model_version=reranked.scored.model_version,
        reranker=reranked.reranker,
    )


def encode_models(models: Sequence[ServedModel], loaded_at: Timestamp) -> feedback_pb.ListModelsResponse:
    """The models this process serves."""
    return feedback_pb.ListModelsResponse(
        models=[
            feedback_pb.RerankerModel(
                version=model.version, serving=True, created_at=loaded_at, provenance=model.provenance
            )
            for model in models
        ]
    )
