"""Runs of agents: the answers that each gave to the lists of a search engine.

One record is one agent, one query and one way of ranking. The offline and online commands of iterative
utility maximisation write them, the study of agents reads them.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.records import (
    Id,
    Record,
    is_json_lines,
    is_parquet,
    read,
    replace_file,
    write_parquet,
)

BM25: Final = "bm25"
DENSE: Final = "dense"
PER_AGENT: Final = "per-agent"
PER_DATASET: Final = "per-dataset"
URAG: Final = "urag"
OFFLINE: Final = "offline-ium"
ONLINE: Final = "online-ium"
ORACLE: Final = "oracle"
"""Passages by their utility to the agent, which is known only after it was asked: what ranking can reach."""

SYSTEMS: Final = (BM25, DENSE, PER_AGENT, PER_DATASET, URAG, OFFLINE, ONLINE)
"""Ways of ranking that the paper's table 1 has, in its order. Others have names of their own."""


class AgentRunRecord(Record):
    """One agent's answer to one query from one list."""

    task_id: Id
    model_id: Id
    query_id: Id
    system: Id
    """The system that ranked the list: one of :data:`SYSTEMS`, or another name."""
    ranking: list[Id]
    """Passage ids, best first, as deep as they were kept; may be empty where nothing was found."""
    shown: Annotated[int | None, Field(ge=0)] = None
    """Number of them that the agent was given, from the first; None: all."""
    utility: Annotated[float | None, Field(ge=0, le=1)] = None
    """Utility of the list to the agent (exact match, accuracy, …); None without an answer."""
    answer: str | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the training of the ranking; 0 where nothing was trained."""
    dataset: str | None = None
    """Data set of the query; agents of one data set share queries."""
    iteration: Annotated[int | None, Field(ge=0)] = None
    """Rounds of training, 0 before the first; None where that does not apply."""
    personalised: bool = True
    """Whether the ranking knew its agent."""
    batch_size: Annotated[int | None, Field(ge=1)] = None
    """Queries between two updates, b; online only."""
    position: Annotated[int | None, Field(ge=0)] = None
    """Place in the stream of queries, from 0; online only."""
    reranker_version: str | None = None
    agent_version: str | None = None
    """Version of the agent's generator."""

    @property
    def agent(self) -> str:
        """Name of the agent."""
        return f"{self.task_id}/{self.model_id}"

    @property
    def key(self) -> tuple[object, ...]:
        """Key of the record."""
        return (
            self.task_id,
            self.model_id,
            self.query_id,
            self.system,
            self.iteration,
            self.personalised,
            self.batch_size,
            self.seed,
        )


def read_agent_runs(paths: Sequence[Path]) -> list[AgentRunRecord]:
    """Read the records of files of JSON lines (``.jsonl``, ``.gz`` too) or Parquet, in their order.

    A record that is there again counts once: runs of several seeds share those of a retriever.

    Raises:
        FileError: a file of another kind, an invalid record, a passage twice in a ranking, more shown
            than ranked, or two records of one list that differ.
    """
    found: list[AgentRunRecord] = []
    seen: dict[tuple[object, ...], tuple[Path, int, AgentRunRecord]] = {}
    for path in paths:
        if not is_parquet(path) and not is_json_lines(path):
            raise FileError(path, None, "is neither .jsonl nor .parquet")
        for number, record in read(path, AgentRunRecord):
            if len(set(record.ranking)) < len(record.ranking):
                raise FileError(path, number, "ranks a passage twice")
            if record.shown is not None and record.shown > len(record.ranking):
                raise FileError(
                    path, number, f"shown: {record.shown} of a ranking of {len(record.ranking)} passages"
                )
            if record.key in seen:
                other, before, same = seen[record.key]
                if record == same:
                    continue
                raise FileError(
                    path,
                    number,
                    f"has {record.agent!r}, query {record.query_id!r}, {record.system!r} otherwise than "
                    f"{other}:{before}",
                )
            seen[record.key] = (path, number, record)
            found.append(record)
    return found


def agent_run_line(record: AgentRunRecord) -> str:
    """Return a record as one line of JSON without line end; unset fields are omitted."""
    return record.model_dump_json(exclude_none=True)


def write_agent_runs(records: Iterable[AgentRunRecord], path: Path) -> None:
    """Write records as JSON lines (``.gz`` too) or Parquet, replacing the file atomically.

    Raises:
        ValueError: the name ends with none of these.
        OSError: the file cannot be written.
    """
    if is_parquet(path):
        write_parquet(AgentRunRecord, records, path)
    elif is_json_lines(path):
        data = "".join(f"{agent_run_line(one)}\n" for one in records).encode()
        # without a date, equal records give equal bytes
        content = gzip.compress(data, mtime=0) if path.suffix == ".gz" else data
        replace_file(path, lambda target: target.write_bytes(content))
    else:
        raise ValueError(f"{path}: runs are .jsonl, .jsonl.gz or .parquet files")
