"""What a run of a study left behind: its journal, and the records beside it."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from raglab.files import FileError
from ragmesh.eor.plan import Dataset

JOURNAL: Final = "eor.journal"
"""Name of the journal in the folder of a run."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A run as its journal tells of it: what decided its results, what was written, and what made it."""

    settings: Mapping[str, Any]
    done: frozenset[str]
    facts: Mapping[str, str]


def read_stored(folder: Path) -> Stored:
    """What the journal of a folder says.

    Raises:
        FileError: there is none, or it is damaged.
    """
    path = folder / JOURNAL
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except OSError as error:
        raise FileError(path, None, error.strerror or str(error)) from error
    done: list[str] = []
    facts: dict[str, str] = {}
    settings: Mapping[str, Any] | None = None
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            if settings is None:
                settings = dict(entry["settings"])
            else:
                done.append(entry["piece"])
                facts |= entry.get("facts", {})
        except (ValueError, KeyError, TypeError) as error:
            raise FileError(path, number, "is no line of a journal") from error
    if settings is None:
        raise FileError(path, None, "is empty")
    return Stored(settings, frozenset(done), facts)


def changed(stored: Stored, datasets: list[Dataset], settings: Mapping[str, Any]) -> list[str]:
    """The data sets of which a run was asked other questions than these, or none, a line each."""
    found = stored.settings.get("datasets", {})
    return [
        f"{one.queries.path}: the run was not asked these questions as {one.name!r}"
        for one in datasets
        if found.get(one.name) != settings["datasets"][one.name]
    ]


def records_file(dataset: str, model: str) -> str:
    """The file of a data set's and a model's records, whose name leads to no other folder."""
    return f"{stem(dataset)}.{stem(model)}.jsonl"


def stem(name: str) -> str:
    """A part of a file's name that no name of something else can turn into another folder."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "unnamed"
