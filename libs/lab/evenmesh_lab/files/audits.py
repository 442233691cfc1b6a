"""Audits: the rankings each query was given, gathered query by query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Final

from evenmesh_lab.files import trec
from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.records import AuditRecord, is_json_lines, is_parquet, query_ids, read


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
    numbered: bool = False
    """Whether the rankings are numbered samples, which come as often as they are probable."""


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
    """The pool of each system's rankings, where the files have it."""


_POOLED: Final = MappingProxyType({"system": "", "sample": None, "pool": None})
"""Fields of a record that do not count where everything is one system's."""


def read_audits(paths: Sequence[Path], *, pool: bool = False) -> Iterator[QueryAudit]:
    """Yield the queries of audit files: TREC runs or JSON lines, plain or gzip, or Parquet (``*.parquet``).

    Rankings without a ``sample`` that repeat query, system and α, in several files or lines, are further
    samples. One file whose records of each query are adjacent is read query by query, in constant memory;
    anything else is gathered first, about 100 bytes a ranking and 8 a passage in it.

    Args:
        paths: one file or more.
        pool: whether everything is one system's: files, tags and systems are samples of it.

    Raises:
        FileError: an invalid record; a passage twice in a ranking; rankings of different length of one
            query, system and α; a sample given twice.
    """
    if len(paths) == 1 and _grouped(paths[0]):
        yield from _streamed(paths[0], pool)
        return
    gathered: dict[str, _Gathering] = {}
    known: dict[str, str] = {}
    for path in paths:
        for line, record in _rows(path, pool):
            gathering = gathered.get(record.query_id)
            if gathering is None:
                gathering = gathered[record.query_id] = _Gathering(path, line, record)
            gathering.take(path, line, record, known)
    yield from (gathering.audit for gathering in gathered.values())


def _streamed(path: Path, pool: bool) -> Iterator[QueryAudit]:
    for _, rows in groupby(_rows(path, pool), key=lambda row: row[1].query_id):
        gathering: _Gathering | None = None
        for line, record in rows:
            gathering = gathering or _Gathering(path, line, record)
            gathering.take(path, line, record, None)
        if gathering is not None:
            yield gathering.audit


class _Gathering:
    """A query while its records are read."""

    def __init__(self, path: Path, line: int, first: AuditRecord) -> None:
        self.audit = QueryAudit(first.query_id, path, line)
        self._samplings: dict[tuple[str, float | None], Sampling] = {}
        self._samples: set[tuple[str, float | None, int]] = set()

    def take(self, path: Path, line: int, row: AuditRecord, known: dict[str, str] | None) -> None:
        """Add a record; ``known`` keeps equal ids once in memory."""
        key = (row.system, row.alpha)
        sampling = self._samplings.get(key)
        if sampling is None:
            sampling = self._samplings[key] = Sampling(*key)
            self.audit.samplings.append(sampling)
        ranking = tuple(row.ranking)
        if len(set(ranking)) != len(ranking):
            twice = next(one for place, one in enumerate(ranking) if one in ranking[:place])
            raise FileError(path, line, f"ranks {twice!r} twice")
        if sampling.rankings and len(sampling.rankings[0]) != len(ranking):
            raise FileError(
                path,
                line,
                f"ranks {len(ranking)} passages for query {row.query_id!r}, where its other samples rank "
                f"{len(sampling.rankings[0])}",
            )
        if row.sample is not None:
            if (*key, row.sample) in self._samples:
                raise FileError(
                    path,
                    line,
                    f"gives sample {row.sample} of query {row.query_id!r} again; compare runs of one system "
                    "under different names of it, or pool all rankings",
                )
            self._samples.add((*key, row.sample))
            sampling.numbered = True
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


def _rows(path: Path, pool: bool) -> Iterator[tuple[int, AuditRecord]]:
    if is_parquet(path) or is_json_lines(path):
        rows = read(path, AuditRecord)
    else:
        found = trec.read_run(path)
        rows = ((line, AuditRecord.model_construct(**ranking._asdict())) for line, ranking in found)
    for line, record in rows:
        yield line, record.model_copy(update=_POOLED) if pool else record


def _grouped(path: Path) -> bool:
    """Return whether the records of each query are adjacent."""
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
