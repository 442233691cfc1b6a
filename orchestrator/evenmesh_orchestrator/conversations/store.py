"""The conversation store: conversations in use and idle ones, with limits on their size and lifetime."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import grpc

from evenmesh.generator.v1.generator_service_pb2 import Turn
from evenmesh.wire.errors import FailedPrecondition, MeshError, NotFound
from evenmesh_core.group_fairness import Nugget, parse_transcripts
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_orchestrator.conversations.options import Options
from evenmesh_orchestrator.conversations.sources import Cited, Source, sources, turn_lines
from evenmesh_orchestrator.observations.shares import TENANT_SHARE, DynamicShares

MAX_MEMBERSHIPS: Final = 20_000
"""Most sources times groups of a conversation: each is a number that every turn computes again."""
_TURN_BYTES: Final = 65_536
"""Room that must be free before a turn begins: for its question, its answer and its sources. Bytes."""
_RETRY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of conversations.

    Attributes:
        turns: of one conversation, [1, 100].
        words: of one conversation, the user's and the system's, [1, inf).
        lifetime_s: how long one is stored after its last turn. Seconds, (0, inf).
        conversations: stored at a time, in use or not, [1, inf).
        bytes: of all conversations and of the turns that wait in their streams, [1, inf).
        tenant_share: the largest part of both that one tenant alone can take, (0, 1].
    """

    turns: int = 100
    words: int = 20_000
    lifetime_s: float = 3_600.0
    conversations: int = 1_000
    bytes: int = 2**26
    tenant_share: float = TENANT_SHARE


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A finished turn: its question, its answer, and the passages that contain the answer."""

    question: str
    answer: str
    cited: tuple[Cited, ...] = ()

    @property
    def num_bytes(self) -> int:
        """What it takes in memory. Bytes."""
        texts = [self.question, self.answer]
        for one in self.cited:
            texts += (one.passage_id, one.title, *one.attributes, *one.attributes.values())
        return _memory(texts)


@dataclass(slots=True)
class Conversation:
    """A conversation of a tenant: its turns, and how they are measured. One turn at a time."""

    id: str
    limits: Limits
    tenant: str = DEFAULT_TENANT
    run_id: str = ""
    """Run of its first turn; empty before."""
    settings: bytes = b""
    """How turns are answered: an ``AskRequest``, serialized, as a decoded one takes several times as much."""
    options: Options = field(default_factory=Options)
    turns: list[TurnRecord] = field(default_factory=list)
    num_words: int = 0
    relevance: float | None = 0.0
    """R as last reported; None where the last turn had none."""
    num_bytes: int = 0
    """What it takes in memory, as counted by its store. Bytes."""

    @property
    def next_turn(self) -> int:
        """Number of the next turn, from 1."""
        return len(self.turns) + 1

    @property
    def exchanges(self) -> list[Turn]:
        """The turns so far, as a model receives them."""
        return [Turn(question=turn.question, answer=turn.answer) for turn in self.turns]

    def check_room(self, question: str, passages: int = 0) -> None:
        """Check that another turn fits, which may cite ``passages``.

        Raises:
            MeshError: RESOURCE_EXHAUSTED; the conversation has as many turns, words or sources as it may.
        """
        if len(self.turns) >= self.limits.turns:
            raise _full(f"it has {self.limits.turns} turns, the most that a conversation may have")
        if self.num_words + len(question.split()) > self.limits.words:
            raise _full(f"it would have more than {self.limits.words:,} words")
        if (memberships := self.memberships(passages)) > MAX_MEMBERSHIPS:
            raise _full(
                f"its sources times its groups would be {memberships:,}, at most {MAX_MEMBERSHIPS:,} are "
                "allowed; ask for fewer passages (k), name fewer groups (options.targets)"
            )

    def memberships(self, more: int) -> int:
        """Return the number of its sources, and ``more``, times the groups of its targets, [0, inf)."""
        cited = more + sum(len(turn.cited) for turn in self.turns)
        return cited * sum(len(target.groups) for target in self.options.targets)

    def set_options(self, options: Options) -> None:
        """Replace the options, also for the turns so far."""
        if self.turns and (
            options.entity_attribute != self.options.entity_attribute
            or options.measure != self.options.measure
            or not self.options.targets
        ):
            self.relevance = None
        self.options = options

    def add(self, turn: TurnRecord, state: ConversationState | None = None) -> None:
        """Add a turn; ``state`` is the conversation with it, if that is known."""
        state = state or self.state(turn)
        self.turns.append(turn)
        self.num_words = state.num_words

    def state(self, turn: TurnRecord | None = None) -> ConversationState:
        """Return the conversation in the form that is measured, optionally with one more turn."""
        turns = (*self.turns, *(() if turn is None else (turn,)))
        found = [sources(one.cited, self.options) for one in turns]
        text = "".join(
            turn_lines(number, one.question, one.answer, below)
            for number, (one, below) in enumerate(zip(turns, found, strict=True), start=1)
        )
        # Parsed from the saved text, so that a file gives the same measurements.
        (transcript,) = parse_transcripts(f"##### {self.id}\n{text}")
        return ConversationState(
            text,
            tuple(map(tuple, transcript.nuggets())),
            tuple(found),
            sum(turn.words for turn in transcript.turns),
        )


@dataclass(frozen=True, slots=True)
class ConversationState:
    """A conversation so far, in the form that is measured: the nuggets and the sources of each system turn.

    ``text`` has the format of the GFRC paper's figure 5, without the line of its topic.
    """

    text: str
    nuggets: tuple[tuple[Nugget, ...], ...]
    sources: tuple[tuple[Source, ...], ...]
    num_words: int

    @property
    def num_ungrouped(self) -> int:
        """Number of sources without a group of some target."""
        return sum(not one.grouped for turn in self.sources for one in turn)

    def repeated(self) -> list[bool]:
        """Return for each source of the last turn whether it occurred before as a relevant one."""
        seen = {one.entity for turn in self.sources[:-1] for one in turn if one.level}
        found = []
        for one in self.sources[-1]:
            found.append(one.entity in seen)
            if one.level:
                seen.add(one.entity)
        return found


class ConversationStore:
    """Stores conversations between streams, in memory. For one event loop.

    Tenants share it by :class:`~evenmesh_orchestrator.observations.shares.DynamicShares`, in conversations
    and in bytes. Where either has no room, the tenant that holds most loses the idle conversation that was
    unused for longest, but nobody loses one to a tenant that holds more.

    Args:
        limits: size and lifetime.
        clock: returns monotonic seconds.
    """

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        # By tenant and id, in the order of their last release.
        self._idle: dict[tuple[str, str], tuple[float, Conversation]] = {}
        self._busy: set[tuple[str, str]] = set()
        self._held = DynamicShares(limits.conversations, limits.tenant_share)
        self._bytes = DynamicShares(limits.bytes, limits.tenant_share)

    @property
    def lifetime_s(self) -> float:
        """How long a conversation is stored without a turn. Seconds."""
        return self._limits.lifetime_s

    @property
    def num_bytes(self) -> int:
        """What all conversations take in memory. Bytes."""
        return self._bytes.total

    def acquire(self, tenant: str, conversation_id: str = "") -> Conversation:
        """Return a tenant's conversation for exclusive use by one stream; a new one for an empty id.

        Raises:
            NotFound: the tenant has no conversation of this id, or no longer.
            FailedPrecondition: another stream uses it.
            MeshError: RESOURCE_EXHAUSTED; too many conversations are in use.
        """
        self._expire()
        key = tenant, conversation_id
        if key in self._busy:
            raise FailedPrecondition(
                "CONVERSATION_BUSY", "another stream uses this conversation; turns cannot run concurrently"
            )
        if conversation_id:
            if key not in self._idle:
                raise NotFound(
                    "conversation_id",
                    "this server has no such conversation, or no longer: it may be on another server, was "
                    f"unused for {self._limits.lifetime_s:,.0f} s, or was removed for newer ones",
                )
            _, found = self._idle.pop(key)
        else:
            if not self._make_room(self._held, tenant, 1):
                raise MeshError(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    "TOO_MANY_CONVERSATIONS",
                    f"{self._held.of(tenant):,} conversations of yours are in use, and no more fit now; end "
                    "a stream, or try again later",
                    retry_after_s=_RETRY_S,
                )
            found = Conversation(secrets.token_hex(16), self._limits, tenant)
            self._held.add(tenant, 1)
        self._busy.add((tenant, found.id))
        return found

    def hold(self, tenant: str, size: int) -> None:
        """Count bytes that a tenant adds, or, with a negative size, gives back.

        Raises:
            MeshError: RESOURCE_EXHAUSTED; they do not fit.
        """
        if size > 0:
            self._check_room(tenant, size)
        self._bytes.add(tenant, size)

    def keep(self, conversation: Conversation, settings: bytes, options: Options) -> None:
        """Replace settings and options of a conversation in use, before a turn.

        Raises:
            MeshError: RESOURCE_EXHAUSTED; they and a turn do not fit.
        """
        more = len(settings) + options.num_bytes - len(conversation.settings) - conversation.options.num_bytes
        self._check_room(conversation.tenant, more + _TURN_BYTES)
        self._grow(conversation, more)
        conversation.settings = settings
        if options is not conversation.options:
            conversation.set_options(options)

    def add(self, conversation: Conversation, turn: TurnRecord, state: ConversationState) -> None:
        """Add a turn to a conversation in use; ``state`` is the conversation with it.

        Raises:
            MeshError: RESOURCE_EXHAUSTED; the turn does not fit.
        """
        size = turn.num_bytes
        self._check_room(conversation.tenant, size)
        self._grow(conversation, size)
        conversation.add(turn, state)

    def release(self, conversation: Conversation) -> None:
        """End a stream's use of a conversation; discard one without turns."""
        key = conversation.tenant, conversation.id
        self._busy.remove(key)
        if conversation.turns:
            self._idle[key] = (self._clock() + self._limits.lifetime_s, conversation)
        else:
            self._forget(conversation)

    def _grow(self, conversation: Conversation, size: int) -> None:
        self._bytes.add(conversation.tenant, size)
        conversation.num_bytes += size

    def _forget(self, conversation: Conversation) -> None:
        self._held.add(conversation.tenant, -1)
        self._bytes.add(conversation.tenant, -conversation.num_bytes)

    def _check_room(self, tenant: str, size: int) -> None:
        if self._make_room(self._bytes, tenant, size):
            return
        alone = int(self._limits.tenant_share * self._limits.bytes)
        raise MeshError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "CONVERSATIONS_TOO_LARGE",
            f"your conversations take {self._bytes.of(tenant):,} bytes, {size:,} more do not fit; send "
            "fewer candidates or groups, use a collection, or end streams",
            retry_after_s=_RETRY_S if size <= alone else None,
        )

    def _make_room(self, shares: DynamicShares, tenant: str, amount: int) -> bool:
        """Remove idle conversations until an amount fits; return False if it does not."""
        while shares.room(tenant) < amount:
            holders = {owner for owner, _ in self._idle}
            most = max(holders, key=lambda one: (shares.of(one), one == tenant), default=tenant)
            if most not in holders or shares.of(most) < shares.of(tenant):
                return False
            key = next(key for key in self._idle if key[0] == most)
            self._forget(self._idle.pop(key)[1])
        return True

    def _expire(self) -> None:
        now = self._clock()
        for key in [key for key, (ends, _) in self._idle.items() if ends <= now]:
            self._forget(self._idle.pop(key)[1])


def _memory(texts: Iterable[str]) -> int:
    return sum(map(sys.getsizeof, texts))


def _full(why: str) -> MeshError:
    return MeshError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "CONVERSATION_FULL",
        f"the conversation is full: {why}; or begin a new one",
    )
