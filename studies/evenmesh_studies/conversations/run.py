"""Hold one conversation of a plan."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from evenmesh import AsyncClient
from evenmesh.addresses import Addresses
from evenmesh_studies.conversations.plan import ConversationPlan, ConversationUnit
from evenmesh_studies.conversations.systems import (
    ConversationRecord,
    ConversationSystem,
    EndpointSystem,
    MeshSystem,
)
from evenmesh_studies.runner import Perform, Result


@asynccontextmanager
async def connected(
    plan: ConversationPlan, addresses: Addresses, key: str = ""
) -> AsyncIterator[Perform[ConversationUnit]]:
    """Give a function that does one unit of a plan, within a connection to the mesh or the endpoint.

    Args:
        plan: what to run.
        addresses: of the mesh.
        key: of the endpoint; empty for none.
    """
    if plan.endpoint:
        endpoint = EndpointSystem(plan.endpoint, key, plan)
        try:
            yield partial(converse, endpoint)
        finally:
            await endpoint.close()
    else:
        async with AsyncClient(addresses) as client:
            yield partial(converse, MeshSystem(client, plan))


async def converse(system: ConversationSystem, unit: ConversationUnit) -> Result:
    """Hold one conversation from the beginning.

    Raises:
        MeshError: the system refuses it, or fails in a way that may pass.
    """
    held = await system.converse(unit)
    return Result([record(unit, held)], held.facts)


def record(unit: ConversationUnit, held: ConversationRecord) -> str:
    """Return the JSON line of a conversation."""
    return json.dumps(
        {
            "system": unit.system.name,
            "trial": unit.trial,
            "topic": unit.topic.name,
            "turns": [
                {"text": turn.text, "useful": turn.useful, "breakdown": turn.breakdown} for turn in held.turns
            ],
            "transcript": list(held.lines),
        },
        ensure_ascii=False,
    )
