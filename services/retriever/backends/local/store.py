"""Collections on a local disk: one writer each, readers that keep the version they began with."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import grpc

from meshkit.compute import ComputePool
from meshkit.errors import AlreadyExists, FailedPrecondition, MeshError, NotFound, Unavailable
from services.retriever.backends.local import change as changes
from services.retriever.backends.local import durable, shelf
from services.retriever.backends.local.build import Recipe, write_version
from services.retriever.backends.local.change import Change
from services.retriever.backends.local.lock import FolderLock
from services.retriever.backends.local.manifest import CorruptVersion, VersionName
from services.retriever.backends.local.snapshot import LocalSnapshot
from services.retriever.domain import CollectionInfo, DeleteReport, IngestReport, Passage
from services.retriever.ports import CannotStart, Snapshot

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_log = logging.getLogger("ragmesh.retriever.store")
T = TypeVar("T")
Checkpoint = Callable[[], None]


class _Abandoned(Exception):  # noqa: N818 - not an error
    """Ends a write whose result no one waits for."""


class _Version:
    """A version that is open, and how many readers hold it."""

    def __init__(self, snapshot: LocalSnapshot) -> None:
        self.snapshot = snapshot
        self.name = VersionName.of(snapshot.manifest)
        self.readers = 0


class _Collection:
    """A collection in service.

    Attributes:
        served: the version that new readers get.
        previous: the version before, kept on disk in case the one served turns out corrupt.
    """

    def __init__(self, served: _Version, previous: VersionName | None) -> None:
        self.served = served
        self.previous = previous
        self._held: list[_Version] = []

    def serve(self, snapshot: LocalSnapshot) -> VersionName | None:
        """Serves a new version; returns the one that no one needs any more, if there is one."""
        needless = self.previous
        if self.served.readers:
            self._held.append(self.served)
        self.previous = self.served.name
        self.served = _Version(snapshot)
        return None if any(version.name == needless for version in self._held) else needless

    def release(self, version: _Version) -> VersionName | None:
        """Ends one reader's hold; returns the version if no one needs it any more."""
        version.readers -= 1
        if version.readers or version is self.served:
            return None
        self._held.remove(version)
        return None if version.name == self.previous else version.name


class LocalStore:
    """Fills the port :class:`services.retriever.ports.CollectionStore`. For one event loop.

    A write builds a whole new version in a thread, from what it can take over and what is new, then makes it
    current and serves it. The version served and the one before stay on disk, and so does any that a reader
    holds.

    Args:
        root: folder of the collections; made if it is not there.
        recipe: how passages are indexed.
        prepare: called in a thread with each snapshot before it is served.
        threads: collections that may be written at a time, [1, inf).
    """

    def __init__(
        self, root: Path, recipe: Recipe, prepare: Callable[[LocalSnapshot], None], *, threads: int = 2
    ) -> None:
        self._root = root
        self._recipe = recipe
        self._prepare = prepare
        self._pool = ComputePool(threads, "retriever-write")
        self._collections: dict[str, _Collection] = {}
        self._corrupt: dict[str, str] = {}
        self._writers: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = Event()
        self._lock: FolderLock | None = None

    async def start(self) -> None:
        """Takes the folder and opens every collection in it, checking every byte.

        Raises:
            CannotStart: the folder cannot be written, or another process has it.
        """
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(self._root)
            for name in await self._pool.run(shelf.collections, self._root):
                await self._pool.run(self._open, name)
        except OSError as error:
            raise CannotStart(
                f"cannot keep collections in {self._root}: {error.strerror}: set RAGMESH_HOME to a folder "
                "that can be written"
            ) from None

    async def stop(self) -> None:
        """Abandons the writes that run, nothing of which is kept, and lets go of the folder."""
        self._closing.set()
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._pool.close()
        self._collections.clear()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @contextmanager
    def lease(self, name: str) -> Iterator[Snapshot]:
        """The version served now, kept for as long as the block runs."""
        collection = self._find("collection", name)
        version = collection.served
        version.readers += 1
        try:
            yield version.snapshot
        finally:
            self._discard(name, collection.release(version))

    def describe(self, name: str) -> CollectionInfo:
        """One collection."""
        return self._find("name", name).served.snapshot.info

    def list(self) -> list[CollectionInfo]:
        """All collections that can be read, by ascending name."""
        return [collection.served.snapshot.info for _, collection in sorted(self._collections.items())]

    async def create(self, name: str, description: str) -> CollectionInfo:
        """A new, empty collection."""

        async def write(checkpoint: Checkpoint) -> CollectionInfo:
            if self._is_taken(name):
                raise AlreadyExists("name", f"there is a collection {name!r} already")
            return await self._create(name, description, changes.ingest(None, []), checkpoint)

        return await self._alone(name, write)

    async def ingest(self, name: str, passages: Sequence[Passage], *, create: bool) -> IngestReport:
        """Adds or replaces passages; what is there already, equal in every field, changes nothing."""

        async def write(checkpoint: Checkpoint) -> IngestReport:
            if create and not self._is_taken(name):
                change = await self._pool.run(changes.ingest, None, passages)
                info = await self._create(name, "", change, checkpoint)
            else:
                collection = self._find("collection", name)
                change = await self._pool.run(changes.ingest, collection.served.snapshot.records, passages)
                info = await self._update(name, collection, change, checkpoint)
            return IngestReport(info, change.added, change.replaced, change.unchanged)

        return await self._alone(name, write)

    async def delete_passages(self, name: str, ids: Sequence[str]) -> DeleteReport:
        """Removes passages by id."""

        async def write(checkpoint: Checkpoint) -> DeleteReport:
            collection = self._find("collection", name)
            change = await self._pool.run(changes.deletion, collection.served.snapshot.records, ids)
            info = await self._update(name, collection, change, checkpoint)
            return DeleteReport(info, change.deleted, change.missing)

        return await self._alone(name, write)

    async def drop(self, name: str) -> None:
        """Removes a collection; its readers read on."""

        async def write(_: Checkpoint) -> None:
            if name not in self._corrupt:
                self._find("name", name)
            await self._pool.run(shelf.remove, self._root, name)
            self._corrupt.pop(name, None)
            self._collections.pop(name, None)

        await self._alone(name, write)

    def _is_taken(self, name: str) -> bool:
        return name in self._collections or name in self._corrupt

    def _find(self, field: str, name: str) -> _Collection:
        collection = self._collections.get(name)
        if collection is not None:
            return collection
        if name in self._corrupt:
            raise FailedPrecondition(
                "COLLECTION_CORRUPT",
                f"collection {name!r} cannot be read: {self._corrupt[name]}; restore the file and start "
                "again, or delete the collection and ingest it anew",
            )
        raise NotFound(field, f"there is no collection {name!r}")

    def _open(self, name: str) -> None:
        folder = self._root / name
        try:
            version, manifest = shelf.newest_sound(folder)
        except CorruptVersion as error:
            # Callers are told which file, not where this machine keeps it.
            self._corrupt[name] = str(error).replace(f"{self._root}/", "")
            return
        snapshot = LocalSnapshot(folder / str(version), manifest)
        self._prepare(snapshot)
        earlier = [other for other in shelf.versions(folder) if other.generation < version.generation]
        for other in earlier[1:]:
            shelf.discard(folder, other)
        self._collections[name] = _Collection(_Version(snapshot), earlier[0] if earlier else None)

    async def _create(
        self, name: str, description: str, change: Change, checkpoint: Checkpoint
    ) -> CollectionInfo:
        snapshot = await self._pool.run(self._build_first, name, description, change, checkpoint)
        self._collections[name] = _Collection(_Version(snapshot), None)
        _log.info("collection %s created at version %s", name, snapshot.info.version)
        return snapshot.info

    async def _update(
        self, name: str, collection: _Collection, change: Change, checkpoint: Checkpoint
    ) -> CollectionInfo:
        base = collection.served.snapshot
        if change.is_empty and self._recipe.made(base):
            return base.info
        snapshot = await self._pool.run(self._build_next, base, change, checkpoint)
        self._discard(name, collection.serve(snapshot))
        _log.info(
            "collection %s is at version %s",
            name,
            snapshot.info.version,
            extra={"added": change.added, "replaced": change.replaced, "deleted": change.deleted},
        )
        return snapshot.info

    def _build_first(
        self, name: str, description: str, change: Change, checkpoint: Checkpoint
    ) -> LocalSnapshot:
        with shelf.unborn(self._root) as folder:
            snapshot = self._build(folder, name, 1, description, None, change, checkpoint)
            durable.move_folder(folder, self._root / name)
        return snapshot

    def _build_next(self, base: LocalSnapshot, change: Change, checkpoint: Checkpoint) -> LocalSnapshot:
        name = base.info.name
        folder = self._root / name
        generation = 1 + max(version.generation for version in shelf.versions(folder))
        return self._build(folder, name, generation, base.info.description, base, change, checkpoint)

    def _build(
        self,
        folder: Path,
        name: str,
        generation: int,
        description: str,
        base: LocalSnapshot | None,
        change: Change,
        checkpoint: Checkpoint,
    ) -> LocalSnapshot:
        with shelf.scratch(folder) as built:
            manifest = write_version(
                built,
                collection=name,
                generation=generation,
                description=description,
                base=base,
                change=change,
                recipe=self._recipe,
                checkpoint=checkpoint,
            )
            snapshot = LocalSnapshot(built, manifest)
            self._prepare(snapshot)
            checkpoint()
            shelf.publish(folder, built, manifest)
        return snapshot

    async def _alone(self, name: str, write: Callable[[Checkpoint], Awaitable[T]]) -> T:
        """Runs a write while no other writes that collection.

        When its caller goes away the write ends at its next checkpoint, leaving nothing; once it is past the
        last one it goes through, so that memory and disk never disagree.
        """
        abandoned = Event()

        def checkpoint() -> None:
            if abandoned.is_set() or self._closing.is_set():
                raise _Abandoned

        async def run() -> T:
            writer = self._writers.setdefault(name, asyncio.Lock())
            async with writer:
                checkpoint()
                return await write(checkpoint)

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            abandoned.set()
            raise
        except _Abandoned:
            raise Unavailable("SHUTTING_DOWN", "the service is shutting down; nothing was kept") from None
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise MeshError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "STORAGE_FULL",
                "the disk of the collections is full; nothing was kept",
            ) from None

    def _discard(self, name: str, version: VersionName | None) -> None:
        if version is not None and not self._closing.is_set():
            task = asyncio.ensure_future(self._pool.run(shelf.discard, self._root / name, version))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, MeshError | _Abandoned):
            # Whoever waits gets it too; if no one does any more, this is all that tells.
            _log.warning("a write failed with %s", type(error).__name__)
