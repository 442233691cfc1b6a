"""The demo corpus: seven small providers with the same facts about bicycle care.

Most questions have three to six equally useful passages from different providers, as in figure 1 of Kim and
Diaz, "Towards Fair RAG": a deterministic ranking shows the same provider every time.
README.md beside this file is the card of the corpus.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

from evenmesh.files.passages import read
from evenmesh.types.passage import Passage

TOPIC: Final = "topic"
"""Attribute of a passage's topic; passages of one topic state the same facts."""

_PASSAGES: Final = "passages.jsonl"
_QUESTIONS: Final = "questions.jsonl"


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its answers and the passages that answer it.

    Attributes:
        id: ``bike-q01`` to ``bike-q60``.
        question: as a user would type it.
        answers: one or more acceptable short answers, the best first; each occurs, ignoring case, in every
            useful passage.
        useful_passage_ids: the passages that answer it, in corpus order; at least one.
        providers: of those passages, in the same order; all different.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    useful_passage_ids: tuple[str, ...]
    providers: tuple[str, ...]


@contextmanager
def passages_path() -> Iterator[Path]:
    """Give the passages as a file for ``evenmesh ingest``, valid within the context."""
    with as_file(files(__name__) / _PASSAGES) as path:
        yield path


def passages() -> tuple[Passage, ...]:
    """Return all passages in corpus order; each has the attributes ``provider`` and ``topic``."""
    with passages_path() as path:
        return tuple(read(path))


def questions() -> tuple[Question, ...]:
    """Return all questions in order of their ids."""
    lines = (files(__name__) / _QUESTIONS).read_text(encoding="utf-8").splitlines()
    return tuple(_question(line) for line in lines)


def _question(line: str) -> Question:
    record = json.loads(line)
    return Question(
        id=record["id"],
        question=record["question"],
        answers=tuple(record["answers"]),
        useful_passage_ids=tuple(record["useful_passage_ids"]),
        providers=tuple(record["providers"]),
    )
