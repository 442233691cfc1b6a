"""The port of what stores conversations between turns, and the errors that every such store gives."""

from __future__ import annotations

from typing import Final, Protocol

import grpc

from evenmesh.wire.errors import FailedPrecondition, MeshError, NotFound
from evenmesh_orchestrator.conversations.conversation import (
    Conversation,
    ConversationState,
    Limits,
    TurnRecord,
)
from evenmesh_orchestrator.conversations.options import Options
from evenmesh_orchestrator.observations.shares import DynamicShares

TURN_BYTES: Final = 65_536
"""Room that must be free before a turn begins: for its question, its answer and its sources. Bytes."""

_RETRY_S: Final = 5.0


class ConversationStore(Protocol):
    """Stores conversations between turns. For one event loop.

    Tenants share it by :class:`~evenmesh_orchestrator.observations.shares.DynamicShares`, in conversations
    and in bytes. Where either has no room, the tenant that holds most loses the idle conversation that was
    unused for longest, but nobody loses one to a tenant that holds more.

    A store that other processes share raises ``Unavailable`` from each method that waits while its database
    is away.
    """

    @property
    def lifetime_s(self) -> float:
        """How long a conversation is stored without a turn. Seconds."""

    async def start(self) -> None:
        """Open the store. Raise Unavailable if it can never work as it is set up."""

    async def stop(self) -> None:
        """Close the store."""

    def hold(self, tenant: str, size: int) -> None:
        """Count bytes of turns that wait in this process, or, with a negative size, give them back.

        Raises:
            MeshError: RESOURCE_EXHAUSTED; they do not fit.
        """

    async def acquire(self, tenant: str, conversation_id: str = "") -> Conversation:
        """Return a tenant's conversation for exclusive use by one stream; a new one for an empty id.

        Raises:
            NotFound: the tenant has no conversation of this id, or no longer.
            FailedPrecondition: another stream uses it.
            MeshError: RESOURCE_EXHAUSTED; too many conversations are in use.
        """

    async def keep(self, conversation: Conversation, settings: bytes, options: Options) -> None:
        """Replace settings and options of a conversation in use, before a turn.

        Raises:
            ConversationLost: this stream has it no longer.
            MeshError: RESOURCE_EXHAUSTED; they and a turn do not fit.
        """

    async def add(
        self,
        conversation: Conversation,
        turn: TurnRecord,
        state: ConversationState,
        relevance: float | None,
    ) -> None:
        """Add a turn to a conversation in use. It is stored when this returns.

        Args:
            conversation: as ``acquire`` returned it.
            turn: the turn.
            state: the conversation with it.
            relevance: R of the conversation with it; None where it is unknown.

        Raises:
            ConversationLost: this stream has it no longer.
            MeshError: RESOURCE_EXHAUSTED; the turn does not fit. ``TURN_NOT_STORED``; the store failed.
        """

    async def release(self, conversation: Conversation) -> None:
        """End a stream's use of a conversation; discard one without turns. Raises nothing."""


class ConversationLost(FailedPrecondition):
    """FAILED_PRECONDITION: the lease of a stream expired, and its conversation was taken or removed."""

    def __init__(self) -> None:
        super().__init__(
            "CONVERSATION_LOST",
            "this orchestrator did not reach the database for longer than a lease, and another stream took "
            "the conversation, or it was removed; continue it by its id in a new stream",
        )


def busy() -> FailedPrecondition:
    """Return the error where another stream uses the conversation."""
    return FailedPrecondition(
        "CONVERSATION_BUSY", "another stream uses this conversation; turns cannot run concurrently"
    )


def unknown(limits: Limits, why: str = "") -> NotFound:
    """Return the error where there is no such conversation; ``why`` names reasons beyond the usual ones."""
    return NotFound(
        "conversation_id",
        f"there is no such conversation, or no longer: {why}it was unused for {limits.lifetime_s:,.0f} s, or "
        "was removed for newer ones",
    )


def too_many(held: int) -> MeshError:
    """Return the error where a tenant, who has ``held`` conversations, may begin no other."""
    return MeshError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "TOO_MANY_CONVERSATIONS",
        f"{held:,} conversations of yours are in use, and no more fit now; end a stream, or try again later",
        retry_after_s=_RETRY_S,
    )


def too_large(held: int, size: int, limits: Limits) -> MeshError:
    """Return the error where a tenant, whose conversations take ``held`` bytes, may add no ``size`` more."""
    alone = int(limits.tenant_share * limits.bytes)
    return MeshError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "CONVERSATIONS_TOO_LARGE",
        f"your conversations take {held:,} bytes, {size:,} more do not fit; send fewer candidates or groups, "
        "use a collection, or end streams",
        retry_after_s=_RETRY_S if size <= alone else None,
    )


def loser(shares: DynamicShares, tenant: str, holders: set[str]) -> str | None:
    """Return the tenant that gives up an idle conversation so that another may add to a store.

    Args:
        shares: what the tenants hold.
        tenant: who adds.
        holders: those with idle conversations.

    Returns:
        None where nobody must: those who have some hold less.
    """
    most = max(holders, key=lambda one: (shares.of(one), one == tenant), default=None)
    return None if most is None or shares.of(most) < shares.of(tenant) else most
