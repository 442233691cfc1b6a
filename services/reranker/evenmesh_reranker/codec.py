"""Convert between messages of the reranker and its domain, and check every bound of the proto."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from evenmesh.common.v1 import common_pb2
from evenmesh.reranker.v1 import reranker_service_pb2 as pb
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField
from evenmesh_reranker.domain import Agent, Passage, Ranking

MAX_PASSAGES: Final = 1000
"""Most passages of one request."""
MAX_AGENT_BYTES: Final = 128
"""Largest id of an agent's task or model. Bytes."""
MAX_NAME_BYTES: Final = 256
"""Longest name of a reranker. Bytes."""


@dataclass(frozen=True, slots=True)
class RerankCall:
    """A request to score and order passages; see :meth:`evenmesh_reranker.engine.Reranking.rerank`."""

    query: str
    passages: tuple[Passage, ...]
    agent: Agent
    top_k: int
    reranker: str
    tolerance: float | None = None


def decode_request(message: pb.RerankRequest, tenant: str) -> RerankCall:
    """Return a tenant's request.

    Raises:
        InvalidField: a field is out of its bounds.
    """
    query = checks.text("query", message.query)
    checks.passages("passages", message.passages, min=1, max=MAX_PASSAGES)
    top_k, tolerance = len(message.passages), None
    if message.HasField("top_k"):
        top_k = checks.between("top_k", message.top_k, 1, top_k)
    if message.HasField("tolerance"):
        tolerance = checks.between("tolerance", message.tolerance, 0.0, 1.0)
    return RerankCall(
        query=query,
        passages=tuple(Passage(one.id, one.title, one.text) for one in message.passages),
        agent=decode_agent("agent", message.agent, tenant),
        top_k=top_k,
        reranker=_at_most("reranker", message.reranker, MAX_NAME_BYTES),
        tolerance=tolerance,
    )


def encode_ranking(ranking: Ranking) -> pb.RerankResponse:
    """Return scores and order as a reply."""
    return pb.RerankResponse(
        scores=ranking.scores,
        order=ranking.order,
        model_version=ranking.model_version,
        reranker=ranking.reranker,
        unscored=[place for place, score in enumerate(ranking.scores) if math.isnan(score)],
        unscored_at_most=ranking.unscored_at_most,
    )


def decode_agent(field: str, message: common_pb2.Agent, tenant: str) -> Agent:
    """Return a tenant's agent.

    Raises:
        InvalidField: an id is too long.
    """
    return Agent(
        _at_most(f"{field}.task_id", message.task_id, MAX_AGENT_BYTES),
        _at_most(f"{field}.model_id", message.model_id, MAX_AGENT_BYTES),
        tenant,
    )


def _at_most(field: str, value: str, max_bytes: int) -> str:
    size = len(value.encode())
    if size > max_bytes:
        raise InvalidField(field, f"must be at most {max_bytes} bytes, has {size}")
    return value
