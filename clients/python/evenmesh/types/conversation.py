"""A conversation with a mesh: its options, and the typed events of its turns."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from evenmesh.codec.values import flag
from evenmesh.types.events import AskResult, Delta, Event

History = Literal["none", "words", "rewrite"]
"""What passages are looked for with: the turn alone, with the words of earlier user turns that it lacks, or a
question that the generator's model writes."""

Divergence = Literal["jsd", "rnod", "nmd"]
"""How distributions are compared: "jsd" where groups have no order, "rnod" or "nmd" where they have one."""


@dataclass(frozen=True, slots=True)
class GroupTarget:
    """Fairness target for one attribute of the passages that a conversation cites.

    Attributes:
        attribute: its name, such as ``provider``.
        groups: its values, in order if they have one. A passage whose value names several groups, separated
            by ``;``, belongs to them in equal parts; one that names none belongs to all equally, and is
            counted.
        shares: share of each group, 0 or more, sum 1; None for equal shares.
        divergence: how the achieved distribution is compared with it.
    """

    attribute: str
    groups: tuple[str, ...]
    shares: tuple[float, ...] | None = None
    divergence: Divergence = "jsd"


class ConversationOptions(TypedDict, total=False):
    """Options of a conversation, besides those of its turns; the mesh chooses options that are left out.

    Attributes:
        targets: shares that groups should have; without any there is no report.
        history: how the search uses earlier turns; "words" by default. With "none" the model reads none,
            either, unless there is a template.
        history_turns: earlier turns that search and model use, the newest ones, 1 to 100; 10 without it.
        template: prompt template that shows the model earlier turns, such as ``rankrag-answer-conversation``;
            all that fit, then. Without it the model's own for conversations. The bundled model, which takes
            none, reads words of earlier turns behind the question.
        patience: words a user reads before giving up; 1,250 without it.
        relevance_weight: weight of relevance in the combined value, 0 to 1; 0.5 without it.
        cumulative: whether a turn's distribution comes from all turns so far, not from its own sources.
        uniform_turns: whether turns without relevant sources count as uniform, instead of being left out.
        entity_attribute: attribute that names what a passage is about; each is its own entity without it.
    """

    targets: Sequence[GroupTarget]
    history: History
    history_turns: int | None
    template: str | None
    patience: int | None
    relevance_weight: float | None
    cumulative: bool
    uniform_turns: bool
    entity_attribute: str | None


@dataclass(frozen=True, slots=True)
class LookedFor:
    """The search query of a turn, where that is not the question itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CitedEntity:
    """A source that a turn cites.

    Attributes:
        passage_id: the passage.
        entity: address that identifies its subject.
        level: relevance level: 2 unless the labels say that it is not useful, then 0.
        repeated: it was cited before, and is not relevant again.
        word_count: place of its last word in the conversation, from 1.
        membership: for each attribute to what degree it belongs to each group.
    """

    passage_id: str
    entity: str
    level: int
    repeated: bool
    word_count: int
    membership: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class GroupFairness:
    """Fairness in one attribute.

    Attributes:
        group_fairness: GF, 0 to 1.
        similarity: to the target, of each turn; None where the turn is left out.
        achieved: distribution of each turn; None where it is left out.
    """

    group_fairness: float
    similarity: tuple[float | None, ...]
    achieved: tuple[tuple[float, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class ConversationReport:
    """Relevance and group fairness of a conversation after a turn (GFRC).

    Attributes:
        relevance: R so far, 0 to 1.
        group_fairness: GF so far, 0 to 1.
        combined: GFRC so far.
        turn_relevance: what the turn adds to R; None if the report before it is missing.
        turn_group_fairness: mean similarity of the turn to the targets; None where it is left out.
        by_attribute: fairness of each attribute.
        entities: the sources that the turn cites.
        num_ungrouped: sources so far without a group of some target.
        num_words: words so far, the user's too.
    """

    relevance: float
    group_fairness: float
    combined: float
    turn_relevance: float | None
    turn_group_fairness: float | None
    by_attribute: Mapping[str, GroupFairness]
    entities: tuple[CitedEntity, ...]
    num_ungrouped: int
    num_words: int


TurnEvent = LookedFor | Event | ConversationReport
"""One event of a turn; match on its type."""


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The result of a turn.

    Attributes:
        conversation_id: the conversation.
        turn: which turn, from 1.
        looked_for: text that passages were searched for with.
        ask: the answer and what led to it.
        report: the conversation so far; None without targets, or where the evaluator was away.
        transcript: the conversation so far in the format of GFRC's figure 5, without the line of its topic.
    """

    conversation_id: str
    turn: int
    looked_for: str
    ask: AskResult
    report: ConversationReport | None
    transcript: str

    @property
    def text(self) -> str:
        """Return the answer's text; empty if there is none."""
        return self.ask.text

    @classmethod
    def of(
        cls,
        question: str,
        events: Iterable[TurnEvent],
        *,
        conversation_id: str,
        turn: int,
        transcript: str,
    ) -> "TurnResult":
        """Return the result that the events of one turn make."""
        looked_for, report, rest = question, None, []
        for event in events:
            if isinstance(event, LookedFor):
                looked_for = event.text
            elif isinstance(event, ConversationReport):
                report = event
            elif not isinstance(event, Delta):
                rest.append(event)
        return cls(conversation_id, turn, looked_for, AskResult.of(question, rest), report, transcript)


def group_target(
    values: Iterable[str], attribute: str, *, own: bool = False, divergence: Divergence = "jsd"
) -> GroupTarget | None:
    """Return a target for the groups of a collection's passages, by name.

    Args:
        values: value of the attribute of each passage; empty if it has none.
        attribute: its name.
        own: whether the target is the collection's own distribution, instead of the same share for each.
        divergence: how distributions are compared.

    Returns:
        The target; None where there are not two groups.
    """
    weights: dict[str, float] = {}
    for value in values:
        names = [name for part in value.split(";") if (name := part.strip())]
        for name in names:
            weights[name] = weights.get(name, 0.0) + 1 / len(names)
    if len(weights) < 2:
        return None
    groups = tuple(sorted(weights))
    total = sum(weights.values())
    shares = tuple(weights[name] / total for name in groups) if flag("own", own) else None
    return GroupTarget(attribute, groups, shares, divergence)
