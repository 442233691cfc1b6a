"""Annotated conversations, in the format of Sakai 2023, figure 5 and in JSON lines.

The annotator writes lines that start with # into a plain transcript::

    ##### M002                          a topic: a new conversation
    ### U1                              a user turn
    Please list up sci-fi movies
    ### S1 o                            a system turn that looks useful (x: not useful)
    Back to the Future: https://...     text; its last word is where the nugget ends
    #L2                                 relevance level of the nugget that ends above
    #RATINGS: (0,0,0,1) #1.3M           its membership in the groups of an attribute, and a remark
    #ORIGIN: (0,1/2,0,0,0,1/2,0,0)

In JSON lines each line is one conversation, ``{"topic": ..., "turns": [...]}``; each turn is
``{"speaker": "user" or "system", "words": how many it has, "annotations": [...]}``; and each annotation is
``{"end": place of its last word within the turn, from 1, "level": ..., "entity": ..., "membership":
{attribute: [...]}}``, with numbers or fractions like "1/2".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Literal

from evenmesh_core.arrays import count
from evenmesh_core.errors import InvalidInput
from evenmesh_core.group_fairness.conversations import Nugget

GAINS: Mapping[int, float] = MappingProxyType({0: 0.0, 1: 0.5, 2: 1.0})
"""Gain of each relevance level (Sakai 2023, §6.2)."""

_SUM_SLACK = 1e-6
_MOST_GROUPS = 10_000
_MOST_CHARACTERS = 64
# Of more digits it is a power of ten that takes all memory, or years.
_LONG_EXPONENT = re.compile(r"[eE][+-]?[\d_]{4,}")
_TOPIC = re.compile(r"#####\s+(\S.*)")
_TURN = re.compile(r"###\s+([US])(\d{1,9})(?:\s+([ox]))?")
_LEVEL = re.compile(r"#L(\d{1,9})(?:\s.*)?")
_MEMBERSHIP = re.compile(r"#(\w+):\s*\(([^()]*)\)\s*(?:#.*)?")
_SPEAKERS: Mapping[str, Literal["user", "system"]] = MappingProxyType({"U": "user", "S": "system"})


@dataclass(frozen=True)
class Annotation:
    """A judged nugget of a system turn."""

    end: int
    """Place of its last word within the turn, from 1."""
    level: int
    """Relevance level, 0 not relevant."""
    entity: str | None
    """Its subject: its last word if that is a URL, or as given in JSON lines."""
    membership: Mapping[str, tuple[Fraction, ...]]
    """For each attribute the exact degrees of membership in its groups."""


@dataclass(frozen=True)
class Turn:
    """A turn of the user or the system."""

    speaker: Literal["user", "system"]
    words: int
    """Number of white-space tokens of its text."""
    annotations: tuple[Annotation, ...] = ()


@dataclass(frozen=True)
class Transcript:
    """An annotated conversation."""

    topic: str
    turns: tuple[Turn, ...]

    def nuggets(self, gains: Mapping[int, float] = GAINS) -> list[list[Nugget]]:
        """Return the nuggets of each system turn, with places counted from the start of the conversation.

        Args:
            gains: gain in [0, 1] of each relevance level.

        Raises:
            InvalidInput: a level without a gain.
        """
        turns = []
        spoken = 0
        for turn in self.turns:
            if turn.speaker == "system":
                turns.append([_nugget(annotation, spoken, gains) for annotation in turn.annotations])
            spoken += turn.words
        return turns


def parse_transcripts(text: str, source: str = "transcript") -> list[Transcript]:
    """Read conversations in the format of Sakai 2023, figure 5.

    Args:
        text: the annotated transcript, with Unix or Windows line ends.
        source: name of the file, for errors.

    Raises:
        InvalidInput: an unknown tag, a turn out of order, a tag without a nugget, or a membership that does
            not sum to 1; its argument is "source:line".
    """
    transcripts: list[_OpenTranscript] = []
    for where, line in _numbered(text, source):
        if topic := _TOPIC.fullmatch(line):
            transcripts.append(_OpenTranscript(topic.group(1)))
        elif not transcripts:
            raise InvalidInput(where, line, "a topic first, like '##### M002'")
        else:
            transcripts[-1].read(where, line)
    return [transcript.close() for transcript in transcripts]


def parse_jsonl(text: str, source: str = "transcript") -> list[Transcript]:
    """Read conversations in JSON lines, as the module's description says.

    Args:
        text: one JSON object for each line; blank lines are skipped.
        source: name of the file, for errors.

    Raises:
        InvalidInput: a line that is no such object; its argument is "source:line" and the place within it.
    """
    transcripts = []
    for where, line in _numbered(text, source):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InvalidInput(where, line, f"a JSON object ({error.msg} at column {error.colno})") from error
        except (RecursionError, ValueError) as error:
            allowed = "a JSON object, not nested too deeply, of numbers of less than 4,300 digits"
            raise InvalidInput(where, line, allowed) from error
        turns = [
            _turn(f"{where}: turns[{i}]", turn) for i, turn in enumerate(_get(where, record, "turns", list))
        ]
        transcripts.append(Transcript(_get(where, record, "topic", str), tuple(turns)))
    return transcripts


def format_jsonl(transcripts: Sequence[Transcript]) -> str:
    """Write conversations as JSON lines, which :func:`parse_jsonl` reads back as they were."""
    return "".join(
        json.dumps({"topic": t.topic, "turns": [_turn_record(turn) for turn in t.turns]}, ensure_ascii=False)
        + "\n"
        for t in transcripts
    )


@dataclass
class _OpenTurn:
    speaker: Literal["user", "system"]
    words: list[str] = field(default_factory=list)
    annotations: list[Annotation] = field(default_factory=list)
    membership: dict[str, tuple[Fraction, ...]] = field(default_factory=dict)
    """That of the last annotation."""


@dataclass
class _OpenTranscript:
    """A transcript while its lines are read."""

    topic: str
    turns: list[_OpenTurn] = field(default_factory=list)

    def read(self, where: str, line: str) -> None:
        if turn := _TURN.fullmatch(line):
            self._open_turn(where, line, turn.group(1), int(turn.group(2)))
        elif not self.turns:
            raise InvalidInput(where, line, "a turn first, like '### U1'")
        elif level := _LEVEL.fullmatch(line):
            self._open_annotation(where, line, int(level.group(1)))
        elif membership := _MEMBERSHIP.fullmatch(line):
            self._add_membership(where, line, membership.group(1), membership.group(2))
        elif line.startswith("#"):
            raise InvalidInput(where, line, "tags ##### topic, ### U1, ### S1 o, #L2 and #NAME: (0,1/2,1/2)")
        else:
            self.turns[-1].words.extend(line.split())

    def close(self) -> Transcript:
        turns = (Turn(turn.speaker, len(turn.words), tuple(turn.annotations)) for turn in self.turns)
        return Transcript(self.topic, tuple(turns))

    def _open_turn(self, where: str, line: str, letter: str, place: int) -> None:
        expected = f"{'US'[len(self.turns) % 2]}{len(self.turns) // 2 + 1}"
        if f"{letter}{place}" != expected:
            raise InvalidInput(where, line, f"turn {expected} next")
        self.turns.append(_OpenTurn(_SPEAKERS[letter]))

    def _open_annotation(self, where: str, line: str, level: int) -> None:
        turn = self.turns[-1]
        if turn.speaker != "system" or not turn.words:
            raise InvalidInput(where, line, "a level below text of a system turn")
        if turn.annotations and turn.annotations[-1].end == len(turn.words):
            raise InvalidInput(where, line, "one level for each nugget")
        entity = turn.words[-1] if "://" in turn.words[-1] else None
        turn.membership = {}
        turn.annotations.append(Annotation(len(turn.words), level, entity, turn.membership))

    def _add_membership(self, where: str, line: str, name: str, shares: str) -> None:
        turn = self.turns[-1]
        if not turn.annotations or turn.annotations[-1].end != len(turn.words):
            raise InvalidInput(where, line, "a membership below the level of its nugget")
        if name in turn.membership:
            raise InvalidInput(where, line, f"one membership in {name} for each nugget")
        turn.membership[name] = _shares(where, shares.split(","))


def _numbered(text: str, source: str) -> Iterator[tuple[str, str]]:
    if not isinstance(text, str):
        raise InvalidInput(source, text, "a text")
    # Not splitlines, which also ends lines at characters that names in JSON may hold.
    for place, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{source}:{place}", line.strip()


def exact(value: object) -> Fraction:
    """Read a number, or a fraction like 1/4, exactly: 0.1 is a tenth.

    Args:
        value: at most 64 characters as text, its exponent at most 999.

    Raises:
        ValueError: no number.
        ZeroDivisionError: a fraction of 0.
    """
    text = str(value).strip()
    if len(text) > _MOST_CHARACTERS or _LONG_EXPONENT.search(text):
        raise ValueError("a number of more characters or a larger exponent than is read")
    return Fraction(text)


def _shares(where: str, values: Sequence[object]) -> tuple[Fraction, ...]:
    if len(values) > _MOST_GROUPS:
        raise InvalidInput(where, f"{len(values)} shares", f"at most {_MOST_GROUPS:,}")
    shares = []
    for value in values:
        try:
            shares.append(exact(value))
        except (ValueError, ZeroDivisionError) as error:
            raise InvalidInput(where, value, "numbers or fractions like 1/2") from error
    # Not the sum of the fractions, whose denominator grows with every share.
    if any(not 0 <= share <= 1 for share in shares) or abs(math.fsum(map(float, shares)) - 1) > _SUM_SLACK:
        raise InvalidInput(where, [str(share) for share in shares], "shares from 0 that sum to 1")
    return tuple(shares)


def _nugget(annotation: Annotation, spoken: int, gains: Mapping[int, float]) -> Nugget:
    if annotation.level not in gains:
        raise InvalidInput("gains", dict(gains), f"a gain for level {annotation.level}")
    membership = {name: [float(share) for share in shares] for name, shares in annotation.membership.items()}
    return Nugget(spoken + annotation.end, gains[annotation.level], membership, annotation.entity)


def _get(where: str, record: object, key: str, kind: type, default: object = None) -> Any:
    """Read an entry of a JSON object; ``default`` stands for one that is left out or null."""
    if not isinstance(record, dict):
        raise InvalidInput(where, record, "a JSON object")
    value = record.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, kind):
        raise InvalidInput(f"{where}.{key}", value, f"a {kind.__name__}")
    return value


def _turn(where: str, record: object) -> Turn:
    speaker = _get(where, record, "speaker", str)
    if speaker not in ("user", "system"):
        raise InvalidInput(f"{where}.speaker", speaker, "'user' or 'system'")
    words = count(f"{where}.words", _get(where, record, "words", int), low=0)
    annotations = _get(where, record, "annotations", list, default=[])
    read = [_annotation(f"{where}.annotations[{i}]", entry, words) for i, entry in enumerate(annotations)]
    return Turn(speaker, words, tuple(read))


def _annotation(where: str, record: object, words: int) -> Annotation:
    end = count(f"{where}.end", _get(where, record, "end", int), high=words)
    level = count(f"{where}.level", _get(where, record, "level", int), low=0)
    entity = _get(where, record, "entity", str, default="") or None
    membership = {
        name: _shares(f"{where}.membership[{name!r}]", shares if isinstance(shares, list) else [shares])
        for name, shares in _get(where, record, "membership", dict).items()
    }
    return Annotation(end, level, entity, membership)


def _turn_record(turn: Turn) -> Mapping[str, object]:
    annotations = [
        {
            "end": a.end,
            "level": a.level,
            "entity": a.entity,
            "membership": {name: [str(share) for share in shares] for name, shares in a.membership.items()},
        }
        for a in turn.annotations
    ]
    return {"speaker": turn.speaker, "words": turn.words, "annotations": annotations}
