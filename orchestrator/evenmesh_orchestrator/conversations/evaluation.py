"""The evaluator's measurement of a conversation: relevance R and group fairness GF."""

from __future__ import annotations

from typing import Protocol

from evenmesh.evaluator.v1.evaluator_service_pb2 import (
    EvaluateConversationRequest,
    EvaluateConversationResponse,
)
from evenmesh_orchestrator.conversations.conversation import Conversation, ConversationState


class ConversationEvaluator(Protocol):
    """Measures conversations."""

    async def evaluate(
        self, request: EvaluateConversationRequest, *, timeout_s: float
    ) -> EvaluateConversationResponse:
        """Return R and GF of a conversation. Raise MeshError on failure."""


def evaluation_request(conversation: Conversation, state: ConversationState) -> EvaluateConversationRequest:
    """Return the request to measure a conversation. It carries no text."""
    request = EvaluateConversationRequest()
    request.CopyFrom(conversation.options.measure)
    for turn in state.nuggets:
        added = request.turns.add()
        for nugget in turn:
            one = added.nuggets.add(
                word_count=nugget.word_count, gain=nugget.gain, entity=nugget.entity or ""
            )
            for name, shares in nugget.membership.items():
                one.membership[name].shares.extend(shares)
    for target in conversation.options.targets:
        request.attributes[target.attribute].gold.shares.extend(target.shares)
        request.attributes[target.attribute].divergence = target.divergence
    return request
