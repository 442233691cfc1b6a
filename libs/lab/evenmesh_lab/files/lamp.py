"""LaMP's files, as the benchmark publishes them: questions with their users' profiles, and right outputs.

Sources: Salemi et al. 2024, "LaMP: When Large Language Models Meet Personalization" (arXiv:2304.11406); the
queries are those of Kim & Diaz 2025, whose code takes LaMP's own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.lines import json_value, whole_text
from evenmesh_lab.files.records import PassageRecord, QueryRecord

MOST_ITEMS: Final = 1000
"""Largest profile that one ask takes."""
MOST_BYTES: Final = 8192
"""Longest question that one ask takes."""
MOST_ITEM_BYTES: Final = 65_536
"""Longest item, title and text together, that one ask takes."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_QUOTED: Final = re.compile(r'"([^"]*)"')


def _references(text: str) -> str | None:
    """Return the titles of the two candidates: the second and third text in quotation marks."""
    found = _QUOTED.findall(text)
    return f"{found[1]} {found[2]}" if len(found) > 2 else None


def _after(mark: str) -> Callable[[str], str | None]:
    def query(text: str) -> str | None:
        _, found, rest = text.partition(mark)
        return rest.strip() or None if found else None

    return query


@dataclass(frozen=True, slots=True)
class LampTask:
    """One task: what its profiles hold, and what is searched for."""

    name: str
    title: str
    """Column of an item that is the passage's title: what the user made of it; empty if nothing."""
    text: str
    """Column that is the passage's text: what the user had before them."""
    query: Callable[[str], str | None]
    """Extracts the search text of a question; None where there is none."""

    @property
    def template(self) -> str:
        """The name of its prompt."""
        return self.name.lower()


TASKS: Final[Mapping[str, LampTask]] = MappingProxyType(
    {
        task.name: task
        for task in (
            LampTask("LaMP-1", "title", "abstract", _references),
            LampTask("LaMP-2", "tag", "description", _after("description:")),
            LampTask("LaMP-3", "score", "text", _after("review:")),
            LampTask("LaMP-4", "title", "text", _after("article:")),
            LampTask("LaMP-5", "title", "abstract", _after(":")),
            LampTask("LaMP-6", "title", "text", _after(":")),
            LampTask("LaMP-7", "", "text", _after(":")),
        )
    }
)
"""The seven tasks by name."""


@dataclass(frozen=True, slots=True)
class LampQueries:
    """The questions of two files in their order, and what is wrong with them."""

    path: Path
    task: LampTask | None
    queries: tuple[QueryRecord, ...]
    """Each with its instruction, what is searched for, the right output, and the profile as passages."""
    problems: tuple[FileError, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Number of questions and items left out, by reason."""


def read_lamp(questions: Path, outputs: Path | None = None, task: str | None = None) -> LampQueries:
    """Read the questions of a file, with the right outputs of another; report every problem, never fail.

    Questions are a JSON list of ``{"id", "input", "profile": [{"id", …}]}``, outputs ``{"task": "LaMP_4",
    "golds": [{"id", "output"}]}``; gzip or not.

    Args:
        questions: the one file.
        outputs: the other; without it questions have no references, as those of the test split.
        task: name of the task (``LaMP-4``, or ``LaMP_4``); that of the outputs without it.
    """
    problems: list[FileError] = []
    rows = _list(questions, _content(questions, problems), problems)
    golds: dict[str, str] = {}
    named = task
    if outputs is not None:
        content = _content(outputs, problems)
        if isinstance(content, dict):
            named = named or str(content.get("task", ""))
            golds = _golds(outputs, content, problems)
        elif content is not None:
            problems.append(FileError(outputs, None, "is no object of task and golds"))
    found = TASKS.get((named or "").replace("_", "-"))
    if found is None:
        why = f"is of the task {named!r}" if named else "does not say its task"
        problems.append(FileError(outputs or questions, None, f"{why}; tasks: {', '.join(TASKS)}"))
        return LampQueries(questions, None, (), tuple(problems))
    left_out: Counter[str] = Counter()
    queries = list(_queries(questions, rows, golds, outputs, found, problems, left_out))
    if outputs is not None and golds:
        unknown = sorted(golds.keys() - {str(row.get("id")) for row in rows})
        if unknown:
            problems.append(
                FileError(outputs, None, f"answers questions that {questions} has not: {_listed(unknown)}")
            )
    return LampQueries(questions, found, tuple(queries), tuple(problems), dict(left_out))


def _queries(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    golds: Mapping[str, str],
    outputs: Path | None,
    task: LampTask,
    problems: list[FileError],
    left_out: Counter[str],
) -> Iterable[QueryRecord]:
    seen: set[str] = set()
    for place, row in enumerate(rows, start=1):
        try:
            query_id, asked = _text(row, "id"), _text(row, "input")
            items = [_item(task, item) for item in _profile(row)]
            query = task.query(asked)
            if query is None:
                raise _RowError(f"its input is none of {task.name}: {asked[:60]!r}")
            if query_id in seen:
                raise _RowError(f"repeats the id {query_id!r}")
            if outputs is not None and query_id not in golds:
                raise _RowError(f"{outputs} has no output for it")
            seen.add(query_id)
        except _RowError as error:
            problems.append(FileError(path, None, f"question {place}: {error}"))
            continue
        kept = [item for item in items if item.text or item.title]
        left_out["items that are empty"] += len(items) - len(kept)
        if why := _too_large(asked, kept):
            left_out[why] += 1
            continue
        yield QueryRecord(
            query_id=query_id,
            question=asked,
            references=[golds[query_id]] if query_id in golds else None,
            passages=kept,
            search=query,
        )
    for why in [why for why, count in left_out.items() if not count]:
        del left_out[why]


def _too_large(asked: str, items: Sequence[PassageRecord]) -> str:
    if not items:
        return "questions without a profile"
    if len(items) > MOST_ITEMS:
        return f"questions with more than {MOST_ITEMS:,} items"
    if len(asked.encode()) > MOST_BYTES:
        return f"questions longer than {MOST_BYTES:,} bytes"
    if any(len(f"{item.title}{item.text}".encode()) > MOST_ITEM_BYTES for item in items):
        return f"questions with an item longer than {MOST_ITEM_BYTES:,} bytes"
    return ""


class _RowError(ValueError):
    """Raised for an invalid question."""


def _item(task: LampTask, item: Mapping[str, Any]) -> PassageRecord:
    columns = {name: _text(item, name) for name in ("id", task.title, task.text) if name}
    return PassageRecord(
        id=columns["id"],
        title=columns.get(task.title, "").strip(),
        text=columns[task.text].strip(),
        attributes={"date": str(item["date"])} if item.get("date") else {},
    )


def _profile(row: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    profile = row.get("profile")
    if not isinstance(profile, list) or not all(isinstance(item, dict) for item in profile):
        raise _RowError("has no profile: a list of objects")
    ids = [str(item.get("id")) for item in profile]
    if len(set(ids)) < len(ids):
        raise _RowError(f"has the item {next(one for one in ids if ids.count(one) > 1)!r} twice")
    return profile


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _RowError(f"has no {name!r}; it has: {', '.join(map(str, row))}")
    if name == "id" and not str(value):
        raise _RowError("has an empty 'id'")
    if isinstance(value, str) and _SURROGATE.search(value):
        raise _RowError(f"{name!r} holds half a surrogate pair, which is not text")
    return str(value)


def _golds(path: Path, content: Mapping[str, Any], problems: list[FileError]) -> dict[str, str]:
    found: dict[str, str] = {}
    for place, row in enumerate(_list(path, content.get("golds"), problems), start=1):
        try:
            query_id, output = _text(row, "id"), _text(row, "output")
        except _RowError as error:
            problems.append(FileError(path, None, f"output {place}: {error}"))
            continue
        if query_id in found:
            problems.append(FileError(path, None, f"output {place}: repeats the id {query_id!r}"))
        found[query_id] = output
    return found


def _list(path: Path, content: object, problems: list[FileError]) -> list[Mapping[str, Any]]:
    if content is None:
        if not any(problem.path == path for problem in problems):
            problems.append(FileError(path, None, "has no list of objects"))
        return []
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        problems.append(FileError(path, None, "is not a list of objects"))
        return []
    return content


def _content(path: Path, problems: list[FileError]) -> object:
    try:
        return json_value(path, None, whole_text(path))
    except FileError as error:
        problems.append(error)
    return None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 10:,} more" if len(names) > 10 else ""
    return ", ".join(names[:10]) + more
