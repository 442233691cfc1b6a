"""Data sets of questions that bring their own passages: which are kept, and the table of appendix J.

Source: Kim & Diaz 2025, §4 (questions with a single useful item are left out) and appendix J.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evenmesh_core.errors import InvalidInput
from evenmesh_lab.files.labels import Labels
from evenmesh_lab.files.queries import Query
from evenmesh_lab.studies.tables import Column, Table, text


@dataclass(frozen=True, slots=True)
class ProfileStatistics:
    """A row of the table; means and standard deviations (of the questions themselves) over questions."""

    name: str
    before: int
    """Questions before some were left out."""
    questions: int
    documents: float
    documents_std: float
    useful: float
    useful_std: float
    useful_percent: float
    """Mean over questions of the useful among a question's documents, in per cent."""


def enough_useful(
    queries: Sequence[Query], labels: Labels, *, least: int = 2, min_grade: float = 1.0
) -> list[Query]:
    """Return the questions with at least ``least`` useful passages among their own, in their order."""
    return [query for query in queries if len(_useful(query, labels, min_grade)) >= least]


def statistics(
    name: str, queries: Sequence[Query], labels: Labels, *, least: int = 2, min_grade: float = 1.0
) -> ProfileStatistics:
    """Return the statistics of appendix J of a data set, without questions with too few useful passages.

    Args:
        name: of the data set.
        queries: its questions, with their passages.
        labels: what is useful.
        least: useful passages that a question must have.
        min_grade: grade from which a passage is useful.

    Raises:
        InvalidInput: no question is left, or one brings no passages.
    """
    kept = enough_useful(queries, labels, least=least, min_grade=min_grade)
    if not kept:
        raise InvalidInput("queries", name, f"at least one with {least} useful passages")
    documents = np.array([len(query.passages) for query in kept], dtype=np.float64)
    useful = np.array([len(_useful(query, labels, min_grade)) for query in kept], dtype=np.float64)
    return ProfileStatistics(
        name=name,
        before=len(queries),
        questions=len(kept),
        documents=float(documents.mean()),
        documents_std=float(documents.std()),
        useful=float(useful.mean()),
        useful_std=float(useful.std()),
        useful_percent=float((100 * useful / documents).mean()),
    )


def table(rows: Sequence[ProfileStatistics], least: int = 2) -> Table:
    """Return the table of appendix J."""
    return Table.of(
        "statistics",
        "Data sets after filtering for fairness",
        rows,
        text("dataset", "data set", ("name",)),
        Column("questions", "#queries"),
        Column("before", "before filtering"),
        Column("documents", "avg # docs"),
        Column("documents_std", "std"),
        Column("useful", "avg # pos labels"),
        Column("useful_std", "std"),
        Column("useful_percent", "avg % pos labels"),
        note=f"Questions with at least {least} useful passages. Standard deviations are of the questions "
        "themselves, not estimates beyond them.",
    )


def _useful(query: Query, labels: Labels, min_grade: float) -> list[str]:
    grades: Mapping[str, float] = labels.grades.get(query.query_id, {})
    return [passage.id for passage in query.passages if grades.get(passage.id, 0.0) >= min_grade]
