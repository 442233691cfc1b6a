"""Questions and judgements of data sets, as the files that studies read."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from evenmesh_documents.data_sets.address import DataSetAddress
from evenmesh_documents.data_sets.opening import DataSet, DataSetError, Row, bounded, opened
from evenmesh_documents.data_sets.passages import column_of, name_in, text_in

QUERIES: Final = "queries.jsonl"
QUESTIONS: Final = "questions.jsonl"
LABELS: Final = "labels.jsonl"

MAX_QUESTIONS: Final = 1_000_000
MAX_JUDGEMENTS: Final = 10_000_000
MAX_QUESTION_BYTES: Final = 8_192
"""Longest question that a mesh takes. Bytes."""

_ID: Final = ("id", "_id", "query_id", "query-id", "qid")
_QUESTION: Final = ("question", "text", "query", "title")
_ANSWERS: Final = ("answers", "answer", "references")
_QUERY: Final = ("query_id", "query-id", "qid")
_PASSAGE: Final = ("doc_id", "corpus-id", "corpus_id", "docid", "docno", "passage_id", "pid")
_GRADE: Final = ("relevance", "score", "grade", "label")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was written.

    Attributes:
        folder: where the files are.
        questions: questions, in ``queries.jsonl`` and ``questions.jsonl``.
        answered: those with known answers.
        judged: those with judged passages.
        judgements: judged passages of all of them, in ``labels.jsonl``; there is none without any.
        left_out: questions that are empty or too long.
    """

    folder: str
    questions: int
    answered: int
    judged: int
    judgements: int
    left_out: int


def fetch(source: str, folder: Path, *, qrels: str | None = None, min_grade: int = 1) -> Fetched:
    """Write the questions of a data set, and who is judged useful for them.

    ``queries.jsonl`` is for ``evenmesh audit``, ``questions.jsonl`` for ``evenmesh eval rag``, which counts
    the passages of at least ``min_grade`` as gold, and ``labels.jsonl`` for ``--labels`` and ``--qrels``.
    The files are replaced once all of them are complete.

    Args:
        source: data set with the questions.
        folder: folder of the files; it is made.
        qrels: data set with the judgements; that of the questions without it, if it has some.
        min_grade: least grade of a gold passage.

    Raises:
        DataSetError: a data set cannot be opened or read, with its name.
    """
    with _naming(source):
        address = DataSetAddress.parse(source)
        data_set = opened(address)
    judged: dict[str, dict[str, float]] = {}
    if qrels is not None:
        with _naming(qrels):
            labels = DataSetAddress.parse(qrels)
            judged = _judgements(opened(labels), labels.columns)
    elif address.kind == "ir_datasets" and data_set.has("qrels"):
        with _naming(source):
            judged = _judgements(data_set, {})
    folder.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    counts = {"answered": 0, "left_out": 0}
    beside = {name: folder / f".{name}.part" for name in (QUERIES, QUESTIONS, LABELS)}
    try:
        with (
            _naming(source),
            beside[QUERIES].open("w", encoding="utf-8") as queries,
            beside[QUESTIONS].open("w", encoding="utf-8") as questions,
        ):
            for query_id, question, answers in _questions(data_set, address.columns):
                if query_id in seen:
                    raise DataSetError(f"repeats the query {query_id!r}")
                if not question.strip() or len(question.encode()) > MAX_QUESTION_BYTES:
                    counts["left_out"] += 1
                    continue
                seen.add(query_id)
                counts["answered"] += bool(answers)
                record: dict[str, Any] = {"query_id": query_id, "question": question}
                if answers:
                    record["references"] = answers
                _write(queries, record)
                if gold := [name for name, grade in judged.get(query_id, {}).items() if grade >= min_grade]:
                    record["gold_passage_ids"] = gold
                _write(questions, record)
        with beside[LABELS].open("w", encoding="utf-8") as written:
            for query_id in sorted(seen & judged.keys()):
                for name, grade in judged[query_id].items():
                    _write(written, {"query_id": query_id, "passage_id": name, "grade": grade})
        if not seen:
            raise DataSetError(f"{source}: has no questions")
        for name, path in beside.items():
            if name == LABELS and not judged:
                (folder / name).unlink(missing_ok=True)  # of another data set
            else:
                path.replace(folder / name)
    finally:
        for path in beside.values():
            path.unlink(missing_ok=True)
    of_ours = seen & judged.keys()
    return Fetched(
        str(folder),
        len(seen),
        judged=len(of_ours),
        judgements=sum(len(judged[one]) for one in of_ours),
        **counts,
    )


def _questions(data_set: DataSet, columns: Mapping[str, str]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield id, question and answers."""
    names: tuple[str, str, str] | None = None
    for row in bounded(data_set, "queries", MAX_QUESTIONS):
        if names is None:
            names = (
                column_of(row, columns, "id", _ID),
                column_of(row, columns, "question", _QUESTION),
                column_of(row, columns, "answers", _ANSWERS, required=False),
            )
        id_, question, answers = names
        yield name_in(row, id_), text_in(row, question), _texts(row.get(answers)) if answers else []


def _judgements(data_set: DataSet, columns: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Return grades by query, by passage; the largest where one is judged several times, 0 for junk."""
    found: dict[str, dict[str, float]] = {}
    names: tuple[str, str, str] | None = None
    for row in bounded(data_set, "qrels", MAX_JUDGEMENTS):
        if names is None:
            names = (
                column_of(row, columns, "query", _QUERY),
                column_of(row, columns, "passage", _PASSAGE),
                column_of(row, columns, "grade", _GRADE),
            )
        query, passage, grade = names
        judged = found.setdefault(name_in(row, query), {})
        name = name_in(row, passage)
        judged[name] = max(judged.get(name, 0.0), _grade(row, grade))
    return found


def _grade(row: Row, column: str) -> float:
    try:
        grade = float(row[column])
    except (TypeError, ValueError, OverflowError):
        grade = math.nan
    if not math.isfinite(grade):
        raise DataSetError(f"the column {column!r} holds {row[column]!r}, not a grade")
    return max(0.0, grade)


def _texts(value: object) -> list[str]:
    """Return the texts of an answer: one, several, or those of a structure such as SQuAD's."""
    if isinstance(value, str):
        return [value] if value else []
    if isinstance(value, Mapping):
        return _texts(value.get("text") or value.get("value"))
    if isinstance(value, list | tuple):
        return list(dict.fromkeys(one for one in value if isinstance(one, str) and one))
    return []


def _write(file: IO[str], record: Mapping[str, object]) -> None:
    file.write(json.dumps(record, ensure_ascii=False) + "\n")


@contextmanager
def _naming(source: str) -> Iterator[None]:
    """Put the name of a data set before its error."""
    try:
        yield
    except ValueError as exc:
        raise DataSetError(f"{source}: {exc}") from exc
