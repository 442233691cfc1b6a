"""Serve the collections that another process writes, without writing there: a read replica.

The folder is looked at every few seconds. A pointer that names another version has that version opened beside
the one that is served, and then taken for it in one assignment; segments that both have stay open. A version
that is not whole, because files are damaged or not there yet, is not served: the one before is, and says so.

The writer removes files of versions that were replaced. On a local file system what is open here stays
readable; on others, such as NFS, it does not, and reading a mapped file that is gone ends the process. There
the writer keeps such files for a while (``Options.keep_s`` of the store), and readers here let go of them in
half of it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final

from evenmesh.wire.errors import FailedPrecondition, MeshError, NotFound
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_retriever.backends.segments.building.writer import SegmentIndexing
from evenmesh_retriever.backends.segments.files import manifest as manifests
from evenmesh_retriever.backends.segments.files import segment_directory
from evenmesh_retriever.backends.segments.files.lease import TERMS
from evenmesh_retriever.backends.segments.files.lock import LOCK
from evenmesh_retriever.backends.segments.files.manifest import Corrupt, Name, VersionManifest
from evenmesh_retriever.backends.segments.files.segment import View
from evenmesh_retriever.backends.segments.files.segment_directory import SegmentDirectory
from evenmesh_retriever.backends.segments.snapshot import SegmentSnapshot
from evenmesh_retriever.domain import (
    CollectionInfo,
    DeleteReport,
    IngestReport,
    Lexical,
    Passage,
)
from evenmesh_retriever.ports import CannotStart, CollectionStore, Key, Snapshot

_ATTEMPTS: Final = 5
"""How often a version is opened anew that was replaced while it was opened."""
_AGAIN_S: Final = 30.0
"""Wait before a version is opened again that could not be."""
_OPENING: Final = 2
"""Collections that are opened at a time."""
_SIGNS: Final = (TERMS, LOCK)
"""What a writer leaves in its folder."""
_log = logging.getLogger("evenmesh.retriever.follower")
Identity = tuple[int, int]
"""Of a folder: a collection that was made anew has another."""
Infos = list[CollectionInfo]
Files = list[tuple[Path, str]]
"""Paths, and the SHA-256 of each."""


@dataclass(frozen=True, slots=True)
class Following:
    """What may be set about following."""

    look_s: float = 2.0
    """Time between two looks at the folder. Seconds, (0, inf)."""
    stale_s: float = 60.0
    """How long no look may have succeeded before this process is not ready. Seconds, (0, inf)."""
    keep_s: float = 0.0
    """How long the writer keeps files of versions that were replaced. Seconds, [0, inf); 0 where they stay
    readable for as long as they are open."""
    verify_bytes: int = 32 * 2**20
    """New files of a version that are read and checked before it is served, in all; larger ones are checked
    while it serves. Bytes, [0, inf)."""


@dataclass(frozen=True, slots=True, eq=False)
class _Followed:
    """A collection as it is known here."""

    identity: Identity
    pointer: Name | None
    """What its pointer named when it was last opened, with or without success."""
    snapshot: SegmentSnapshot | None
    """What is served; None if nothing of it can be."""
    problem: str = ""
    """Why that is not what the pointer named; empty if it is."""
    again_at: float = 0.0
    """When that is tried again; of ``time.monotonic``."""


class FollowingStore(CollectionStore):
    """Collections of all tenants, on the folder of another process. For one event loop.

    Args:
        root: folder of the collections; empty as long as it is not there.
        recipe: how passages are indexed, as the writer has it.
        prepare: called in a thread with each version before it is served.
        following: what may be set.
        on_fresh: called on the event loop with whether a look has succeeded lately, whenever that changes.
    """

    def __init__(
        self,
        root: Path,
        recipe: SegmentIndexing,
        prepare: Callable[[SegmentSnapshot], None],
        following: Following = Following(),
        on_fresh: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._root = root
        self._recipe = recipe
        self._prepare = prepare
        self._following = following
        self._on_fresh = on_fresh
        self._looking = ComputePool(1, "retriever-look")
        self._opening = ComputePool(_OPENING, "retriever-open")
        self._checking = ComputePool(1, "retriever-check")
        self._collections: dict[Key, _Followed] = {}
        self._behind: dict[Key, float] = {}
        self._pointed: dict[Key, Name] = {}
        self._damaged: set[Path] = set()
        self._guard = Lock()
        self._tenants: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._looked_at = 0.0
        self._looked_on_clock = 0.0
        self._fresh = True
        self._started = False

    async def start(self) -> None:
        """Open every collection that is there, and begin to follow.

        Raises:
            CannotStart: the folder cannot be read.
        """
        try:
            await self.look()
        except OSError as error:
            raise CannotStart(
                f"cannot follow the collections in {self._root}: {error.strerror}: let this process read them"
            ) from None
        self._started = True
        self._begin(self._follow())
        self._begin(self._watch())

    async def stop(self) -> None:
        """Let go of all collections."""
        tasks = [*self._tasks, *self._tenants.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for pool in (self._looking, self._opening, self._checking):
            pool.close()
        self._collections.clear()

    async def look(self) -> None:
        """Look at the folder once, and serve what is new in it.

        Raises:
            OSError: the folder cannot be read, or is not there any more.
        """
        began, on_clock = time.time(), time.monotonic()
        changed = await self._looking.run(self._changed)
        by_tenant: dict[str, list[Key]] = {}
        for key in changed:
            by_tenant.setdefault(key[0], []).append(key)
        for tenant, keys in by_tenant.items():
            # One tenant's large collections delay no other's; they are seen again at the next look.
            if tenant not in self._tenants:
                task = self._tenants[tenant] = asyncio.create_task(self._open_all(keys))
                task.add_done_callback(partial(self._ended, tenant))
        self._looked_at, self._looked_on_clock = began, on_clock
        if opening := list(self._tenants.values()):
            await asyncio.wait(opening, timeout=self._following.look_s if self._started else None)

    @property
    def age_s(self) -> float:
        """Time since the last look that succeeded began. Seconds."""
        return time.monotonic() - self._looked_on_clock

    # What is served.

    @contextmanager
    def lease(self, key: Key) -> Iterator[Snapshot]:
        """Yield the version served now, kept for as long as the block runs."""
        yield self._find("collection", key)[1]

    def describe(self, key: Key) -> CollectionInfo:
        """Return one collection."""
        return self._info(key, *self._find("name", key))

    def list(self, tenant: str) -> Infos:
        """Return all collections of a tenant that can be read, by ascending name."""
        mine = [info for owner, info in self.everyones() if owner == tenant]
        return sorted(mine, key=lambda info: info.name)

    def everyones(self) -> Sequence[tuple[str, CollectionInfo]]:
        """Return all collections that can be read, each after its tenant; from any thread."""
        return [
            (key[0], self._info(key, one, one.snapshot))
            for key, one in tuple(self._collections.items())
            if one.snapshot is not None
        ]

    def lags(self) -> Sequence[tuple[Key, int]]:
        """Return for each collection how many versions what is served is behind; from any thread.

        One that cannot be served is as many behind as it has had, and 1 at least.
        """
        found = []
        for key, one in tuple(self._collections.items()):
            pointed = self._pointed.get(key)
            served = one.snapshot.manifest.name if one.snapshot is not None else None
            if pointed == served is not None and not one.problem:
                found.append((key, 0))
            else:
                behind = (pointed.generation if pointed else 0) - (served.generation if served else 0)
                found.append((key, max(1, behind)))
        return found

    def as_of(self, key: Key) -> datetime:
        """Return when the version served was last known to be the current one."""
        return datetime.fromtimestamp(self._behind.get(key, self._looked_at), UTC)

    def check_writable(self) -> None:
        """Refuse a write."""
        raise _read_only()

    async def create(self, key: Key, description: str, lexical: Lexical) -> CollectionInfo:
        """Refuse."""
        raise _read_only()

    async def ingest(self, key: Key, passages: Sequence[Passage], *, create: bool) -> IngestReport:
        """Refuse."""
        raise _read_only()

    async def delete_passages(self, key: Key, ids: Sequence[str]) -> DeleteReport:
        """Refuse."""
        raise _read_only()

    async def drop(self, key: Key) -> None:
        """Refuse."""
        raise _read_only()

    def _info(self, key: Key, followed: _Followed, snapshot: SegmentSnapshot) -> CollectionInfo:
        return replace(snapshot.info, warning=followed.problem, as_of=self.as_of(key))

    def _find(self, field: str, key: Key) -> tuple[_Followed, SegmentSnapshot]:
        followed = self._collections.get(key)
        if followed is None:
            raise NotFound(field, f"there is no collection {key[1]!r}")
        if followed.snapshot is None:
            raise FailedPrecondition(
                "COLLECTION_CORRUPT", f"collection {key[1]!r} cannot be read: {followed.problem}"
            )
        return followed, followed.snapshot

    # Looking.

    def _changed(self) -> Sequence[Key]:
        """Return the collections that are to be opened; forget those that are gone. Runs in a thread."""
        clock = time.monotonic()
        there = list(segment_directory.collections(self._root)) if self._root.is_dir() else []
        if self._collections and not any((self._root / one).exists() for one in _SIGNS):
            # A volume that is away looks like a folder from which all collections were removed.
            raise FileNotFoundError(errno.ENOENT, "no writer has been in the folder", str(self._root))
        changed = []
        for key in there:
            directory = self._directory(key)
            try:
                identity = _identity(directory.folder)
            except OSError:
                continue  # it has just gone
            pointer = directory.current()
            if pointer is not None:
                self._pointed[key] = pointer
            known = self._collections.get(key)
            is_same = known is not None and (known.identity, known.pointer) == (identity, pointer)
            if known is not None and is_same and not known.problem:
                self._behind.pop(key, None)
                continue
            if known is not None and is_same and clock < known.again_at:
                continue
            if known is not None and not is_same:
                self._behind.setdefault(key, self._looked_at)
            changed.append(key)
        for key in set(self._collections) - set(there):
            self._forget(key)
        return changed

    def _forget(self, key: Key) -> None:
        with self._guard:
            gone = self._collections.pop(key, None)
        self._behind.pop(key, None)
        self._pointed.pop(key, None)
        if gone is not None and gone.snapshot is not None:
            self._end(gone.snapshot)
            _log.info("collection %s is gone", key[1])

    async def _open_all(self, keys: Sequence[Key]) -> None:
        for key in keys:
            unread = await self._opening.run(self._open, key)
            if unread:
                self._begin(self._verify(key, unread))

    def _ended(self, tenant: str, task: asyncio.Task[None]) -> None:
        self._tenants.pop(tenant, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a collection could not be followed", exc_info=error)

    def _open(self, key: Key) -> Files:
        """Serve what a collection's pointer names, if it is whole; return files still to be checked."""
        directory = self._directory(key)
        for attempt in range(_ATTEMPTS):
            before = self._collections.get(key)
            try:
                identity = _identity(directory.folder)
            except OSError:
                return []  # the next look forgets it
            pointer = directory.current()
            if before is not None and before.identity != identity:
                before = None  # made anew under its name
            unread: Files = []
            try:
                snapshot = self._opened(directory, pointer, before, unread)
            except (Corrupt, OSError, MeshError) as error:
                if attempt + 1 < _ATTEMPTS and self._has_moved(directory, identity, pointer):
                    continue  # files were removed because the version was replaced
                self._settle_for_less(key, directory, _Followed(identity, pointer, None), before, error)
                return []
            self._serve(key, _Followed(identity, pointer, snapshot))
            if self._pointed.get(key) == pointer:  # else the next look says whether it is current
                self._behind.pop(key, None)
            return unread
        return []

    def _opened(
        self,
        directory: SegmentDirectory,
        pointer: Name | None,
        before: _Followed | None,
        unread: Files,
    ) -> SegmentSnapshot:
        """Return the version that a pointer names, prepared.

        Raises:
            Corrupt: something of it is not as it was written, or not there.
        """
        if pointer is None:
            raise Corrupt(f"{directory.folder / segment_directory.POINTER} is missing or damaged")
        known = _views(before)
        manifest = directory.manifest(pointer)
        views = [directory.view(entry, known) for entry in manifest.segments]
        self._check(directory, views, known, unread)
        snapshot = self._recipe.snapshot(manifest, views)
        self._prepare(snapshot)
        return snapshot

    def _check(
        self,
        directory: SegmentDirectory,
        views: Sequence[View],
        known: dict[str, View],
        unread: Files,
    ) -> None:
        """Read and check new files, the smallest first; note those that are to be checked later."""
        unread.clear()
        old = {file[0] for view in known.values() for file in directory.files(view)}
        files = [file for view in views for file in directory.files(view)]
        most = self._following.verify_bytes
        unread.extend(manifests.check_first(files, most, damaged=self._damaged, checked=old))
        for view in views:
            if view.dense is not None and self._recipe.encoder is not None:
                view.dense.check()

    def _has_moved(self, directory: SegmentDirectory, identity: Identity, pointer: Name | None) -> bool:
        try:
            return _identity(directory.folder) != identity or directory.current() != pointer
        except OSError:
            return True

    def _settle_for_less(
        self,
        key: Key,
        directory: SegmentDirectory,
        wanted: _Followed,
        before: _Followed | None,
        error: Exception,
    ) -> None:
        """Serve the version before, where the one that is current cannot be."""
        problem = self._without_root(error)
        again_at = time.monotonic() + _AGAIN_S
        snapshot = before.snapshot if before is not None else None
        if before is None or before.pointer != wanted.pointer:
            _log.error("collection %s is not followed to %s: %s", key[1], wanted.pointer, error)
        if snapshot is None:
            unread: Files = []

            def check(_: VersionManifest, views: Sequence[View]) -> None:
                self._check(directory, views, {}, unread)

            with suppress(Corrupt, OSError, MeshError):
                manifest, views, _ = directory.newest_sound(check)
                snapshot = self._recipe.snapshot(manifest, views)
                self._prepare(snapshot)
        if snapshot is not None:
            problem = f"{problem}; version {snapshot.info.version} is served"
        self._behind.setdefault(key, self._looked_at or time.time())
        self._serve(key, replace(wanted, snapshot=snapshot, problem=problem, again_at=again_at))

    def _serve(self, key: Key, followed: _Followed) -> None:
        with self._guard:
            before = self._collections.get(key)
            self._collections[key] = followed
        if before is not None and before.snapshot is not None and before.snapshot is not followed.snapshot:
            self._end(before.snapshot)
        if followed.snapshot is not None and (before is None or before.snapshot is not followed.snapshot):
            _log.info("collection %s is at version %s", key[1], followed.snapshot.info.version)

    def _end(self, snapshot: SegmentSnapshot) -> None:
        """Have readers let go of a version before its files go."""
        if self._following.keep_s:
            snapshot.ends = time.monotonic() + self._following.keep_s / 2

    async def _verify(self, key: Key, files: Files) -> None:
        """Read and check files while they serve; stop serving damaged ones."""
        for path, sha256 in files:
            try:
                await self._checking.run(manifests.check_content, path, sha256)
            except Corrupt as error:
                if not path.exists():
                    continue
                _log.error("collection %s: %s", key[1], error)
                self._damaged.add(path)
                await self._opening.run(self._reopen, key, path)

    def _reopen(self, key: Key, damaged: Path) -> None:
        followed = self._collections.get(key)
        if followed is None or followed.snapshot is None:
            return
        directory = self._directory(key)
        used = {file[0] for view in followed.snapshot.views for file in directory.files(view)}
        if damaged not in used:
            return
        wanted = replace(followed, snapshot=None)
        error = Corrupt(f"{damaged} does not have the SHA-256 of its manifest")
        self._settle_for_less(key, directory, wanted, None, error)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._following.look_s)
            try:
                await self.look()
            except OSError as error:
                _log.warning("the collections in %s cannot be looked at: %s", self._root, error.strerror)

    async def _watch(self) -> None:
        """Say whether looks succeed, also while one hangs."""
        while True:
            fresh = self.age_s <= self._following.stale_s
            if fresh != self._fresh:
                self._fresh = fresh
                self._on_fresh(fresh)
            await asyncio.sleep(min(self._following.look_s, self._following.stale_s) / 2)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _directory(self, key: Key) -> SegmentDirectory:
        return SegmentDirectory(self._root / key[0] / key[1])

    def _without_root(self, what: object) -> str:
        # Name the file to callers, not its path on this machine.
        return str(what).replace(f"{self._root}/", "")


def _identity(folder: Path) -> Identity:
    found = folder.stat()
    return found.st_dev, found.st_ino


def _views(followed: _Followed | None) -> dict[str, View]:
    """Return the views that are open, by their segment's name."""
    if followed is None or followed.snapshot is None:
        return {}
    return {view.segment.name: view for view in followed.snapshot.views}


def _read_only() -> FailedPrecondition:
    return FailedPrecondition(
        "READ_ONLY_REPLICA",
        "this retriever follows another one and writes nothing: send this to the one that keeps the "
        "collections",
    )
