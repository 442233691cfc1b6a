"""Results that need not be computed again: candidates, answers and rankings, in one SQLite file per run.

Each result is in the file completely or not at all, even if the process is killed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from evenmesh_kit.storage import sqlite_file
from evenmesh_reranker.domain import Passage
from evenmesh_training.ium.plan import PlanError

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS passage (
    id TEXT PRIMARY KEY, title TEXT NOT NULL, text TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS candidates (
    retriever TEXT, question TEXT, depth INTEGER, passages TEXT NOT NULL, scores TEXT NOT NULL,
    PRIMARY KEY (retriever, question, depth)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS answer (
    writer TEXT, question TEXT, passages TEXT, text TEXT, PRIMARY KEY (writer, question, passages)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS scored (
    model TEXT, agent TEXT, question TEXT, depth INTEGER, scores TEXT NOT NULL,
    PRIMARY KEY (model, agent, question, depth)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Candidates:
    """A retriever's best passages for a question, best first, and its score of each."""

    passages: tuple[Passage, ...]
    scores: tuple[float, ...]


class ResultCache:
    """The file of a run, used by one thread; a context manager that closes it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        # A killed process loses nothing; after a power cut the last results may be computed again.
        self._file = sqlite_file.connect(path, synchronous="NORMAL")
        self._file.executescript(_SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def fact(self, name: str, value: str) -> None:
        """Record something that all results depend on, such as the version of a model.

        Raises:
            PlanError: it had another value before; results of both must not be mixed.
        """
        self._file.execute("INSERT OR IGNORE INTO fact VALUES (?, ?)", (name, value))
        before = str(self._one("SELECT value FROM fact WHERE name = ?", name)[0])
        if before != value:
            raise PlanError(
                [f"{self._path}: {name} was {before!r} and is {value!r} now; begin again in another folder"]
            )

    def facts(self) -> dict[str, str]:
        """Return everything that :meth:`fact` recorded, by name."""
        return {str(name): str(value) for name, value in self._file.execute("SELECT name, value FROM fact")}

    def keep_candidates(self, retriever: str, question: str, depth: int, found: Candidates) -> None:
        """Keep a retriever's best passages for a question."""
        self._file.execute("BEGIN IMMEDIATE")
        try:
            rows = [(one.id, one.title, one.text) for one in found.passages]
            self._file.executemany("INSERT OR IGNORE INTO passage VALUES (?, ?, ?)", rows)
            ids, scores = _ids([one.id for one in found.passages]), json.dumps(found.scores)
            self._keep("candidates", retriever, question, depth, ids, scores)
        except BaseException:
            self._file.execute("ROLLBACK")
            raise
        self._file.execute("COMMIT")

    def candidates(self, retriever: str, question: str, depth: int) -> Candidates | None:
        """Return kept candidates; None if there are none."""
        query = "SELECT passages, scores FROM candidates WHERE retriever = ? AND question = ? AND depth = ?"
        row = self._one(query, retriever, question, depth)
        if row is None:
            return None
        return Candidates(tuple(self.passages(json.loads(row[0]))), tuple(json.loads(row[1])))

    def passages(self, ids: Iterable[str]) -> list[Passage]:
        """Return kept passages by id."""
        return [Passage(*self._one("SELECT id, title, text FROM passage WHERE id = ?", one)) for one in ids]

    def keep_answer(self, writer: str, question: str, shown: Sequence[str], text: str | None) -> None:
        """Keep an answer from passages, in their order; None: it could not be answered from them."""
        self._keep("answer", writer, question, _ids(shown), text)

    def answer(self, writer: str, question: str, shown: Sequence[str]) -> tuple[str | None] | None:
        """Return a kept answer in a tuple of one; None if there is none."""
        query = "SELECT text FROM answer WHERE writer = ? AND question = ? AND passages = ?"
        row: tuple[str | None] | None = self._one(query, writer, question, _ids(shown))
        return row

    def keep_ranking(
        self, model: str, agent: str, question: str, depth: int, scores: Mapping[str, float]
    ) -> None:
        """Keep a model's scores of the candidates for an agent by id, best first."""
        text = json.dumps(dict(scores), ensure_ascii=False)
        self._keep("scored", model, agent, question, depth, text)

    def ranking(self, model: str, agent: str, question: str, depth: int) -> dict[str, float] | None:
        """Return kept scores by id, best first; None if there are none."""
        query = "SELECT scores FROM scored WHERE model = ? AND agent = ? AND question = ? AND depth = ?"
        row = self._one(query, model, agent, question, depth)
        return None if row is None else dict(json.loads(row[0]))

    def _keep(self, table: str, *values: object) -> None:
        marks = ", ".join("?" * len(values))
        self._file.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", values)  # noqa: S608 - our own names

    def _one(self, query: str, *values: object) -> Any:
        return self._file.execute(query, values).fetchone()


def _ids(ids: Sequence[str]) -> str:
    return json.dumps(list(ids), ensure_ascii=False)
