"""Annotated conversations, the outcomes of their turns, and their targets."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from evenmesh_core.errors import InvalidInput
from evenmesh_core.group_fairness import Attribute, Transcript, parse_jsonl, parse_transcripts
from evenmesh_core.group_fairness.divergences import distribution
from evenmesh_core.group_fairness.transcripts import exact
from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.lines import json_value, lines, whole_text
from evenmesh_lab.files.records import is_json_lines

_MOST_GROUPS: Final = 10_000
_TOPIC: Final = re.compile(r"#####\s+(\S.*)")
_SYSTEM_TURN: Final = re.compile(r"###\s+S\d+(?:\s+([ox]))?")
_PLACE: Final = re.compile(r"(?s)transcript:(\d+)(?:[:.]\s*(.*))?")


def read_conversations(path: Path) -> list[Transcript]:
    """Read the conversations of a file in the format of Sakai's figure 5, or of JSON lines (``*.jsonl``).

    Raises:
        FileError: an unknown tag, a turn out of order, a membership that does not sum to 1, with its line.
    """
    text = whole_text(path)
    try:
        found = parse_jsonl(text) if is_json_lines(path) else parse_transcripts(text)
    except InvalidInput as exc:
        raise _located(path, exc) from exc
    if not found:
        raise FileError(path, None, "has no conversation")
    return found


@dataclass(frozen=True, slots=True)
class TurnMarks:
    """Usefulness of a conversation's system turns: True for ``o``, False for ``x``, None if unmarked."""

    topic: str
    useful: tuple[bool | None, ...]


def read_marks(path: Path) -> list[TurnMarks]:
    """Read which system turns of a file's conversations are marked as useful (Sakai 2023, figures 2 to 4).

    Annotations of nuggets are ignored: they may be incomplete.

    Raises:
        FileError: it has no conversation.
    """
    found: list[tuple[str, list[bool | None]]] = []
    for number, line in lines(path):
        text = line.strip()
        if topic := _TOPIC.fullmatch(text):
            found.append((topic.group(1), []))
        elif turn := _SYSTEM_TURN.fullmatch(text):
            if not found:
                raise FileError(path, number, "is a turn of no topic; allowed: a line like ##### M002 before")
            found[-1][1].append({"o": True, "x": False}.get(turn.group(1) or ""))
    if not found:
        raise FileError(path, None, "has no conversation")
    return [TurnMarks(topic, tuple(useful)) for topic, useful in found]


def read_attributes(path: Path) -> dict[str, Attribute]:
    """Read the targets of a JSON file: ``{NAME: {"gold": [shares or "1/4"], "divergence": "rnod"}}``.

    ``gold`` may be left out where ``groups``, their number, is given: the same share for each. ``weights`` in
    place of ``gold`` are divided by their sum. The divergence is "rnod" (the default) or "nmd" where groups
    are ordered, "jsd" where they are not.

    Raises:
        FileError: other content, or shares that do not sum to 1.
    """
    record: Any = json_value(path, None, whole_text(path))
    if not isinstance(record, dict) or not record:
        raise FileError(path, None, 'must be an object like {"RATINGS": {"groups": 4, "divergence": "rnod"}}')
    return {name: _attribute(path, name, entry) for name, entry in record.items()}


def uniform_attributes(transcripts: Mapping[str, list[Transcript]]) -> dict[str, Attribute]:
    """Return a uniform target, compared by RNOD, for each attribute of the conversations: the default.

    Args:
        transcripts: conversations by system.
    """
    sizes: dict[str, int] = {}
    for conversations in transcripts.values():
        for transcript in conversations:
            for turn in transcript.turns:
                for annotation in turn.annotations:
                    for name, shares in annotation.membership.items():
                        sizes.setdefault(name, len(shares))
    return {name: Attribute([1 / size] * size, "rnod") for name, size in sizes.items()}


def _attribute(path: Path, name: str, entry: object) -> Attribute:
    if not isinstance(entry, dict) or entry.keys() - {"gold", "groups", "weights", "divergence"}:
        raise FileError(path, None, f"{name}: must be an object of gold, groups or weights, and divergence")
    given = [key for key in ("gold", "groups", "weights") if key in entry]
    if len(given) != 1:
        raise FileError(
            path, None, f"{name}: has {' and '.join(given) or 'none'} of gold, groups and weights"
        )
    measure = entry.get("divergence", "rnod")
    if measure not in ("rnod", "nmd", "jsd"):
        raise FileError(path, None, f"{name}.divergence: is {measure!r}; allowed: rnod, nmd, jsd")
    value = entry[given[0]]
    try:
        if given[0] == "groups":
            if not isinstance(value, int) or isinstance(value, bool) or not 2 <= value <= _MOST_GROUPS:
                allowed = f"whole numbers from 2 to {_MOST_GROUPS:,}"
                raise FileError(path, None, f"{name}.groups: is {reprlib.repr(value)}; allowed: {allowed}")
            gold = [1 / value] * value
        else:
            if not isinstance(value, list) or not 1 <= len(value) <= _MOST_GROUPS:
                raise FileError(path, None, f"{name}.{given[0]}: allowed: lists of 1 to {_MOST_GROUPS:,}")
            shares = [exact(share) for share in value]
            total = sum(shares, Fraction(0)) if given[0] == "weights" else Fraction(1)
            gold = [float(share / total) for share in shares]
        distribution(f"{name}.{given[0]}", gold)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as exc:
        if isinstance(exc, FileError):
            raise
        shown = reprlib.repr(value)
        detail = str(exc) if isinstance(exc, InvalidInput) else f"{name}.{given[0]}: is {shown}"
        raise FileError(path, None, f"{detail}; allowed: numbers or fractions like 1/4") from exc
    return Attribute(gold, measure)


def _located(path: Path, exc: InvalidInput) -> FileError:
    """Return the error with the line that the parser names in the argument: ``transcript:LINE…``."""
    found = _PLACE.fullmatch(exc.argument)
    if found is None:
        return FileError(path, None, str(exc))
    within = f"{found.group(2)} is" if found.group(2) else "is"
    shown = repr(exc.value) if len(repr(exc.value)) <= 80 else f"{repr(exc.value)[:77]}…"
    return FileError(path, int(found.group(1)), f"{within} {shown}; allowed: {exc.allowed}")
