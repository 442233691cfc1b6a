"""Tasks that agents learn: inputs with their right answers, and the passages they are looked up in."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evenmesh_generator.domain import Passage
from evenmesh_training.rankrag.data.datasets import MissingDataError, rows
from evenmesh_training.rankrag.recipe import RecipeError

SHARED: Final = "wiki-multitask"
"""Name of the shared data set in this form."""

TRAIN: Final = "train"
HELD_OUT: Final = ("dev", "test")
"""Splits that are measured on: the first that is there."""

_ENDINGS: Final = (".jsonl", ".jsonl.gz")


@dataclass(frozen=True, slots=True)
class Task:
    """One input of a task. ``agent``: name of the task; ``kind``: ``qa``, ``fact_verification``, …"""

    id: str
    agent: str
    kind: str
    input: str
    answers: tuple[str, ...]
    split: str
    source: str


@dataclass(frozen=True)
class TaskData:
    """Tasks and the collection they are answered from, with the file of the tasks."""

    tasks: Sequence[Task]
    passages: Sequence[Passage]
    tasks_file: Path


def locate(name_or_path: str, passages: Path | None, root: Path) -> tuple[Path, Path]:
    """Return the files of tasks and of passages: of the shared data set of that name, or the tasks file
    named.

    ``passages`` None: ``passages.jsonl`` or ``passages.jsonl.gz`` beside the tasks.

    Raises:
        RecipeError: one of them is not there.
    """
    named = Path(name_or_path)
    if named.is_file():
        tasks = named
    elif named.name == name_or_path and not named.suffix:
        tasks = _either(root / name_or_path, "tasks")
    else:
        raise RecipeError(f"--data {name_or_path}: there is no such file")
    if passages is not None:
        if not passages.is_file():
            raise RecipeError(f"--passages {passages}: there is no such file")
        return tasks, passages
    return tasks, _either(tasks.resolve().parent, "passages")


def read(tasks: Path, passages: Path) -> TaskData:
    """Read the two files.

    Raises:
        RecipeError: a line is malformed, an id is there twice, or a file is empty; with file and line.
    """
    found = TaskData(
        [_task(tasks, number, row) for number, row in _rows(tasks)],
        [_passage(passages, number, row) for number, row in _rows(passages)],
        tasks,
    )
    for path, ids in ((tasks, [t.id for t in found.tasks]), (passages, [p.id for p in found.passages])):
        if not ids:
            raise RecipeError(f"{path} is empty")
        if len(set(ids)) < len(ids):
            twice = next(one for one in ids if ids.count(one) > 1)
            raise RecipeError(f"{path} has the id {twice!r} twice")
    return found


def chosen(tasks: Sequence[Task], names: Sequence[str]) -> list[Task]:
    """Return the tasks that ``names`` select, by agent or by kind.

    Raises:
        RecipeError: a name calls for none; the message says what there is.
    """
    for name in names:
        if not any(name in (one.agent, one.kind) for one in tasks):
            agents = ", ".join(dict.fromkeys(one.agent for one in tasks))
            kinds = ", ".join(dict.fromkeys(one.kind for one in tasks))
            raise RecipeError(f"--task {name}: no such task; there are {agents}, and the kinds {kinds}")
    wanted = set(names)
    return [one for one in tasks if one.agent in wanted or one.kind in wanted]


def _either(folder: Path, name: str) -> Path:
    for ending in _ENDINGS:
        if (folder / f"{name}{ending}").is_file():
            return folder / f"{name}{ending}"
    raise RecipeError(f"there is neither {folder / name}.jsonl nor {name}.jsonl.gz")


def _rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    try:
        return list(enumerate(rows(path), start=1))
    except MissingDataError:
        raise RecipeError(f"{path}: there is no such file") from None


def _task(path: Path, number: int, row: dict[str, Any]) -> Task:
    where = f"{path}, record {number}"
    agent = _text(where, row, "agent") if "agent" in row else _text(where, row, "task")
    answers = row.get("answers")
    if not isinstance(answers, list) or not answers or not all(isinstance(a, str) and a for a in answers):
        raise RecipeError(f"{where}: answers must be a list of one text or more")
    return Task(
        _text(where, row, "id"),
        agent,
        _text(where, row, "task") if "task" in row else agent,
        _text(where, row, "input"),
        tuple(answers),
        _text(where, row, "split"),
        str(row.get("source", agent)),
    )


def _passage(path: Path, number: int, row: dict[str, Any]) -> Passage:
    where = f"{path}, record {number}"
    return Passage(_text(where, row, "id"), str(row.get("title", "")), _text(where, row, "text"))


def _text(where: str, row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise RecipeError(f"{where}: {name} must be a text that is not empty")
    return value
