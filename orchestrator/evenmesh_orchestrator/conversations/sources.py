"""The sources that a system turn cites: its entities, their groups, and the text a reader sees.

A system turn is what its reader sees: the answer, and below it one line per passage that contains it. Each
line ends with the passage's address. So a turn is a list of entities with addresses, as in the paper, and an
entity's position in the conversation is that of its address. An answer that no passage contains has no
entity.

Source: the GFRC paper, section 4.1, figure 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final
from urllib.parse import quote

from evenmesh.common.v1.common_pb2 import Passage
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh_orchestrator.conversations.options import Options
from evenmesh_orchestrator.domain import Ask

RELEVANT: Final = 2
"""Relevance level of a source that is useful or has no label (L2 in the paper)."""
_WITHOUT_COLLECTION: Final = "mesh"
_CANDIDATES: Final = "candidates"


@dataclass(frozen=True, slots=True)
class Cited:
    """A passage that contains an answer, as a conversation stores it."""

    passage_id: str
    title: str
    place: str
    """Origin of the passage: a collection, ``candidates``, or ``mesh`` for the sources of an expression."""
    attributes: Mapping[str, str]
    level: int
    """Relevance level, 0 or :data:`RELEVANT`."""


@dataclass(frozen=True, slots=True)
class Source:
    """A cited passage as an entity of GFRC."""

    passage_id: str
    entity: str
    """Identity of the entity: an address, without white space."""
    title: str
    level: int
    membership: Mapping[str, tuple[Fraction, ...]]
    values: Mapping[str, str]
    """Value of each attribute; empty where the passage has none."""
    grouped: bool
    """Whether it has a group of every target."""


def cited(ask: Ask, citations: Sequence[pb.Citation], passages: Mapping[str, Passage]) -> tuple[Cited, ...]:
    """Return the passages that an answer cites, in the order of its citations.

    Args:
        ask: the turn; its labels say what is useful, and without labels everything cited is.
        citations: of the answer.
        passages: the pool, by id.
    """
    useful = frozenset(ask.labels.useful_passage_ids)
    place = ask.collection or (_CANDIDATES if ask.candidates is not None else _WITHOUT_COLLECTION)
    return tuple(
        Cited(
            passage_id=passage.id,
            title=" ".join(passage.title.split()),
            place=place,
            attributes=dict(passage.attributes),
            level=RELEVANT if not ask.labels.has_useful or passage.id in useful else 0,
        )
        for passage in (passages[one.passage_id] for one in citations)
    )


def sources(found: Sequence[Cited], options: Options) -> tuple[Source, ...]:
    """Return cited passages as entities with their groups, in their order."""
    return tuple(_source(one, options) for one in found)


def _source(one: Cited, options: Options) -> Source:
    memberships = {
        target.attribute: target.membership(one.attributes.get(target.attribute, ""))
        for target in options.targets
    }
    name = one.attributes.get(options.entity_attribute, "") if options.entity_attribute else ""
    return Source(
        passage_id=one.passage_id,
        entity=f"evenmesh://{one.place}/{quote(name or one.passage_id, safe='/:@')}",
        title=one.title,
        level=one.level,
        membership={
            target.attribute: memberships[target.attribute] or target.everywhere for target in options.targets
        },
        values={
            target.attribute: " ".join(one.attributes.get(target.attribute, "").split())
            for target in options.targets
        },
        grouped=all(found is not None for found in memberships.values()),
    )


def turn_lines(number: int, question: str, answer: str, below: Sequence[Source]) -> str:
    """Return a user turn and its system turn, annotated in the format of the paper's figure 5.

    A backslash escapes text lines that would read as tags. The system turn is marked as useful (``o``) where
    it cites a source.

    Args:
        number: of the turn, from 1.
        question: the user's words.
        answer: the system's.
        below: its sources.
    """
    lines = [f"### U{number}", *_text(question), f"### S{number} {'o' if below else 'x'}", *_text(answer)]
    for rank, source in enumerate(below, start=1):
        lines.append(f"[{rank}] {source.title}: {source.entity}" if source.title else source.entity)
        lines.append(f"#L{source.level}")
        for name, shares in source.membership.items():
            value = f" #{source.values[name]}" if source.values[name] else ""
            lines.append(f"#{name}: ({','.join(map(str, shares))}){value}")
    return "\n".join(lines) + "\n"


def _text(text: str) -> list[str]:
    lines = [line.strip() for line in text.split("\n")]
    return [f"\\{line}" if line.startswith("#") else line for line in lines if line]
