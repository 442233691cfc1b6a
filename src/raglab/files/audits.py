"""Audits: the rankings each query was given, gathered query by query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from raglab.files import trec
from raglab.files.failure import FileError
from raglab.files.records import AuditRecord, is_json_lines, is_parquet, query_ids, read


@dataclass(slots=True)
class Sampling:
    """The N rankings one system gave one query at one α; the columns have an entry for each ranking."""

    system: str
    alpha: float | None
    rankings: list[tuple[str, ...]] = field(default_factory=list)
    """Passage ids, best first; all of one length."""
    answers: list[str | None] = field(default_factory=list)
    utilities: list[float | None] = field(default_factory=list)
    log_probabilities: list[float | None] = field(default_factory=list)


@dataclass(slots=True)
class QueryAudit:
    """All that is known of one query."""

    query_id: str
    path: Path
    """File of the first record."""
    line: int
    """Line (row) of the first record."""
    samplings: list[Sampling] = field(default_factory=list)
    """In the order of the files."""
    references: tuple[str, ...] = ()
    pools: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What the rankings of a system were drawn from, by system, where the files say so."""


class _Row(NamedTuple):
    path: Path
    line: int
    query_id: str
    system: str
    alpha: float | None
    sample: int | None
    ranking: list[str]
    answer: str | None = None
    references: list[str] | None = None
    utility: float | None = None
    log_probability: float | None = None
    pool: list[str] | None = None


def read_audits(paths: Sequence[Path], *, pool: bool = False) -> Iterator[QueryAudit]:
    """The queries of audit files: TREC runs, JSON lines (``*.jsonl``), both plain or gzip, or Parquet
    (``*.parquet``).

    Rankings without a ``sample`` that repeat query, system and α, in several files or lines, are further
    samples.
    One file in which the records of each query stand together is read query by query, in memory that does not
    grow with the number of queries; anything else is gathered first, about 100 bytes a ranking and 8 a place.

    Args:
        paths: one file or more.
        pool: whether everything is one system's: files, tags and systems are samples of it.

    Raises:
        FileError: a record that is none; a passage twice in a ranking; rankings of different length of one
            query, system and α; a sample given twice.
    """
    if len(paths) == 1 and _grouped(paths[0]):
        yield from _streamed(_rows(paths[0], pool))
        return
    gathered: dict[str, _Gathering] = {}
    known: dict[str, str] = {}
    for path in paths:
        for row in _rows(path, pool):
            gathering = gathered.get(row.query_id)
            if gathering is None:
                gathering = gathered[row.query_id] = _Gathering(row)
            gathering.take(row, known)
    yield from (gathering.audit for gathering in gathered.values())


def _streamed(rows: Iterator[_Row]) -> Iterator[QueryAudit]:
    open_query: _Gathering | None = None
    for row in rows:
        if open_query is None or row.query_id != open_query.audit.query_id:
            if open_query is not None:
                yield open_query.audit
            open_query = _Gathering(row)
        open_query.take(row, None)
    if open_query is not None:
        yield open_query.audit


class _Gathering:
    """A query while its records are read."""

    def __init__(self, row: _Row) -> None:
        self.audit = QueryAudit(row.query_id, row.path, row.line)
        self._samplings: dict[tuple[str, float | None], Sampling] = {}
        self._samples: set[tuple[str, float | None, int]] = set()

    def take(self, row: _Row, known: dict[str, str] | None) -> None:
        """Adds a record; ``known`` ids are kept once where much is kept."""
        key = (row.system, row.alpha)
        sampling = self._samplings.get(key)
        if sampling is None:
            sampling = self._samplings[key] = Sampling(*key)
            self.audit.samplings.append(sampling)
        ranking = tuple(row.ranking)
        if len(set(ranking)) != len(ranking):
            twice = next(one for place, one in enumerate(ranking) if one in ranking[:place])
            raise FileError(row.path, row.line, f"ranks {twice!r} twice")
        if sampling.rankings and len(sampling.rankings[0]) != len(ranking):
            raise FileError(
                row.path,
                row.line,
                f"ranks {len(ranking)} passages for query {row.query_id!r}, where its other samples rank "
                f"{len(sampling.rankings[0])}",
            )
        if row.sample is not None:
            if (*key, row.sample) in self._samples:
                raise FileError(
                    row.path, row.line, f"gives sample {row.sample} of query {row.query_id!r} again"
                )
            self._samples.add((*key, row.sample))
        if known is not None:
            ranking = tuple([known.setdefault(one, one) for one in ranking])
        sampling.rankings.append(ranking)
        sampling.answers.append(row.answer)
        sampling.utilities.append(row.utility)
        sampling.log_probabilities.append(row.log_probability)
        if row.references and not self.audit.references:
            self.audit.references = tuple(row.references)
        if row.pool:
            self.audit.pools.setdefault(row.system, tuple(row.pool))


def _rows(path: Path, pool: bool) -> Iterator[_Row]:
    if is_parquet(path) or is_json_lines(path):
        for line, one in read(path, AuditRecord):
            yield _Row(
                path,
                line,
                one.query_id,
                "" if pool else one.system,
                one.alpha,
                None if pool else one.sample,
                one.ranking,
                one.answer,
                one.references,
                one.utility,
                one.log_probability,
                None if pool else one.pool,
            )
        return
    for line, ranking in trec.read_run(path):
        if pool:
            ranking = ranking._replace(system="", sample=None)
        yield _Row(path, line, *ranking)


def _grouped(path: Path) -> bool:
    """Whether the records of each query stand together."""
    closed: set[bytes | str] = set()
    current: bytes | str | None = None
    ids = query_ids(path) if is_parquet(path) or is_json_lines(path) else trec.query_ids(path)
    for query in ids:
        if query is None:
            return False
        if query != current:
            if query in closed:
                return False
            closed.add(query)
            current = query
    return True
