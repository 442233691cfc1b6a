"""Runs of agents: what each made of the lists that a search engine gave it.

One record is one agent, one query and one way of ranking. The offline and online commands of iterative
utility maximisation write them, the study of agents reads them.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from raglab.files.failure import FileError
from raglab.files.records import Id, Record, is_json_lines, is_parquet, read

BM25: Final = "bm25"
DENSE: Final = "dense"
PER_AGENT: Final = "per-agent"
PER_DATASET: Final = "per-dataset"
URAG: Final = "urag"
OFFLINE: Final = "offline-ium"
ONLINE: Final = "online-ium"

SYSTEMS: Final = (BM25, DENSE, PER_AGENT, PER_DATASET, URAG, OFFLINE, ONLINE)
"""Ways of ranking that the paper's table 1 has, in its order. Others have names of their own."""


class AgentRunRecord(Record):
    """What one agent made of the list that it was given for one query."""

    task_id: Id
    model_id: Id
    query_id: Id
    system: Id
    """How the list was ranked: one of :data:`SYSTEMS`, or a name of one's own."""
    ranking: list[Id]
    """Passage ids, best first, as deep as they were kept; may be empty where nothing was found."""
    shown: Annotated[int | None, Field(ge=0)] = None
    """How many of them, from the first, the agent was given; None: all."""
    utility: Annotated[float | None, Field(ge=0, le=1)] = None
    """What the list was worth to the agent (exact match, accuracy, …); None where it gave no answer."""
    answer: str | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the training that the ranking comes from; 0 where nothing was trained."""
    dataset: str | None = None
    """What the query comes from; agents of one data set have queries in common."""
    iteration: Annotated[int | None, Field(ge=0)] = None
    """Rounds of training, 0 before the first; None where that does not apply."""
    personalised: bool = True
    """Whether the ranking was told whom it is for."""
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
        """What no two records have in common."""
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
    """The records of files of JSON lines (``.jsonl``, ``.gz`` too) or of Parquet, in their order.

    A record that is there again counts once: runs of several seeds share those of a retriever.

    Raises:
        FileError: a file of another kind, a record that is none, a passage twice in a ranking, more shown
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
    """A record as one line of JSON, without its end; what is unset is left out."""
    return record.model_dump_json(exclude_none=True)


def write_agent_runs(records: Iterable[AgentRunRecord], path: Path) -> None:
    """Writes records as JSON lines (``.gz`` too) or as Parquet; the file is there whole, or as it was.

    Raises:
        ValueError: the name's ending is none of these.
        OSError: the file cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if is_parquet(path):
            _write_parquet(records, beside)
        elif is_json_lines(path):
            data = "".join(f"{agent_run_line(one)}\n" for one in records).encode()
            # without a date, equal records are equal bytes
            beside.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        else:
            raise ValueError(f"{path}: runs are .jsonl, .jsonl.gz or .parquet files")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _write_parquet(records: Iterable[AgentRunRecord], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {
        "task_id": pa.string(),
        "model_id": pa.string(),
        "query_id": pa.string(),
        "system": pa.string(),
        "ranking": pa.list_(pa.string()),
        "shown": pa.int64(),
        "utility": pa.float64(),
        "answer": pa.string(),
        "seed": pa.int64(),
        "dataset": pa.string(),
        "iteration": pa.int64(),
        "personalised": pa.bool_(),
        "batch_size": pa.int64(),
        "position": pa.int64(),
        "reranker_version": pa.string(),
        "agent_version": pa.string(),
    }
    rows = [one.model_dump() for one in records]
    pq.write_table(
        pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()}), path
    )
