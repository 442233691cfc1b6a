"""A conversation: its turns, its limits, and the form in which it is measured."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import grpc

from evenmesh.generator.v1.generator_service_pb2 import Turn
from evenmesh.wire.errors import MeshError
from evenmesh_core.group_fairness import Nugget, parse_transcripts
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_orchestrator.conversations.options import Options
from evenmesh_orchestrator.conversations.sources import Cited, Source, sources, turn_lines
from evenmesh_orchestrator.observations.shares import TENANT_SHARE

MAX_MEMBERSHIPS: Final = 20_000
"""Most sources times groups of a conversation: each is a number that every turn computes again."""


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
    lease: str = ""
    """Lease of the stream that uses it, in a shared store."""

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


def _memory(texts: Iterable[str]) -> int:
    return sum(map(sys.getsizeof, texts))


def _full(why: str) -> MeshError:
    return MeshError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "CONVERSATION_FULL",
        f"the conversation is full: {why}; or begin a new one",
    )
