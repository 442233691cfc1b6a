"""Allow one writer per folder of collections, across processes and machines.

A lock of the system (``flock``) keeps two processes of one machine apart; on a shared volume it may hold on
each machine alone. So a writer also has a *term*, which is a folder::

    <collections>/.writers/.<number>/          made with mkdir, which one process alone can do for a number
    <collections>/.writers/.<number>/holder    who it is, as JSON
    <collections>/.writers/.<number>/beats     a number that changes for as long as the holder lives
    <collections>/.writers/.<number>/released  there once the holder has ended as it should

Whatever a writer does that another could regret passes through the folder of its term: a file, a collection
or a pointer takes effect by a rename out of it, and something is removed by a rename into it. A successor
makes the next term, then removes the folder of the last, then reads the collections. From then on a
predecessor that was only slow, however long, gets an error from each of these renames: there is no moment
between a check and a write in which it could lose the folder unnoticed.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Final

from evenmesh_kit.storage import durable_files
from evenmesh_retriever.backends.segments.files.lock import FolderLock
from evenmesh_retriever.ports import CannotStart

TERMS: Final = ".writers"
"""Folder of the terms, in that of the collections."""
_TERM: Final = re.compile(r"\.(\d{6,})")
_HOLDER, _BEATS, _RELEASED = "holder", "beats", "released"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_LOOKS: Final = 20
"""How often a lease is looked at until it is over."""
_BEATS_A_LEASE: Final = 5
_AGAIN_S: Final = 0.01
FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk, or of a share of one, without room."""
_log = logging.getLogger("evenmesh.retriever.store")


class Fenced(Exception):  # noqa: N818 - a state
    """Another writer has taken over the folder; nothing of the write took effect."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a term."""

    machine: str
    """The same for two processes only if they run on one machine and it was not restarted in between."""
    process: int
    name: str
    """Name of the machine, for people."""
    lease_s: float
    """How long it counts as alive after its last beat. Seconds."""

    def __str__(self) -> str:
        return f"process {self.process} on {self.name}"


class WriterLease:
    """The right to write a folder of collections. Waits for it: make it in a thread.

    A predecessor of this machine has ended once the lock is free. One of another machine counts as alive
    until its beats have not changed for its lease, on the clock of who waits: clocks of machines are not
    compared.

    Args:
        folder: folder of the collections.
        wait_s: how long to wait for another process that lives. Seconds, [0, inf).
        lease_s: how long this one counts as alive after its last beat. Seconds, (0, inf).
        given_up: whether nobody waits for this any more.
        on_lost: called once, in any thread, when another writer has taken over.

    Raises:
        CannotStart: another process has the folder.

    Attributes:
        inherited: whether the predecessor had surely ended, so that what it left half done can be used.
        lost: set once another writer has taken over.
    """

    def __init__(
        self,
        folder: Path,
        *,
        wait_s: float = 0.0,
        lease_s: float = 15.0,
        given_up: Callable[[], bool] = lambda: False,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._terms = folder / TERMS
        self._lease_s = lease_s
        self.inherited = True
        self.lost = Event()
        self._on_lost = on_lost
        self._released = Event()
        self.term = self._terms / "none"
        ends = time.monotonic() + wait_s
        self._lock = FolderLock(folder, wait_s=wait_s, given_up=given_up)
        try:
            self._terms.mkdir(mode=0o700, exist_ok=True)
            self._number = self._begun(ends, given_up)
            self.term = self._terms / f".{self._number:06d}"
            try:
                self._write_holder()
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self._end_earlier()  # what dead writers left behind may be what fills the disk
                self._write_holder()
            self._end_earlier()
        except BaseException:
            remove(self.term)  # of no holder: the next one would wait for its lease to end
            self._lock.release()
            raise
        self._beating = Thread(target=self._beat, name="retriever-lease", daemon=True)
        self._beating.start()

    @property
    def number(self) -> int:
        """Number of the term, from 1; each is larger than all before."""
        return self._number

    def stage(self) -> Path:
        """Return a new path from which something can be placed; nothing is there yet."""
        return self.term / secrets.token_hex(8)

    def replace(self, path: Path, content: bytes) -> None:
        """Replace the content of a small file, durably.

        Raises:
            Fenced: another writer has taken over.
        """
        staged = self.stage()
        with self._fenced():
            try:
                durable_files.write(staged, content)
                staged.replace(path)
            except BaseException:
                with suppress(OSError):
                    staged.unlink(missing_ok=True)
                raise
        durable_files.sync_folder(path.parent)

    def place(self, staged: Path, target: Path) -> None:
        """Move a folder that was staged to its place, durably; raises as :meth:`replace`."""
        with self._fenced():
            durable_files.move_folder(staged, target)

    def withdraw(self, path: Path, target: Path) -> None:
        """Move something to a place where nobody looks for it; raises as :meth:`replace`."""
        staged = self.stage()
        with self._fenced():
            path.rename(staged)
            durable_files.sync_folder(path.parent)
            staged.rename(target)

    def discard(self, path: Path) -> None:
        """Remove a file or folder, if it is there; raises as :meth:`replace`."""
        staged = self.stage()
        try:
            with self._fenced():
                path.rename(staged)
        except FileNotFoundError:
            return
        remove(staged)

    def is_over(self, error: OSError) -> bool:
        """Return whether a write failed because another writer has taken over."""
        if _is_gone(error) and not self.term.exists():
            self._lose()
        return self.lost.is_set()

    def release(self) -> None:
        """Let go of the folder."""
        self._released.set()
        self._beating.join()
        with suppress(OSError):
            (self.term / _RELEASED).touch()
        self._lock.release()

    # Taking it.

    def _begun(self, ends: float, given_up: Callable[[], bool]) -> int:
        """Return the number of the term that is ours from now on."""
        while True:
            last = self._last()
            if last:
                self._await_end(last, ends, given_up)
            try:
                self._make(last + 1)
            except FileExistsError:
                continue  # another one was faster
            durable_files.sync_folder(self._terms)
            return last + 1

    def _make(self, number: int) -> None:
        term = self._terms / f".{number:06d}"
        try:
            term.mkdir(mode=0o700)
        except OSError as error:
            if error.errno not in FULL:
                raise
            for path in self._terms.glob(".*/*"):  # of writers that have ended
                if path.name not in (_HOLDER, _BEATS, _RELEASED):
                    remove(path)
            term.mkdir(mode=0o700)

    def _last(self) -> int:
        numbers = [int(match[1]) for path in self._terms.iterdir() if (match := _TERM.fullmatch(path.name))]
        return max(numbers, default=0)

    def _await_end(self, number: int, ends: float, given_up: Callable[[], bool]) -> None:
        """Return once the holder of a term is gone; raise CannotStart if it lives and may not be awaited."""
        term = self._terms / f".{number:06d}"
        holder = holder_of(term)
        if (term / _RELEASED).exists() or (holder is not None and holder.machine == machine()):
            return  # of this machine: it has let go of the lock
        lease_s = max(self._lease_s, holder.lease_s if holder else 0.0)
        _log.info("waiting for %s, which may keep %s: %g s", holder or "a writer", self._folder, lease_s)
        seen, since, lives = _beats(term), time.monotonic(), False
        while time.monotonic() - since < lease_s:
            if given_up() or (lives and time.monotonic() >= ends):
                holder = holder_of(term)  # it may have written it since
                raise CannotStart(
                    f"another retriever ({holder or 'unknown'}) keeps the collections in {self._folder}: "
                    "stop it, or set EVENMESH_HOME to another folder"
                )
            time.sleep(lease_s / _LOOKS)
            if (term / _RELEASED).exists():
                return
            if (now := _beats(term)) != seen:
                seen, since, lives = now, time.monotonic(), True
        self.inherited = False
        _log.warning("%s gave no sign of itself for %g s and loses %s", holder, lease_s, self._folder)

    def _write_holder(self) -> None:
        holder = Holder(machine(), os.getpid(), platform.node(), self._lease_s)
        fields = {name: getattr(holder, name) for name in Holder.__slots__}
        for name in (_BEATS, _HOLDER):
            (self.term / name).unlink(missing_ok=True)  # of an attempt that found no room for the second
        durable_files.write(self.term / _BEATS, _beat_of(0))
        durable_files.write(self.term / _HOLDER, json.dumps(fields).encode())
        durable_files.sync_folder(self.term)

    def _end_earlier(self) -> None:
        """Remove the terms before, so that none of their holders can write any more."""
        for path in self._terms.iterdir():
            match = _TERM.fullmatch(path.name)
            if match and int(match[1]) >= self._number:
                continue
            for _ in range(_LOOKS):
                remove(path)
                if not path.exists():
                    break
                time.sleep(_AGAIN_S)  # a holder that lives may have put something in meanwhile
            else:
                raise CannotStart(f"cannot take over the collections in {self._folder}: {path} stays there")
        durable_files.sync_folder(self._terms)

    # Having it.

    def _beat(self) -> None:
        number = 0
        while not self._released.wait(self._lease_s / _BEATS_A_LEASE):
            number += 1
            try:
                # In place: no name changes, and closing it sends it to a server of files.
                descriptor = os.open(self.term / _BEATS, os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.pwrite(descriptor, _beat_of(number), 0)
                finally:
                    os.close(descriptor)
            except OSError as error:
                if _is_gone(error):
                    self._lose()
                    return
                _log.warning("the lease on %s could not be renewed: %s", self._folder, error.strerror)

    @contextmanager
    def _fenced(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self.is_over(error):
                raise Fenced(f"another retriever has taken over the collections in {self._folder}") from None
            raise

    def _lose(self) -> None:
        if not self.lost.is_set():
            self.lost.set()
            _log.error("another retriever has taken over %s: this one writes no more", self._folder)
            self._on_lost()


def machine() -> str:
    """Return what tells this machine, since it was started, from all others."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return platform.node()


def holder_of(term: Path) -> Holder | None:
    """Return who has a term; None if that cannot be read."""
    try:
        fields = json.loads((term / _HOLDER).read_bytes())
        return Holder(
            str(fields["machine"]), int(fields["process"]), str(fields["name"]), float(fields["lease_s"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remove(path: Path) -> None:
    """Remove a file or a folder, as far as that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _beats(term: Path) -> bytes:
    try:
        return (term / _BEATS).read_bytes()
    except OSError:
        return b""


def _beat_of(number: int) -> bytes:
    return f"{number:020d}\n".encode()


def _is_gone(error: OSError) -> bool:
    return error.errno in (errno.ENOENT, errno.ESTALE)
