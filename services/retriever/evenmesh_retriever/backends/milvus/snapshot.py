"""Read a collection in Milvus as one request sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from evenmesh.wire.errors import InvalidField, NotFound, Unavailable
from evenmesh_retriever.backends.milvus import rows as rows_of
from evenmesh_retriever.backends.milvus.connection import MOST, Connection, Row
from evenmesh_retriever.backends.milvus.expressions import allowing, has, one_of
from evenmesh_retriever.backends.milvus.registry import Record, Registry
from evenmesh_retriever.domain import CollectionInfo, Filter, FloatArray, IntArray, Passage, Scored
from evenmesh_retriever.ports import Key

_IDS_AT_ONCE: Final = 500
_MARGIN: Final = 16
# More than float32 sums are ever off, for scores in the tens.
_ROUNDING: Final = 1e-4


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for."""

    field: str
    """Field of the vectors."""
    query: Any
    """A vector, or a text for a field that Milvus makes from text."""
    scores: Callable[[Sequence[Row]], FloatArray]
    """The scores of rows that were found, ``[n]``."""
    parameters: Callable[[int], Mapping[str, Any]] = lambda _: {}
    """Parameters of a search, by the number of its results."""
    fields: tuple[str, ...] = ()
    """What ``scores`` needs of the rows, besides ``distance``."""
    fill: bool = True
    """Whether passages that Milvus does not find follow with a score of 0."""


class MilvusSnapshot:
    """A collection for the time of one request; it is looked up when it is first used, in that thread.

    Milvus has no versions to read from. What this can do is to notice: the record of the collection is read
    before and after each search, and where it has changed in between :attr:`unsettled` says so.

    Its rows are numbered as they are found.

    Args:
        connection: to the Milvus.
        registry: its records.
        key: the collection.
    """

    def __init__(self, connection: Connection, registry: Registry, key: Key) -> None:
        self._connection = connection
        self._registry = registry
        self._key = key
        self._record: Record | None = None
        self._rows: dict[str, int] = {}
        self._passages: list[Passage] = []
        self.unsettled = False
        """Whether the collection was changed while it was searched."""

    @property
    def record(self) -> Record:
        """The record as it was at first use.

        Raises:
            NotFound: there is no such collection, field ``collection``.
        """
        if self._record is None:
            self._record = self._registry.read(self._key)
            if self._record is None:
                raise NotFound("collection", f"there is no collection {self._key[1]!r}")
            self.unsettled = self._record.changing
        return self._record

    @property
    def info(self) -> CollectionInfo:
        """The collection at this version."""
        return self.record.info()

    def __len__(self) -> int:
        return self.record.num_passages

    def passages(self, rows: Iterable[int]) -> list[Passage]:
        """Return the passages of some rows that were found."""
        return [self._passages[row] for row in rows]

    def passages_of(self, ids: Sequence[str]) -> list[Passage]:
        """Return the passages of some ids, each given once; unknown ids are left out."""
        found = []
        for begin in range(0, len(ids), _IDS_AT_ONCE):
            some = one_of(rows_of.ID, ids[begin : begin + _IDS_AT_ONCE])
            found += [
                rows_of.passage_of(row)
                for row in self._connection.query(self.record.place, some, rows_of.FIELDS)
            ]
        return found

    def by_id(self, rows: IntArray) -> IntArray:
        """Return some rows that were found, by ascending passage id."""
        return np.array(sorted(rows.tolist(), key=lambda row: self._passages[row].id), dtype=np.int64)

    def places(self, rows: IntArray) -> IntArray:
        """Return numbers of some rows that were found that ascend as their passage ids do."""
        places = np.empty(len(rows), dtype=np.int64)
        places[np.argsort([self._passages[row].id for row in rows.tolist()], kind="stable")] = np.arange(
            len(rows)
        )
        return places

    def pages(self, size: int, prefix: str = "") -> Iterator[list[Passage]]:
        """Yield passages whose ids begin with ``prefix`` by ascending id, at most ``size`` at a time.

        This keeps none of them.

        Raises:
            Unavailable: the collection is being changed, or was while it was read.
        """
        place = self.record.place
        for page in self._connection.pages(place, rows_of.ID, rows_of.FIELDS, size, prefix):
            yield [rows_of.passage_of(row) for row in page]
        self._look_again()
        if self.unsettled:
            raise Unavailable(
                "COLLECTION_CHANGED",
                f"collection {self._key[1]!r} changed during the read, so its passages may be of two "
                "versions; read it again while nothing is ingested",
            )

    def find(self, question: Question, n: int, where: Filter | None) -> Scored:
        """Return the best ``n``, equal scores by ascending id.

        Args:
            question: what is looked for.
            n: how many.
            where: which passages may be found; None for all.

        Raises:
            InvalidField: no passage has an attribute of the filter.
        """
        expression = allowing(where)
        hits = self._hits(question, n, expression)
        ids = [hit[rows_of.ID] for hit in hits]
        scores = question.scores(hits)
        order = sorted(range(len(ids)), key=lambda at: (-scores[at], ids[at]))[:n]
        found = [hits[at] for at in order]
        found_scores = [float(scores[at]) for at in order]
        if question.fill and len(found) < n:
            known = set(ids)
            first = self._connection.first(self.record.place, rows_of.ID, expression, rows_of.FIELDS, n)
            rest = [row for row in first if row[rows_of.ID] not in known][: n - len(found)]
            found += rest
            found_scores += [0.0] * len(rest)
        if where is not None and not found:
            self._check(where)
        self._look_again()
        return Scored(np.array([self._row(row) for row in found], dtype=np.int64), np.array(found_scores))

    def _hits(self, question: Question, n: int, expression: str) -> list[Row]:
        """Return the best ``n``, a few more, and all that may score as high as the last of them."""
        most = n + _MARGIN
        while True:
            hits = self._connection.search(
                self.record.place,
                question.field,
                question.query,
                expression,
                [*rows_of.FIELDS, *question.fields],
                most,
                question.parameters(most),
            )
            if len(hits) < most or most == MOST:
                return hits
            if abs(hits[n - 1]["distance"] - hits[-1]["distance"]) > _ROUNDING:
                return hits
            most = min(4 * most, MOST)

    def _row(self, row: Row) -> int:
        one = row[rows_of.ID]
        if one not in self._rows:
            self._rows[one] = len(self._passages)
            self._passages.append(rows_of.passage_of(row))
        return self._rows[one]

    def _check(self, where: Filter) -> None:
        for number, condition in enumerate(where.conditions):
            if not self._connection.query(self.record.place, has(condition.attribute), [rows_of.ID], most=1):
                raise InvalidField(
                    f"filter.conditions[{number}].attribute",
                    f"no passage of collection {self._key[1]!r} has an attribute {condition.attribute!r}",
                )

    def _look_again(self) -> None:
        record = self._registry.read(self._key)
        self.unsettled |= record is None or record.changing or record.version != self.record.version
