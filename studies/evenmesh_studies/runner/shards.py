"""Divide a run into shards that run at the same time, each with its own journal and records.

Shard ``I/N`` takes every N-th unit from the I-th. Results of all shards are read together and equal those of
an undivided run.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from evenmesh_lab.files import FileError, read_journal

T = TypeVar("T")

_NAME: Final = re.compile(r"(\d{1,6})/(\d{1,6})")


@dataclass(frozen=True, slots=True)
class Shard:
    """Every ``count``-th unit from the ``place``-th, counted from 0."""

    place: int = 0
    count: int = 1

    def __str__(self) -> str:
        return f"{self.place}/{self.count}"

    def of(self, units: Sequence[T]) -> Sequence[T]:
        """Return the units of the shard, in order."""
        return units[self.place :: self.count]

    @property
    def suffix(self) -> str:
        """What file names of the shard end in; empty for an undivided run."""
        return "" if self.count == 1 else f"-{self.place}-of-{self.count}"

    @property
    def all(self) -> list["Shard"]:
        """All shards of the same division."""
        return [Shard(place, self.count) for place in range(self.count)]

    @property
    def settings(self) -> Mapping[str, str]:
        """What the journal's settings say of the shard; empty for an undivided run."""
        return {} if self.count == 1 else {"shard": str(self)}


WHOLE: Final = Shard()
"""An undivided run."""


def read_shard(text: str) -> Shard | None:
    """Parse ``I/N``; return None if that is not a shard."""
    found = _NAME.fullmatch(text)
    if found is None or int(found[1]) >= int(found[2]):
        return None
    return Shard(int(found[1]), int(found[2]))


def stem(name: str) -> str:
    """Return a name as part of a file name, with no character that could lead to another folder."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "unnamed"


def same_stems(names: Iterable[str]) -> list[str]:
    """Return different names that would share a file, ascending."""
    files: dict[str, set[str]] = {}
    for name in names:
        files.setdefault(stem(name).lower(), set()).add(name)
    return sorted(name for alike in files.values() if len(alike) > 1 for name in alike)


def journal_path(folder: Path, kind: str, shard: Shard = WHOLE) -> Path:
    """Return the path of a shard's journal."""
    return folder / f"{kind}{shard.suffix}.journal"


def records_file(name: str, shard: Shard = WHOLE) -> str:
    """Return the name of a shard's records file."""
    return f"{name}{shard.suffix}.jsonl"


def records_paths(folder: Path, name: str, shard: Shard = WHOLE) -> list[Path]:
    """Return the records files of all shards that wrote any."""
    paths = [folder / records_file(name, one) for one in shard.all]
    return [path for path in paths if path.exists()]


@dataclass(frozen=True, slots=True)
class Stored:
    """What all shards of a run wrote.

    Attributes:
        settings: of the run, without the shard.
        done: names of the units that are written.
        facts: what they were made with, by name.
    """

    settings: Mapping[str, Any]
    done: frozenset[str]
    facts: Mapping[str, str]


def read_stored(
    folder: Path,
    kind: str,
    shard: Shard = WHOLE,
    settings: Callable[[Shard], Mapping[str, Any]] | None = None,
) -> Stored:
    """Read the journals of all shards together. Shards that have not started are skipped.

    Args:
        folder: of the run.
        kind: of the study, as for :func:`journal_path`.
        shard: any of the run's shards.
        settings: what each shard must have run with; None takes those of the first journal.

    Raises:
        FileError: no journal is there, one is damaged, or two disagree on settings or facts.
    """
    decided: Mapping[str, Any] | None = None
    done: set[str] = set()
    facts: dict[str, str] = {}
    for one in shard.all:
        path = journal_path(folder, kind, one)
        if shard.count > 1 and not path.exists():
            continue
        stored = read_journal(path)
        own = {key: value for key, value in stored.settings.items() if key != "shard"}
        if decided is None:
            decided = own if settings is None else _without_shard(settings(one))
        other = sorted(key for key in {*own, *decided} if own.get(key) != decided.get(key))
        if other:
            raise FileError(path, None, f"is of another run: it differs in {', '.join(other)}")
        for fact, value in stored.facts.items():
            if facts.setdefault(fact, value) != value:
                raise FileError(path, None, f"{fact} is {value!r}, in another shard {facts[fact]!r}")
        done.update(stored.done)
    if decided is None:
        raise FileError(folder, None, f"has no journal of {shard.count} shards")
    return Stored(decided, frozenset(done), facts)


def shard_of_folder(folder: Path, kind: str) -> Shard:
    """Return a shard of the run that a folder holds, :data:`WHOLE` where it holds none.

    Raises:
        FileError: it holds journals of several divisions.
    """
    found = re.compile(re.escape(kind) + r"-(\d+)-of-(\d+)\.journal")
    counts = {int(match[2]) for path in folder.glob("*.journal") if (match := found.fullmatch(path.name))}
    if journal_path(folder, kind).exists():
        counts.add(1)
    if len(counts) > 1:
        divisions = ", ".join(map(str, sorted(counts)))
        raise FileError(folder, None, f"holds runs of several divisions, into {divisions} shards")
    return Shard(0, counts.pop()) if counts else WHOLE


def _without_shard(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(settings))
    made.pop("shard", None)
    return made
