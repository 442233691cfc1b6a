"""Read topic files, and report all problems of a file at once."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evenmesh_lab.files import FileError
from evenmesh_lab.files.lines import lines

MAX_TURNS: Final = 100
_MAX_BYTES: Final = 8_192
_FIELDS: Final = frozenset({"topic", "question", "format", "turns", "useful"})


@dataclass(frozen=True, slots=True)
class Topic:
    """What a conversation is about.

    Attributes:
        name: one line, unique in the file.
        turns: the user's turns, whatever the answers; empty for the two-round protocol.
        question: of the two-round protocol.
        format: of the answers; empty for any.
        useful: ids of useful passages for each turn; None if unknown.
        line: in its file, from 1.
    """

    name: str
    turns: tuple[str, ...] = ()
    question: str = ""
    format: str = ""
    useful: tuple[tuple[str, ...], ...] | None = None
    line: int = 0

    @property
    def num_turns(self) -> int:
        """Number of planned turns."""
        return len(self.turns) or 2


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of a file in order, and its problems."""

    path: Path
    topics: tuple[Topic, ...]
    problems: tuple[FileError, ...] = ()


def read_topics(path: Path) -> Topics:
    """Read the topics of a file of JSON lines; never fail, but collect all problems.

    A line is ``{"topic": "M002", "question": "Please list up …", "format": "movie title, IMDb URL"}`` for the
    two-round protocol, ``format`` optional; or ``{"topic": "M002", "turns": ["…", "…"]}`` for fixed
    user turns. ``"useful": [["id", …], …]`` names useful passages turn by turn.
    """
    found: dict[str, Topic] = {}
    problems: list[FileError] = []
    try:
        for number, text in lines(path):
            wrong = list(_wrong(text))
            problems.extend(FileError(path, number, one) for one in wrong)
            if wrong:
                continue
            topic = _topic(json.loads(text), number)
            if topic.name in found:
                problems.append(
                    FileError(
                        path, number, f"repeats the topic {topic.name!r} of line {found[topic.name].line}"
                    )
                )
                continue
            found[topic.name] = topic
    except FileError as error:
        problems.append(error)
    return Topics(path, tuple(found.values()), tuple(problems))


def _topic(record: dict[str, Any], line: int) -> Topic:
    useful = record.get("useful")
    return Topic(
        name=" ".join(record["topic"].split()),
        turns=tuple(record.get("turns") or ()),
        question=record.get("question") or "",
        format=record.get("format") or "",
        useful=None if useful is None else tuple(map(tuple, useful)),
        line=line,
    )


def _wrong(text: str) -> Iterator[str]:
    """Yield the problems of a line."""
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        yield f"is not JSON: {error.msg} at column {error.colno}"
        return
    except (RecursionError, ValueError):
        yield "is nested too deeply, or has a number of too many digits"
        return
    if not isinstance(record, dict):
        yield "is not a JSON object"
        return
    if unknown := sorted(record.keys() - _FIELDS):
        yield f"has the unknown {', '.join(unknown)}; allowed: {', '.join(sorted(_FIELDS))}"
    topic = record.get("topic")
    if not isinstance(topic, str) or not topic.strip():
        yield "topic: must be text, not empty"
    turns, question = record.get("turns"), record.get("question")
    if (turns is None) == (question is None):
        yield "must have either a question or turns"
    if question is not None:
        yield from _text("question", question)
    if (wanted := record.get("format")) is not None:
        yield from _text("format", wanted)
        if turns is not None:
            yield "format: is for a question, not for turns"
    count = 2
    if turns is not None:
        if not isinstance(turns, list) or not 1 <= len(turns) <= MAX_TURNS:
            yield f"turns: must be a list of 1 to {MAX_TURNS} texts"
            return
        count = len(turns)
        for place, turn in enumerate(turns):
            yield from _text(f"turns[{place}]", turn)
    useful = record.get("useful")
    if useful is not None and (
        not isinstance(useful, list)
        or len(useful) != count
        or not all(isinstance(one, list) and all(isinstance(name, str) for name in one) for one in useful)
    ):
        yield f"useful: must be a list of {count} lists of passage ids, one for each turn"


def _text(field: str, value: object) -> Iterator[str]:
    if not isinstance(value, str) or not value.strip():
        yield f"{field}: must be text, not empty"
    elif len(value.encode("utf-8", "replace")) > _MAX_BYTES:
        yield f"{field}: must be at most {_MAX_BYTES:,} bytes"
