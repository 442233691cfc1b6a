"""A journal of results, written piece by piece, so that a killed run resumes where it was.

A *piece* is the output of one unit of work: whole lines of one file. It is on disk before the journal lists
it, and a resumed run truncates what the journal does not list: no line is missing, doubled or incomplete.
Pieces added in the same order give the same bytes, however often the run was killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from evenmesh_lab.files.failure import FileError

VERSION: Final = 1
"""Version of the journal's format."""


@dataclass(frozen=True, slots=True)
class StoredJournal:
    """The content of a journal: the settings of the results, the pieces in their order, and their facts."""

    settings: Mapping[str, Any]
    done: tuple[str, ...]
    facts: Mapping[str, str]


def read_journal(path: Path) -> StoredJournal:
    """Read a journal, whether or not a run has it open; a half-written line does not count.

    Raises:
        FileError: there is none, or it is damaged.
    """
    try:
        # Names may hold characters that splitlines takes for an end.
        lines = path.read_bytes().split(b"\n")[:-1]
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
            raise FileError(path, number, "is not a line of a journal") from error
    if settings is None:
        raise FileError(path, None, "is empty")
    return StoredJournal(settings, tuple(done), facts)


class Journal:
    """The output of a run so far. Use it in a ``with`` block, which locks it against other processes.

    Args:
        path: the journal; the files of results lie beside it. Made, with its folder, if it is not there.
        settings: what determines the results; a journal of other settings cannot resume.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self._settings = json.loads(json.dumps(settings))
        self._ends: dict[str, int] = {}
        self._done: dict[str, None] = {}
        self._facts: dict[str, str] = {}
        self._handle = -1

    def __enter__(self) -> Self:
        """Open the journal and truncate files to what it lists.

        Raises:
            FileError: another process has it locked; its settings differ, which the message names; it is
                damaged, or a file it names was changed.
        """
        import fcntl  # not on Windows, where the readers of this package work all the same

        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FileError(self.path, None, "another process works on it") from None
            self._resume()
        except BaseException:
            os.close(self._handle)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._handle)

    @property
    def done(self) -> Sequence[str]:
        """Names of the pieces that are there, in the order they were added."""
        return tuple(self._done)

    @property
    def facts(self) -> Mapping[str, str]:
        """Properties of what made the pieces, such as versions, by name."""
        return self._facts

    def add(
        self, piece: str, file: str, lines: Sequence[str], facts: Mapping[str, str] | None = None
    ) -> None:
        """Write a piece: it is durable when this returns, and absent if the process is killed before.

        Args:
            piece: its name, new to the journal.
            file: name of the file beside the journal that it goes to.
            lines: without ends.
            facts: properties of what made it, by name.

        Raises:
            FileError: a fact differs from that of earlier pieces.
            ValueError: there is such a piece already.
        """
        if piece in self._done:
            raise ValueError(f"piece {piece!r} is there already")
        new = {name: value for name, value in (facts or {}).items() if name not in self._facts}
        for name, value in (facts or {}).items():
            before = self._facts.get(name, value)
            if before != value:
                raise FileError(
                    self.path,
                    None,
                    f"{name} was {before!r} and is {value!r} now: results of both do not go together; "
                    "begin again in another folder",
                )
        if lines:
            target = os.open(self.path.with_name(file), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                # Output of a killed run that the journal does not list.
                os.ftruncate(target, self._ends.get(file, 0))
                data = "".join(f"{line}\n" for line in lines).encode()
                _write(target, data)
                os.fsync(target)
                self._ends[file] = os.fstat(target).st_size
            finally:
                os.close(target)
        entry: dict[str, Any] = {"piece": piece, "file": file, "end": self._ends.get(file, 0)}
        self._note(entry | ({"facts": new} if new else {}))
        self._facts |= new
        self._done[piece] = None

    def _resume(self) -> None:
        size = os.fstat(self._handle).st_size
        text = os.pread(self._handle, size, 0)
        whole = text[: text.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), start=1):
            self._read(number, line)
        os.ftruncate(self._handle, len(whole))
        os.lseek(self._handle, 0, os.SEEK_END)
        if not whole:
            self._note({"version": VERSION, "settings": self._settings})
            _sync_folder(self.path.parent)
        for file, end in self._ends.items():
            target = self.path.with_name(file)
            there = target.stat().st_size if target.exists() else 0
            if there < end:
                raise FileError(target, None, f"has {there:,} bytes, {end:,} were written: it was changed")
            if there > end:
                os.truncate(target, end)

    def _read(self, number: int, line: bytes) -> None:
        try:
            entry = json.loads(line)
            if number == 1:
                version, settings = entry["version"], dict(entry["settings"])
            else:
                file, end = entry["file"], int(entry["end"])
                # One that leads elsewhere would have another file cut off.
                if file in ("", ".", "..") or file != Path(file).name or end < 0:
                    raise ValueError(file)
                self._done[entry["piece"]] = None
                self._ends[file] = end
                self._facts |= entry.get("facts", {})
                return
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as exc:
            raise FileError(self.path, number, "is not a line of a journal") from exc
        if version != VERSION:
            raise FileError(self.path, number, f"is of version {version}; this program writes {VERSION}")
        other = [
            f"{name} {settings.get(name)!r} there, {self._settings.get(name)!r} now"
            for name in (*self._settings, *(settings.keys() - self._settings.keys()))
            if settings.get(name) != self._settings.get(name)
        ]
        if other:
            raise FileError(
                self.path,
                None,
                f"is of other settings: {'; '.join(other)}. Repeat its settings and files, or name another "
                "folder",
            )

    def _note(self, entry: Mapping[str, Any]) -> None:
        _write(self._handle, (json.dumps(entry, ensure_ascii=False) + "\n").encode())
        os.fsync(self._handle)


def _write(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
