"""What was found out and need not be asked again: candidates, answers, rankings; one SQLite file of a run.

Each is there whole or not at all, whenever the process is killed: a round costs what is new.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from services.reranker.domain import Passage
from services.reranker.training.plan import PlanError

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS passage (
    id TEXT PRIMARY KEY, title TEXT NOT NULL, text TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS candidates (
    retriever TEXT, question TEXT, depth INTEGER, passages TEXT NOT NULL,
    PRIMARY KEY (retriever, question, depth)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS answer (
    writer TEXT, question TEXT, passages TEXT, text TEXT, PRIMARY KEY (writer, question, passages)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ranking (
    model TEXT, agent TEXT, question TEXT, depth INTEGER, passages TEXT NOT NULL,
    PRIMARY KEY (model, agent, question, depth)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


class Evidence:
    """The file, held by one thread; to be closed, as by a ``with`` block."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        # Autocommit: a statement is a transaction, unless one is opened.
        self._file = sqlite3.connect(path, isolation_level=None)
        self._file.execute("PRAGMA journal_mode=WAL")
        # Of a process that is killed nothing is lost; after a power cut the last items may be asked again.
        self._file.execute("PRAGMA synchronous=NORMAL")
        self._file.executescript(_SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def fact(self, name: str, value: str) -> None:
        """Notes what results are made with.

        Raises:
            PlanError: it was something else before: results of both do not go together.
        """
        self._file.execute("INSERT OR IGNORE INTO fact VALUES (?, ?)", (name, value))
        before = self.facts()[name]
        if before != value:
            raise PlanError(
                [f"{self._path}: {name} was {before!r} and is {value!r} now; begin again in another folder"]
            )

    def facts(self) -> Mapping[str, str]:
        """All that was noted, by name."""
        return dict(self._file.execute("SELECT name, value FROM fact ORDER BY name"))

    def keep_candidates(self, retriever: str, question: str, depth: int, found: Sequence[Passage]) -> None:
        """Notes a retriever's best passages for a question, best first."""
        ids = json.dumps([one.id for one in found], ensure_ascii=False)
        self._file.execute("BEGIN IMMEDIATE")
        try:
            self._file.executemany(
                "INSERT OR IGNORE INTO passage VALUES (?, ?, ?)",
                [(one.id, one.title, one.text) for one in found],
            )
            self._file.execute(
                "INSERT OR REPLACE INTO candidates VALUES (?, ?, ?, ?)", (retriever, question, depth, ids)
            )
        except BaseException:
            self._file.execute("ROLLBACK")
            raise
        self._file.execute("COMMIT")

    def candidates(self, retriever: str, question: str, depth: int) -> list[Passage] | None:
        """What was noted; None if nothing was."""
        row = self._file.execute(
            "SELECT passages FROM candidates WHERE retriever = ? AND question = ? AND depth = ?",
            (retriever, question, depth),
        ).fetchone()
        return None if row is None else self.passages(json.loads(row[0]))

    def passages(self, ids: Iterable[str]) -> list[Passage]:
        """Passages by id."""
        found = []
        for one in ids:
            with closing(
                self._file.execute("SELECT id, title, text FROM passage WHERE id = ?", (one,))
            ) as rows:
                found.append(Passage(*rows.fetchone()))
        return found

    def keep_answer(self, writer: str, question: str, shown: Sequence[str], text: str | None) -> None:
        """Notes an answer from passages, in their order; None: it could not be answered from them."""
        self._file.execute(
            "INSERT OR REPLACE INTO answer VALUES (?, ?, ?, ?)", (writer, question, _ids(shown), text)
        )

    def answer(self, writer: str, question: str, shown: Sequence[str]) -> tuple[str | None] | None:
        """The answer in a tuple of one; None if it was not asked for yet."""
        row: tuple[str | None] | None = self._file.execute(
            "SELECT text FROM answer WHERE writer = ? AND question = ? AND passages = ?",
            (writer, question, _ids(shown)),
        ).fetchone()
        return row

    def keep_ranking(self, model: str, agent: str, question: str, depth: int, ranking: Sequence[str]) -> None:
        """Notes a model's ranking of the candidates for an agent, best first."""
        self._file.execute(
            "INSERT OR REPLACE INTO ranking VALUES (?, ?, ?, ?, ?)",
            (model, agent, question, depth, _ids(ranking)),
        )

    def ranking(self, model: str, agent: str, question: str, depth: int) -> list[str] | None:
        """What was noted; None if nothing was."""
        row = self._file.execute(
            "SELECT passages FROM ranking WHERE model = ? AND agent = ? AND question = ? AND depth = ?",
            (model, agent, question, depth),
        ).fetchone()
        return None if row is None else list(json.loads(row[0]))

    def counts(self) -> Mapping[str, int]:
        """How much there is of each kind."""
        return {
            kind: int(self._file.execute(f"SELECT count(*) FROM {kind}").fetchone()[0])  # noqa: S608 - our own names
            for kind in ("passage", "candidates", "answer", "ranking")
        }


def _ids(ids: Sequence[str]) -> str:
    return json.dumps(list(ids), ensure_ascii=False)
