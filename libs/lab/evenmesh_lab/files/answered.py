"""Answers of a retrieve, rerank and generate run, and what they took: records of ``evenmesh eval rag``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field

from evenmesh_lab.files.records import Id, Record, read

Rank = Annotated[int, Field(ge=1)]
Milliseconds = Annotated[float | None, Field(ge=0)]


class _SystemRecord(Record):
    """One question and one way to answer it."""

    dataset: Id
    query_id: Id
    retriever: Id
    reranker: Id
    n: Rank
    """Passages retrieved and ranked."""
    k: Rank
    """Passages given to the model."""
    model: Id


class AnsweredRecord(_SystemRecord):
    """One question, retrieved, ranked and answered one way."""

    group: str = ""
    """Part of the data set."""
    passages: Annotated[int, Field(ge=0)]
    """Passages found, at most n."""
    context: list[Id] = Field(default_factory=list)
    """Passages the model was given, best first."""
    answer: str | None = None
    """None where there is none."""
    failure: str | None = None
    """Why there is none."""
    references: list[str] = Field(default_factory=list)
    """Right answers of an open question."""
    options: dict[str, str] | None = None
    """Of a multiple-choice question."""
    right: str | None = None
    """Letter of the right option."""
    answerable: bool = True
    """False where it is right to abstain."""
    first_before: Rank | None = None
    """Rank of the first passage that holds a right answer, as retrieved; None where none does."""
    first_after: Rank | None = None
    """The same, as reranked."""
    gold: Annotated[int, Field(ge=0)] = 0
    """Passages known to hold the answer; 0 where that is not known."""
    gold_before: list[Rank] = Field(default_factory=list)
    """Ranks of those found, as retrieved."""
    gold_after: list[Rank] = Field(default_factory=list)
    """The same, as reranked."""


class TimesRecord(_SystemRecord):
    """The times of one :class:`AnsweredRecord`; another run takes other times."""

    retrieve_ms: Milliseconds = None
    """None where it is not known; so below."""
    rerank_ms: Milliseconds = None
    """0 without a reranker."""
    generate_ms: Milliseconds = None


A = TypeVar("A", AnsweredRecord, TimesRecord)


def read_all(path: Path, kind: type[A]) -> list[A]:
    """Read all answers, or all times, of a file.

    Raises:
        FileError: an invalid record.
    """
    return [record for _, record in read(path, kind)]
