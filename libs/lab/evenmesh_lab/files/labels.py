"""Labels: which passages are useful for which query, and whose they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenmesh_lab.files import trec
from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.lines import json_value, lines
from evenmesh_lab.files.records import LabelRecord, is_json_lines, is_parquet, read, rows


@dataclass(frozen=True, slots=True)
class Labels:
    """The judgements of a file."""

    path: Path
    grades: Mapping[str, Mapping[str, float]]
    """By query, by passage: its grade from 0, not useful."""
    attributes: Mapping[str, Mapping[str, str]]
    """By attribute ("provider", "group"), by passage: what the labels say of it."""


def read_labels(path: Path) -> Labels:
    """Read the labels of a TREC qrels file, or of JSON lines or Parquet with the columns of a label record.

    Raises:
        FileError: an invalid record; a passage judged twice for a query; a passage of two providers.
    """
    grades: dict[str, dict[str, float]] = {}
    attributes: dict[str, dict[str, str]] = {}
    if is_parquet(path) or is_json_lines(path):
        for number, record in read(path, LabelRecord):
            _judge(path, number, grades, record.query_id, record.passage_id, record.grade)
            for name, value in (("provider", record.provider), ("group", record.group)):
                if value is not None:
                    _attribute(path, number, attributes, name, record.passage_id, value)
    else:
        for number, name, passage, grade in trec.read_qrels(path):
            query, sample = trec.sample_of(name)
            if sample is not None and grades.get(query, {}).get(passage) == grade:
                continue  # an exported run has the judgements of a query again for each of its samples
            _judge(path, number, grades, query, passage, grade)
    return Labels(path, grades, attributes)


def read_attribute(path: Path, name: str) -> dict[str, str]:
    """Read one attribute of each passage, such as its provider, from a file of passages.

    The files are those that ``evenmesh ingest`` takes: JSON lines of ``id`` (or ``passage_id``), with the
    attribute among the members or in ``attributes``; BEIR's ``corpus.jsonl``, with ``_id`` and ``metadata``;
    and Parquet of the same columns. Passages without the attribute are left out.

    Raises:
        FileError: a line that is no such object, a passage given twice, or no passage has the attribute.
    """
    found: dict[str, str] = {}
    seen: set[str] = set()
    for number, record in _passages(path):
        beir = "_id" in record and "id" not in record
        passage = record["_id"] if beir else record.get("id", record.get("passage_id"))
        if not isinstance(passage, str) or not passage:
            raise FileError(path, number, "has no 'id'")
        if passage in seen:
            raise FileError(path, number, f"repeats the id {passage!r}")
        seen.add(passage)
        inner = record.get("metadata" if beir else "attributes")
        value = record.get(name)
        if value is None and isinstance(inner, dict):
            value = inner.get(name)
            if beir and isinstance(value, int | float):
                value = json.dumps(value)  # as it is ingested
        if value is not None and not isinstance(value, str):
            raise FileError(path, number, f"{name!r} must be a string")
        if value:
            found[passage] = value
    if not found:
        raise FileError(path, None, f"has no passage with the attribute {name!r}")
    return found


def _passages(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if is_parquet(path):
        for number, row in rows(path):
            inner: Any = row.get("attributes")
            pairs = isinstance(inner, list) and all(isinstance(one, tuple) for one in inner)
            yield number, row | {"attributes": dict(inner)} if pairs else row
        return
    for number, line in lines(path):
        record: Any = json_value(path, number, line)
        if not isinstance(record, dict):
            raise FileError(path, number, "must be a JSON object")
        yield number, record


def _judge(
    path: Path, number: int, grades: dict[str, dict[str, float]], query: str, passage: str, grade: float
) -> None:
    judged = grades.setdefault(query, {})
    if passage in judged:
        raise FileError(path, number, f"judges {passage!r} for query {query!r} again")
    judged[passage] = grade


def _attribute(
    path: Path, number: int, attributes: dict[str, dict[str, str]], name: str, passage: str, value: str
) -> None:
    known = attributes.setdefault(name, {}).setdefault(passage, value)
    if known != value:
        raise FileError(path, number, f"gives {passage!r} the {name} {value!r}, which is {known!r} above")
