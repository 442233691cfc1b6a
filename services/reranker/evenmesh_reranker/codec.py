"""Convert between messages of the reranker and its domain, and check every bound of the proto."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from evenmesh.common.v1 import common_pb2
from evenmesh.reranker.v1 import reranker_service_pb2 as pb
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField
from evenmesh_kit.security import agents
from evenmesh_reranker.domain import Agent, FirstStage, Passage, Ranking

MAX_PASSAGES: Final = 1000
"""Most passages of one request."""
MAX_AGENT_BYTES: Final = 128
"""Largest id of an agent's task or model. Bytes."""
MAX_NAME_BYTES: Final = 256
"""Longest name of a reranker. Bytes."""
MAX_FUSION: Final = 10.0
"""Largest weight of a first stage. Nats per standard deviation."""
MAX_SCORE: Final = 1e100
"""Largest score of a first stage: the squares of such scores can be added up."""


@dataclass(frozen=True, slots=True)
class RerankCall:
    """A request to score and order passages; see :meth:`evenmesh_reranker.engine.Reranking.rerank`."""

    query: str
    passages: tuple[Passage, ...]
    agent: Agent
    top_k: int
    reranker: str
    tolerance: float | None = None
    first: FirstStage | None = None
    fusion: float | None = None


def decode_request(message: pb.RerankRequest, tenant: str) -> RerankCall:
    """Return a tenant's request.

    Raises:
        InvalidField: a field is out of its bounds.
        PermissionDenied: the caller is bound to other agents.
    """
    query = checks.text("query", message.query)
    checks.passages("passages", message.passages, min=1, max=MAX_PASSAGES)
    top_k, tolerance = len(message.passages), None
    if message.HasField("top_k"):
        top_k = checks.between("top_k", message.top_k, 1, top_k)
    if message.HasField("tolerance"):
        tolerance = checks.between("tolerance", message.tolerance, 0.0, 1.0)
    first = decode_first_stage(message) if message.HasField("first_stage") else None
    fusion = None
    if message.HasField("fusion"):
        fusion = checks.between("fusion", message.fusion, 0.0, MAX_FUSION)
        if fusion > 0 and first is None:
            raise InvalidField("fusion", "needs first_stage: there are no scores to fuse with")
        if fusion > 0 and tolerance is not None:
            raise InvalidField("fusion", "must be 0 with a tolerance, which bounds the reranker's own scores")
    return RerankCall(
        query=query,
        passages=tuple(Passage(one.id, one.title, one.text) for one in message.passages),
        agent=decode_agent("agent", message.agent, tenant),
        top_k=top_k,
        reranker=checks.at_most("reranker", message.reranker, MAX_NAME_BYTES),
        tolerance=tolerance,
        first=first,
        fusion=fusion,
    )


def decode_first_stage(message: pb.RerankRequest) -> FirstStage:
    """Return what a first stage gave the passages of a request.

    Raises:
        InvalidField: not one score for each passage, or a number that is not finite.
    """
    given, count = message.first_stage, len(message.passages)
    field = "first_stage.scores"
    if len(given.scores) != count:
        raise InvalidField(
            field, f"must have one score for each of {count} passages, has {len(given.scores)}"
        )
    scores = np.fromiter(given.scores, dtype=np.float64, count=count)
    if not (np.abs(scores) <= MAX_SCORE).all():
        raise InvalidField(field, f"must be numbers in [-{MAX_SCORE:g}, {MAX_SCORE:g}]")
    # The deviation of equal scores would be that of rounding.
    deviation = float(scores.std()) if count and scores.max() > scores.min() else 0.0
    mean = float(scores.mean()) if count else 0.0
    if given.HasField("mean"):
        mean = checks.between("first_stage.mean", given.mean, -MAX_SCORE, MAX_SCORE)
    if given.HasField("deviation"):
        deviation = checks.between("first_stage.deviation", given.deviation, 0.0, MAX_SCORE)
    return FirstStage(tuple(scores.tolist()), mean, deviation)


def encode_ranking(ranking: Ranking) -> pb.RerankResponse:
    """Return scores and order as a reply."""
    return pb.RerankResponse(
        scores=ranking.scores,
        order=ranking.order,
        model_version=ranking.model_version,
        reranker=ranking.reranker,
        unscored=[place for place, score in enumerate(ranking.scores) if math.isnan(score)],
        unscored_at_most=ranking.unscored_at_most,
        fusion=ranking.fusion,
    )


def decode_agent(field: str, message: common_pb2.Agent, tenant: str) -> Agent:
    """Return a tenant's agent, which the caller may act as.

    Raises:
        InvalidField: an id is too long.
        PermissionDenied: the caller is bound to other agents.
    """
    agents.check(message.task_id, message.model_id, field)
    return Agent(
        checks.at_most(f"{field}.task_id", message.task_id, MAX_AGENT_BYTES),
        checks.at_most(f"{field}.model_id", message.model_id, MAX_AGENT_BYTES),
        tenant,
    )
