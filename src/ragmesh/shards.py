"""Parts of a long run that go on beside each other, each with a journal and records of its own; one result.

A shard has every n-th unit of the work. Its files are named after it, and what is measured is what all of
them hold together, by id: the same as one run had written.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from raglab.files import FileError, read_journal

T = TypeVar("T")

_NAME: Final = re.compile(r"(\d{1,6})/(\d{1,6})")


@dataclass(frozen=True, slots=True)
class Shard:
    """Every ``count``-th unit from the ``place``-th, which counts from 0."""

    place: int = 0
    count: int = 1

    def __str__(self) -> str:
        return f"{self.place}/{self.count}"

    def of(self, units: Sequence[T]) -> Sequence[T]:
        """The units of the shard, in their order."""
        return units[self.place :: self.count]

    @property
    def suffix(self) -> str:
        """What is added to the names of its files; nothing where it is everything."""
        return "" if self.count == 1 else f"-{self.place}-of-{self.count}"

    @property
    def all(self) -> list["Shard"]:
        """The shards that make the whole, this one among them."""
        return [Shard(place, self.count) for place in range(self.count)]

    @property
    def settings(self) -> Mapping[str, str]:
        """What its journal is told of it; nothing where it is everything."""
        return {} if self.count == 1 else {"shard": str(self)}


WHOLE: Final = Shard()
"""Everything."""


def read_shard(text: str) -> Shard | None:
    """A shard as the command line says it, ``I/N``; None where that is none."""
    found = _NAME.fullmatch(text)
    if found is None or int(found[1]) >= int(found[2]):
        return None
    return Shard(int(found[1]), int(found[2]))


def stem(name: str) -> str:
    """A part of a file's name that no name of something else can turn into another folder."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "unnamed"


def same_stems(names: Iterable[str]) -> list[str]:
    """Names that are told apart but whose files would not be, ascending."""
    files: dict[str, set[str]] = {}
    for name in names:
        files.setdefault(stem(name).lower(), set()).add(name)
    return sorted(name for alike in files.values() if len(alike) > 1 for name in alike)


def journal_path(folder: Path, name: str, shard: Shard = WHOLE) -> Path:
    """The journal of a run of some kind."""
    return folder / f"{name}{shard.suffix}.journal"


@dataclass(frozen=True, slots=True)
class Stored:
    """What all shards of a run left behind: what decided it, what was written, and what made it.

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
    name: str,
    shard: Shard = WHOLE,
    settings: Callable[[Shard], Mapping[str, Any]] | None = None,
) -> Stored:
    """What the journals of a run's shards say together; those that are not there yet say nothing.

    Args:
        folder: of the run.
        name: of its kind, as for :func:`journal_path`.
        shard: one of them.
        settings: what each is to have been run with; None takes those of the first.

    Raises:
        FileError: none is there; one is damaged, or of other settings, or was made with something else.
    """
    decided: Mapping[str, Any] | None = None
    done: set[str] = set()
    facts: dict[str, str] = {}
    for one in shard.all:
        path = journal_path(folder, name, one)
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


def shard_of_folder(folder: Path, name: str) -> Shard:
    """A shard of the run that a folder holds: of everything, where nothing is there.

    Raises:
        FileError: it holds parts of several divisions.
    """
    found = re.compile(re.escape(name) + r"-(\d+)-of-(\d+)\.journal")
    counts = {int(match[2]) for path in folder.glob("*.journal") if (match := found.fullmatch(path.name))}
    if journal_path(folder, name).exists():
        counts.add(1)
    if len(counts) > 1:
        told = ", ".join(map(str, sorted(counts)))
        raise FileError(folder, None, f"holds a run that was divided in several ways, into {told} shards")
    return Shard(0, counts.pop()) if counts else WHOLE


def _without_shard(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(settings))
    made.pop("shard", None)
    return made
