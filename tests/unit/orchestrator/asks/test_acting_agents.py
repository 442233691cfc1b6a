"""Callers that are bound to agents ask as these alone, however they ask."""

from __future__ import annotations

from typing import Any

import pytest

from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.errors import PermissionDenied
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import AgentName, Caller, Role
from evenmesh_orchestrator.conversations import codec
from evenmesh_orchestrator.conversations.conversation import Conversation, Limits
from tests.unit.orchestrator.fakes import DEFAULTS, ask, audit, ensemble

MINE, VICTIM = ({"task_id": "qa", "model_id": name} for name in ("mine", "victim"))


def enter(*agents: str) -> None:
    """Make a caller that is bound to agents the current one."""
    bound = frozenset(AgentName.read(one, "agents") for one in agents)
    callers.enter(Caller("ada", "acme", frozenset({Role.ASK}), agents=bound))


async def test_asks_ensembles_and_audits_are_of_ones_own_agents() -> None:
    enter("qa/mine")
    asks: list[tuple[Any, str]] = [
        (ask, "agent"),
        (lambda **changes: ensemble("Wiki@2", "News@2", **changes), "agent"),
        (audit, "ask.agent"),
    ]
    for read, field in asks:
        read(agent=MINE)
        read()
        with pytest.raises(Exception, match="may act only as qa/mine") as refused:
            read(agent=VICTIM)
        error: Any = refused.value
        assert (error.reason, error.field) == ("PERMISSION_DENIED", field)


async def test_a_conversation_does_not_hand_its_agent_on() -> None:
    def take(conversation: Conversation, **request: Any) -> Any:
        read, settings = codec.read_turn(pb.AskRequest(**request), conversation, DEFAULTS)
        conversation.settings = settings
        return read

    conversation = Conversation("id", Limits())
    enter("qa/victim")
    assert take(conversation, question="One?", agent=VICTIM).agent.model_id == "victim"
    enter("qa/mine")
    for turn in ({"question": "Two?"}, {"question": "Two?", "agent": VICTIM}):
        with pytest.raises(PermissionDenied) as refused:
            take(conversation, **turn)
        assert refused.value.field == "ask.agent"
    assert take(conversation, question="Two?", agent=MINE).agent.model_id == "mine"
