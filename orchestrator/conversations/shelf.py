"""Conversations that are under way, and those that may go on: how much they hold, and for how long."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from meshkit.errors import FailedPrecondition, MeshError, NotFound
from meshkit.security.caller import DEFAULT_TENANT
from orchestrator.conversations.options import Options
from orchestrator.conversations.sources import Cited, Source, sources, turn_lines
from orchestrator.domain import Exchange
from ragcore.group_fairness import Nugget, parse_transcripts


@dataclass(frozen=True, slots=True)
class Limits:
    """What conversations may take.

    Attributes:
        turns: of one conversation, [1, 100].
        words: of one conversation, the user's and the system's, [1, inf).
        lifetime_s: how long one is kept after its last turn. Seconds, (0, inf).
        conversations: kept at a time, [1, inf); beyond, of the tenant that has most, the one unused for the
            longest is given up.
    """

    turns: int = 100
    words: int = 20_000
    lifetime_s: float = 3_600.0
    conversations: int = 1_000


@dataclass(frozen=True, slots=True)
class Told:
    """A turn that is over: what was asked and answered, and the passages that have the answer."""

    question: str
    answer: str
    cited: tuple[Cited, ...] = ()


@dataclass(slots=True)
class Conversation:
    """A conversation of a tenant: its turns, and how they are measured. One turn at a time."""

    id: str
    limits: Limits
    tenant: str = DEFAULT_TENANT
    run_id: str = ""
    """Run of its first turn; empty before."""
    kept: object | None = None
    """How turns are answered: the contract's message, carried and never read."""
    options: Options = field(default_factory=Options)
    told: list[Told] = field(default_factory=list)
    num_words: int = 0
    relevance: float | None = 0.0
    """R as it was last told; None where that of the last turn was not."""

    @property
    def next_turn(self) -> int:
        """Number of the next turn, from 1."""
        return len(self.told) + 1

    @property
    def exchanges(self) -> list[Exchange]:
        """The turns so far, as a model is shown them."""
        return [Exchange(turn.question, turn.answer) for turn in self.told]

    def check_room(self, question: str) -> None:
        """Checks that another turn fits.

        Raises:
            MeshError: RESOURCE_EXHAUSTED; the conversation has as many turns or words as it may.
        """
        if len(self.told) >= self.limits.turns:
            raise _full(f"it has {self.limits.turns} turns, the most that a conversation may have")
        if self.num_words + len(question.split()) > self.limits.words:
            raise _full(f"it would have more than {self.limits.words:,} words")

    def set_options(self, options: Options) -> None:
        """Takes other options, which hold for the turns so far too."""
        if self.told and (
            options.entity_attribute != self.options.entity_attribute
            or options.measure != self.options.measure
            or not self.options.targets
        ):
            self.relevance = None
        self.options = options

    def keep(self, turn: Told) -> None:
        """Adds a turn."""
        self.told.append(turn)
        self.num_words = self.standing().num_words

    def standing(self, turn: Told | None = None) -> Standing:
        """The conversation as it is measured, with a turn that is not kept yet if there is one."""
        turns = (*self.told, *(() if turn is None else (turn,)))
        found = [sources(one.cited, self.options) for one in turns]
        text = "".join(
            turn_lines(number, one.question, one.answer, below)
            for number, (one, below) in enumerate(zip(turns, found, strict=True), start=1)
        )
        # Parsed from the very lines that are saved, so that what is measured is what a file says.
        (transcript,) = parse_transcripts(f"##### {self.id}\n{text}")
        return Standing(
            text,
            tuple(map(tuple, transcript.nuggets())),
            tuple(found),
            sum(turn.words for turn in transcript.turns),
        )


@dataclass(frozen=True, slots=True)
class Standing:
    """A conversation so far, as it is measured: for each system turn its nuggets, and the sources they are.

    ``text`` is in the format of gfrc's figure 5, without the line of its topic.
    """

    text: str
    nuggets: tuple[tuple[Nugget, ...], ...]
    sources: tuple[tuple[Source, ...], ...]
    num_words: int

    @property
    def num_ungrouped(self) -> int:
        """Sources without a group of some target."""
        return sum(not one.grouped for turn in self.sources for one in turn)

    def repeated(self) -> list[bool]:
        """For each source of the last turn whether it came before as a relevant one."""
        seen = {one.entity for turn in self.sources[:-1] for one in turn if one.level}
        found = []
        for one in self.sources[-1]:
            found.append(one.entity in seen)
            if one.level:
                seen.add(one.entity)
        return found


class Shelf:
    """Keeps conversations between streams, in memory. For one event loop.

    Args:
        limits: what they may take.
        clock: monotonic seconds.
    """

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        # By tenant and id, in the order they were last put back.
        self._idle: dict[tuple[str, str], tuple[float, Conversation]] = {}
        self._busy: set[tuple[str, str]] = set()

    @property
    def lifetime_s(self) -> float:
        """How long a conversation is kept without a turn. Seconds."""
        return self._limits.lifetime_s

    def take(self, tenant: str, conversation_id: str = "") -> Conversation:
        """A tenant's conversation for a stream, whose alone it is until it is put back; a new one for no id.

        Raises:
            NotFound: the tenant has none of this id, or no longer.
            FailedPrecondition: another stream has it.
            MeshError: RESOURCE_EXHAUSTED; as many conversations as may be are under way.
        """
        self._forget()
        key = tenant, conversation_id
        if key in self._busy:
            raise FailedPrecondition(
                "CONVERSATION_BUSY", "another stream has this conversation; a turn is taken at a time"
            )
        if conversation_id:
            if key not in self._idle:
                raise NotFound(
                    "conversation_id",
                    "there is no such conversation here, or no longer: it was on another server, was not "
                    f"used for {self._limits.lifetime_s:,.0f} s, or made room for newer ones",
                )
            _, found = self._idle.pop(key)
        else:
            if len(self._busy) >= self._limits.conversations:
                raise MeshError(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    "TOO_MANY_CONVERSATIONS",
                    f"{self._limits.conversations:,} conversations are under way; try again later",
                    retry_after_s=5.0,
                )
            while len(self._busy) + len(self._idle) >= self._limits.conversations:
                self._make_room()
            found = Conversation(secrets.token_hex(16), self._limits, tenant)
        self._busy.add((tenant, found.id))
        return found

    def put_back(self, conversation: Conversation) -> None:
        """Ends a stream's hold; one without any turn is not kept."""
        key = conversation.tenant, conversation.id
        self._busy.remove(key)
        if conversation.told:
            self._idle[key] = (self._clock() + self._limits.lifetime_s, conversation)

    def _make_room(self) -> None:
        kept = Counter(tenant for tenant, _ in self._idle)
        ((most, _),) = kept.most_common(1)
        del self._idle[next(key for key in self._idle if key[0] == most)]

    def _forget(self) -> None:
        now = self._clock()
        for key in [key for key, (ends, _) in self._idle.items() if ends <= now]:
            del self._idle[key]


def _full(why: str) -> MeshError:
    return MeshError(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "CONVERSATION_FULL", f"the conversation is full: {why}"
    )
