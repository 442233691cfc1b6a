"""Keep live collections on a local disk: one writer each; readers keep the version they began with."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event
from types import MappingProxyType
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import grpc

from evenmesh.wire import deadline
from evenmesh.wire.errors import AlreadyExists, FailedPrecondition, MeshError, NotFound, Unavailable
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.storage.rights import keep_owners_rights
from evenmesh_retriever.backends.segments.building import compaction, embedding
from evenmesh_retriever.backends.segments.building.compaction import Candidate
from evenmesh_retriever.backends.segments.building.writer import (
    CollectionWriter,
    Merged,
    SegmentIndexing,
    Written,
    changed,
)
from evenmesh_retriever.backends.segments.files import manifest as manifests
from evenmesh_retriever.backends.segments.files import segment_directory, writable_directory
from evenmesh_retriever.backends.segments.files.lease import FULL, Fenced, WriterLease
from evenmesh_retriever.backends.segments.files.manifest import Corrupt, VersionManifest
from evenmesh_retriever.backends.segments.files.segment import View
from evenmesh_retriever.backends.segments.files.writable_directory import WritableDirectory
from evenmesh_retriever.backends.segments.quotas import Quotas, Usage
from evenmesh_retriever.backends.segments.served import OpenVersion, ServedCollection
from evenmesh_retriever.backends.segments.snapshot import SegmentSnapshot
from evenmesh_retriever.domain import (
    CollectionInfo,
    DeleteReport,
    IngestReport,
    Lexical,
    Passage,
    VectorArray,
)
from evenmesh_retriever.ports import CannotStart, CollectionStore, Encoder, Key, Snapshot

_YIELD: Final = 10
"""How far the threads of ingests and merges yield the processors to those of searches, as ``nice`` counts."""
# Passages of an ingest that are encoded at a time before its turn: others come in between.
_AHEAD: Final = 64
_log = logging.getLogger("evenmesh.retriever.store")
T = TypeVar("T")
Checkpoint = Callable[[], None]


class _Abandoned(Exception):  # noqa: N818 - not an error
    """Ends a write whose result no one waits for."""


@dataclass(frozen=True, slots=True)
class Options:
    """What may be set about the store."""

    quotas: Quotas = field(default_factory=Quotas)
    verify_bytes: int = 32 * 2**20
    """Files of a collection that are read and checked before it is served, in all; larger ones are checked
    while it serves. Bytes, [0, inf)."""
    max_segment_passages: int = 8_000_000
    """Largest segment that merging makes, [1, 2^31 - 1]."""
    write_threads: int = 2
    """Collections of a tenant that may be written at a time, [1, inf)."""
    merge_threads: int = 2
    """Merges of a tenant's collections at a time, [1, inf)."""
    lock_wait_s: float = 0.0
    """How long another process that has the folder is waited for. Seconds, [0, inf)."""
    lease_s: float = 15.0
    """How long this process counts as alive, for one of another machine, after its last sign. Seconds,
    (0, inf)."""
    keep_s: float = 0.0
    """How long files stay that no version served needs any more, for processes elsewhere that read them.
    Seconds, [0, inf)."""
    retry_s: float = 10.0
    """Wait before vectors are made again for which an encoder elsewhere was away. Seconds, (0, inf)."""


class SegmentStore(CollectionStore):
    """Collections of all tenants, on one folder. For one event loop.

    A write costs what is in it: it makes a segment of its passages, marks those they replace as gone, and
    publishes a version that consists of the old segments and the new one. In the background segments are
    merged and vectors are made. The version served and the one before stay on disk, and so does any that a
    reader holds.

    Args:
        root: folder of the collections; made if it is not there.
        recipe: how passages are indexed.
        prepare: called in a thread with each version before it is published or served; what it raises ends
            the write.
        options: what may be set.
        on_lost: called on the event loop, once, when another process has taken over the folder: from then on
            every write fails.
    """

    def __init__(
        self,
        root: Path,
        recipe: SegmentIndexing,
        prepare: Callable[[SegmentSnapshot], None],
        options: Options = Options(),
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._root = root
        self._recipe = recipe
        self._prepare = prepare
        self._options = options
        self._on_lost = on_lost
        self._pool = TenantPool(options.write_threads, "retriever-write", _YIELD)
        self._merging = TenantPool(options.merge_threads, "retriever-merge", _YIELD)
        self._embedding = TenantPool(1, "retriever-embed", _YIELD)
        self._encoding = TenantPool(options.write_threads, "retriever-encode", _YIELD)
        self._checking = ComputePool(1, "retriever-check")
        self._collections: dict[Key, ServedCollection] = {}
        self._corrupt: dict[Key, str] = {}
        self._creating: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._promised: dict[Key, Usage] = {}
        self._begun: set[Key] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = Event()
        self._loop: asyncio.AbstractEventLoop
        self._lease: WriterLease | None = None

    async def start(self) -> None:
        """Take the folder and open every collection in it.

        Raises:
            CannotStart: the folder cannot be written, or another process has it.
        """
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(PermissionError):  # another user's, who shares it
                keep_owners_rights(self._root)
            self._loop = asyncio.get_running_loop()
            self._lease = await self._pool.run(
                partial(
                    WriterLease,
                    self._root,
                    wait_s=self._options.lock_wait_s,
                    lease_s=self._options.lease_s,
                    given_up=self._closing.is_set,
                    on_lost=self._lost,
                )
            )
            await self._pool.run(self._clear_up)
            for key in await self._pool.run(lambda: list(segment_directory.collections(self._root))):
                unread = await self._pool.run(self._open, key)
                if unread:
                    self._later(self._verify(key, unread))
        except OSError as error:
            raise CannotStart(
                f"cannot keep collections in {self._root}: {error.strerror}: set EVENMESH_HOME to a folder "
                "that can be written"
            ) from None
        except Fenced as error:
            raise CannotStart(str(error)) from None
        except asyncio.CancelledError:
            self._closing.set()  # else a thread goes on waiting
            raise
        for collection in self._collections.values():
            self._tend(collection)
            self._sweep_in_time(collection)

    async def stop(self) -> None:
        """Abandon running writes, of which nothing is kept, and unlock the folder."""
        self._closing.set()
        while self._tasks:
            await asyncio.wait(self._tasks)
        for pool in (self._pool, self._merging, self._embedding, self._encoding, self._checking):
            pool.close()
        self._collections.clear()
        if self._lease is not None:
            await asyncio.to_thread(self._lease.release)
            self._lease = None

    async def settled(self) -> None:
        """Wait until nothing is left to be merged, embedded or removed."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    @contextmanager
    def lease(self, key: Key) -> Iterator[Snapshot]:
        """Yield the version served now, kept for as long as the block runs."""
        with self._held(self._find("collection", key)) as snapshot:
            yield snapshot

    @contextmanager
    def _held(self, collection: ServedCollection) -> Iterator[SegmentSnapshot]:
        version = collection.served
        version.readers += 1
        try:
            yield version.snapshot
        finally:
            version.readers -= 1
            if not version.readers and version is not collection.served:
                collection.held.remove(version)
                self._later(self._swept(collection))

    def describe(self, key: Key) -> CollectionInfo:
        """Return one collection."""
        return self._find("name", key).info()

    def list(self, tenant: str) -> list[CollectionInfo]:
        """Return all collections of a tenant that can be read, by ascending name."""
        mine = [(name, one) for (owner, name), one in self._collections.items() if owner == tenant]
        return [one.info() for _, one in sorted(mine, key=lambda entry: entry[0])]

    def everyones(self) -> Sequence[tuple[str, CollectionInfo]]:
        """Return all collections that can be read, each after its tenant; from any thread."""
        return [(owner, one.info()) for (owner, _), one in tuple(self._collections.items())]

    async def create(self, key: Key, description: str, lexical: Lexical) -> CollectionInfo:
        """Return a new, empty collection."""
        self._recipe.analyzer(lexical.analyzer)

        async def write(checkpoint: Checkpoint) -> CollectionInfo:
            if self._is_taken(key):
                raise AlreadyExists("name", f"there is a collection {key[1]!r} already")
            return (await self._create(key, description, lexical, None, checkpoint)).snapshot.info

        return await self._alone(self._creating.setdefault(key, asyncio.Lock()), write)

    async def ingest(self, key: Key, passages: Sequence[Passage], *, create: bool) -> IngestReport:
        """Add or replace passages; a passage already stored, equal in every field, changes nothing."""
        recipe = self._recipe
        ready: dict[str, VectorArray] = {}
        if recipe.ahead is None and recipe.encoder is None:
            return await self._ingest(key, passages, ready, create=create)
        # What would be refused is refused before it is encoded, which is what an ingest costs.
        collection = None if create and not self._is_taken(key) else self._find("collection", key)
        with ExitStack() as stack:
            base = None if collection is None else stack.enter_context(self._held(collection))
            new, usage = await self._encoding.run(changed, base, passages)
            if new:
                self._check(key, usage)
                if collection is None:
                    self._check_number(key)
            encodings = [] if recipe.ahead is None else [stack.enter_context(recipe.ahead(key[0]))]
            if recipe.encoder is not None and len(new) <= recipe.embed_at_once:
                encodings.append(partial(_embed_ahead, ready, base, recipe.encoder))
            for begin in range(0, len(new), _AHEAD):
                contents = [passage.content for passage in new[begin : begin + _AHEAD]]
                for encode in encodings:
                    if self._closing.is_set():
                        raise _shutting_down()
                    await self._encoding.run(encode, contents)
            return await self._ingest(key, passages, ready, create=create)

    async def _ingest(
        self, key: Key, passages: Sequence[Passage], ready: Mapping[str, VectorArray], *, create: bool
    ) -> IngestReport:
        async def make(checkpoint: Checkpoint) -> Written | None:
            if self._is_taken(key):
                return None
            return await self._create(key, "", Lexical(), passages, checkpoint, ready)

        written = None
        if create and not self._is_taken(key):
            written = await self._alone(self._creating.setdefault(key, asyncio.Lock()), make)
        if written is None:
            written = await self._written(
                key,
                lambda c, admit, checkpoint: c.writer.ingest(
                    c.served.snapshot, passages, admit, checkpoint, ready
                ),
            )
        return IngestReport(written.snapshot.info, written.added, written.replaced, written.unchanged)

    async def delete_passages(self, key: Key, ids: Sequence[str]) -> DeleteReport:
        """Remove passages by id."""
        written = await self._written(
            key, lambda c, _, checkpoint: c.writer.delete(c.served.snapshot, ids, checkpoint)
        )
        return DeleteReport(written.snapshot.info, written.deleted, written.missing)

    async def drop(self, key: Key) -> None:
        """Remove a collection; its readers read on."""
        if key not in self._corrupt:
            self._find("name", key)
        collection = self._collections.get(key)

        async def write(_: Checkpoint) -> None:
            # Another call may have removed it, and yet another made it anew.
            if self._collections.get(key) is not collection or (
                collection is None and key not in self._corrupt
            ):
                raise NotFound("name", f"there is no collection {key[1]!r}")
            await self._pool.run(self._buried, self._folder(key))
            self._corrupt.pop(key, None)
            if self._collections.pop(key, None) is not None and collection is not None:
                collection.gone.set()

        turn = collection.turn if collection else self._creating.setdefault(key, asyncio.Lock())
        await self._alone(turn, write)

    def _folder(self, key: Key) -> Path:
        tenant, name = key
        return self._root / tenant / name

    def _lost(self) -> None:
        self._loop.call_soon_threadsafe(self._on_lost)

    def _directory(self, key: Key) -> WritableDirectory:
        return WritableDirectory(self._folder(key), self._right)

    @property
    def _right(self) -> WriterLease:
        """The right to write here."""
        if self._lease is None:
            raise _shutting_down()
        return self._lease

    def _is_taken(self, key: Key) -> bool:
        return key in self._collections or key in self._corrupt

    def _find(self, field: str, key: Key) -> ServedCollection:
        collection = self._collections.get(key)
        if collection is not None:
            return collection
        if key in self._corrupt:
            raise FailedPrecondition(
                "COLLECTION_CORRUPT",
                f"collection {key[1]!r} cannot be read: {self._corrupt[key]}; restore the file and start "
                "again, or delete the collection and ingest it anew",
            )
        raise NotFound(field, f"there is no collection {key[1]!r}")

    # Opening and checking.

    def _open(self, key: Key, known: frozenset[Path] = frozenset()) -> Sequence[tuple[Path, str]]:
        """Open a collection; return the files that are still to be read and checked.

        Args:
            key: the collection.
            known: files that are known to be corrupt.
        """
        at = self._directory(key)
        at.tidy(self._recipe.fingerprint)
        writer = CollectionWriter(at, self._recipe, self._prepare)
        unread: list[tuple[Path, str]] = []

        def check(_: VersionManifest, views: Sequence[View]) -> None:
            unread.clear()
            files = [file for view in views for file in at.files(view)]
            unread.extend(manifests.check_first(files, self._options.verify_bytes, damaged=known))
            for view in views:
                if view.dense is not None and self._recipe.encoder is not None:
                    view.dense.check()  # while there is an earlier version to fall back on

        try:
            manifest, views, warning = at.newest_sound(check)
        except Corrupt as error:
            self._corrupt[key] = self._without_root(error)
            return []
        snapshot = self._recipe.snapshot(manifest, views, self._without_root(warning))
        self._prepare(snapshot)
        earlier = [one for one in at.versions() if one.generation < manifest.generation]
        sound: list[VersionManifest] = []
        for version in earlier:
            if sound and not self._options.keep_s:
                break
            try:
                sound.append(at.manifest(version))
            except Corrupt as error:
                _log.warning("collection %s: earlier version %s: %s", key[1], version, error)
        collection = ServedCollection(
            writer, OpenVersion(snapshot), sound[0] if sound else None, keep_s=self._options.keep_s
        )
        for manifest in sound:
            collection.keep(manifest)
        if not warning:  # else the number of the corrupt version is not to be given again
            at.sweep(collection.kept)
        self._collections[key] = collection
        return unread

    def _clear_up(self) -> None:
        """Remove collections whose removal was cut short."""
        for path in writable_directory.left_over(self._root):
            _log.warning("removing %s, left by a removal that was cut short", path.name)
            self._forgotten(path)

    def _buried(self, folder: Path) -> None:
        self._forgotten(writable_directory.bury(folder, self._right))

    def _forgotten(self, grave: Path) -> None:
        """Remove the files of a collection that is gone: now, or once nobody elsewhere reads them."""
        if not self._options.keep_s:
            self._right.discard(grave)
            return
        self._loop.call_soon_threadsafe(
            self._loop.call_later,
            self._options.keep_s,
            lambda: self._later(self._pool.run(self._right.discard, grave)) if self._lease else None,
        )

    async def _verify(self, key: Key, files: Sequence[tuple[Path, str]]) -> None:
        """Read and check files while they serve; stop serving corrupt ones."""
        collection = self._collections[key]
        for path, sha256 in files:
            if self._closing.is_set() or collection.gone.is_set():
                return
            try:
                await self._checking.run(manifests.check_content, path, sha256)
            except Corrupt as error:
                if not path.exists():
                    continue  # merged into another meanwhile
                _log.error("collection %s: %s", key[1], error)
                await self._refuse(key, collection, path)
                return

    async def _refuse(self, key: Key, collection: ServedCollection, path: Path) -> None:
        async with collection.turn:
            if collection.gone.is_set() or self._collections.get(key) is not collection:
                return
            collection.gone.set()
            try:
                # It serves until then: a name that is unknown for a moment would look deleted.
                await self._pool.run(self._open, key, frozenset([path]))
            finally:
                if self._collections[key] is collection:
                    del self._collections[key]
            if key in self._collections:
                self._tend(self._collections[key])
                self._sweep_in_time(self._collections[key])

    def _without_root(self, what: object) -> str:
        # Name the file to callers, not its path on this machine.
        return str(what).replace(f"{self._root}/", "")

    # Writing.

    async def _create(
        self,
        key: Key,
        description: str,
        lexical: Lexical,
        passages: Sequence[Passage] | None,
        checkpoint: Checkpoint,
        ready: Mapping[str, VectorArray] = MappingProxyType({}),
    ) -> Written:
        self._check_number(key)
        self._begun.add(key)
        try:
            written = await self._pool.run(self._made, key, description, lexical, passages, checkpoint, ready)
        finally:
            self._begun.discard(key)
            self._promised.pop(key, None)
        writer = CollectionWriter(self._directory(key), self._recipe, self._prepare)
        collection = ServedCollection(
            writer, OpenVersion(written.snapshot), None, keep_s=self._options.keep_s
        )
        self._collections[key] = collection
        _log.info("collection %s created at version %s", key[1], written.snapshot.info.version)
        self._tend(collection)
        return written

    def _made(
        self,
        key: Key,
        description: str,
        lexical: Lexical,
        passages: Sequence[Passage] | None,
        checkpoint: Checkpoint,
        ready: Mapping[str, VectorArray],
    ) -> Written:
        tenant, name = key
        with writable_directory.unborn(self._root / tenant, self._right) as folder:
            at = WritableDirectory(folder, self._right)
            at.make()
            writer = CollectionWriter(at, self._recipe, self._prepare)
            written = Written(writer.begun(tenant, name, description, lexical))
            if passages:
                written = writer.ingest(
                    written.snapshot, passages, lambda usage: self._admit(key, usage), checkpoint, ready
                )
            else:
                written = Written(writer.publish(written.snapshot, checkpoint))
            self._right.place(folder, self._folder(key))
        # Opened again, from where it lies now.
        at = self._directory(key)
        manifest = written.snapshot.manifest
        views = [at.view(entry, {}) for entry in manifest.segments]
        snapshot = self._recipe.snapshot(manifest, views)
        self._prepare(snapshot)
        return replace(written, snapshot=snapshot)

    async def _written(
        self,
        key: Key,
        write: Callable[[ServedCollection, Callable[[Usage], None], Checkpoint], Written],
    ) -> Written:
        """Write a new version of a collection and serve it."""
        collection = self._find("collection", key)

        async def run(checkpoint: Checkpoint) -> Written:
            if self._find("collection", key) is not collection:
                raise Unavailable("COLLECTION_REPLACED", "the collection was replaced meanwhile: try again")
            try:
                written = await self._pool.run(
                    self._swapped,
                    collection,
                    lambda: write(collection, lambda usage: self._admit(key, usage), checkpoint),
                )
            finally:
                self._promised.pop(key, None)
            if written.snapshot is not collection.served.snapshot:
                collection.serve(written.snapshot)
                _log.info(
                    "collection %s is at version %s",
                    key[1],
                    written.snapshot.info.version,
                    extra={"added": written.added, "replaced": written.replaced, "deleted": written.deleted},
                )
                await self._sweep(collection)
            self._tend(collection)
            return written

        return await self._alone(collection.turn, run)

    def _swapped(self, collection: ServedCollection, write: Callable[[], Written]) -> Written:
        """Run a write in a thread; on an error what it has left is removed."""
        try:
            return write()
        except BaseException:
            collection.writer.directory.sweep(collection.kept)
            raise

    def _check_number(self, key: Key) -> None:
        """Refuse one more collection than there may be."""
        there = {*self._collections, *self._corrupt, *self._begun}
        self._options.quotas.check_number(sum(owner == key[0] for owner, _ in there), len(there))

    def _admit(self, key: Key, usage: Usage) -> None:
        """Check quotas and reserve what a write is about to add until it ends."""
        self._check(key, usage)
        self._promised[key] = usage

    def _check(self, key: Key, usage: Usage) -> None:
        """Check quotas against what the tenant holds, and what others of its writes are about to add."""
        tenant = usage
        for other, collection in list(self._collections.items()):
            if other[0] == key[0] and other != key:
                tenant += self._promised.get(other, collection.usage)
        for other, promised in list(self._promised.items()):
            if other[0] == key[0] and other != key and other not in self._collections:
                tenant += promised
        self._options.quotas.check(key[1], usage, tenant)

    async def _alone(self, turn: asyncio.Lock, write: Callable[[Checkpoint], Awaitable[T]]) -> T:
        """Run a write while no other has the turn.

        When its caller goes away the write ends at its next checkpoint, leaving nothing; once it is past the
        last one it goes through, so that memory and disk never disagree.
        """
        abandoned = Event()

        def checkpoint() -> None:
            if abandoned.is_set() or self._closing.is_set():
                raise _Abandoned

        async def run() -> T:
            async with turn:
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
            raise _shutting_down() from None
        except Fenced:
            raise _taken_over() from None
        except OSError as error:
            if self._lease is not None and self._lease.is_over(error):
                raise _taken_over() from None
            if error.errno not in FULL:
                raise
            raise MeshError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "STORAGE_FULL",
                "the disk of the collections is full: make room, then send this again; nothing was kept",
            ) from None

    # In the background.

    def _tend(self, collection: ServedCollection) -> None:
        """Begin merges and embeddings that are due."""
        if self._closing.is_set() or collection.gone.is_set():
            return
        views = [v for v in collection.served.snapshot.views if v.segment.name not in collection.busy]
        # One at a time: the encoder is the bottleneck, and the figures are easier to follow.
        lacking = [view for view in views if self._recipe.lacks_vectors(view)]
        encoder = self._recipe.encoder
        if encoder is not None and lacking and not collection.embedded:
            name = lacking[0].segment.name
            collection.busy.add(name)
            collection.embedded[name] = 0
            self._later(self._embed(collection, name, encoder))
            views = [view for view in views if view.segment.name != name]
        candidates = [
            Candidate(
                view.segment.name,
                len(view.segment),
                view.num_passages,
                view.dense.manifest.encoder.fingerprint if view.dense else "",
            )
            for view in views
        ]
        names = compaction.choose(candidates, max_passages=self._options.max_segment_passages)
        if names:
            collection.busy.update(names)
            self._later(self._merge(collection, names))

    async def _merge(self, collection: ServedCollection, names: Sequence[str]) -> None:
        def checkpoint() -> None:
            if self._closing.is_set() or collection.gone.is_set():
                raise _Abandoned

        writer = collection.writer
        with self._held(collection) as base:  # its segments stay until the merge is done
            try:
                merged = await self._merging.run(self._merged, writer, base, names, checkpoint)
                try:
                    async with collection.turn:
                        checkpoint()
                        snapshot = await self._pool.run(
                            writer.exchange, collection.served.snapshot, merged, checkpoint
                        )
                        await self._take_over(collection, snapshot)
                finally:
                    await self._pool.run(writer.directory.abandon, merged.folder)
                _log.info(
                    "collection %s is at version %s: %d segments merged into one of %d passages",
                    snapshot.info.name,
                    snapshot.info.version,
                    len(names),
                    len(merged.plan),
                )
            except (OSError, Corrupt, Fenced) as error:
                if not collection.gone.is_set():
                    _log.warning("segments of %s were not merged: %s", base.info.name, error)
                return  # until the next write, or start
            except _Abandoned:
                return
            finally:
                collection.busy.difference_update(names)
        self._tend(collection)

    def _merged(
        self, writer: CollectionWriter, base: SegmentSnapshot, names: Sequence[str], checkpoint: Checkpoint
    ) -> Merged:
        folder = writer.directory.begin()
        try:
            return writer.merge(base, names, folder, checkpoint)
        except BaseException:
            writer.directory.abandon(folder)
            raise

    async def _embed(self, collection: ServedCollection, name: str, encoder: Encoder) -> None:
        def progress(done: int) -> None:
            if self._closing.is_set() or collection.gone.is_set():
                raise _Abandoned
            collection.embedded[name] = done

        writer = collection.writer
        with self._held(collection) as base:
            size = next(len(view.segment) for view in base.views if view.segment.name == name)
            _log.info("collection %s: embedding %d passages", base.info.name, size)
            try:
                chunks = writer.embed(base, name, encoder, progress)
                # Tenants take turns between chunks.
                while (made := await self._embedding.run(_next_of, chunks)) is None:
                    pass
                folder, vectors = made
                async with collection.turn:
                    progress(size)
                    snapshot = await self._pool.run(
                        writer.attach,
                        collection.served.snapshot,
                        name,
                        folder,
                        vectors,
                        lambda: progress(size),
                    )
                    await self._take_over(collection, snapshot)
                _log.info(
                    "collection %s is at version %s: %d passages embedded",
                    snapshot.info.name,
                    snapshot.info.version,
                    size,
                )
            except (OSError, Corrupt, Fenced) as error:
                if not collection.gone.is_set():
                    _log.warning("passages of %s were not embedded: %s", base.info.name, error)
                return
            except MeshError as error:
                # An encoder elsewhere that is away; what was made so far is kept.
                _log.warning("passages of %s are not embedded yet: %s", base.info.name, error)
                asyncio.get_running_loop().call_later(self._options.retry_s, self._tend, collection)
                return
            except _Abandoned:
                return
            finally:
                collection.busy.discard(name)
                collection.embedded.pop(name, None)
        self._tend(collection)

    async def _take_over(self, collection: ServedCollection, snapshot: SegmentSnapshot) -> None:
        """Serve the results of background work. To be called by who has the turn."""
        if snapshot is collection.served.snapshot:
            return
        collection.serve(snapshot)
        await self._sweep(collection)

    async def _swept(self, collection: ServedCollection) -> None:
        async with collection.turn:
            if not collection.gone.is_set() and not self._closing.is_set():
                await self._sweep(collection)

    async def _sweep(self, collection: ServedCollection) -> None:
        """Remove what no version needs. To be called by who has the turn."""
        with suppress(Fenced):  # what was published before is; the rest is another's now
            await self._pool.run(collection.writer.directory.sweep, collection.kept)
        self._sweep_in_time(collection)

    def _sweep_in_time(self, collection: ServedCollection) -> None:
        """Have versions removed whose time will be over, even if nothing is written until then."""
        if not collection.replaced or collection.timer is not None:
            return

        def due() -> None:
            collection.timer = None
            if not collection.gone.is_set() and not self._closing.is_set():
                self._later(self._swept(collection))

        wait_s = max(0.0, collection.replaced[0][0] - time.monotonic())
        collection.timer = self._loop.call_later(wait_s, due)

    def _later(self, work: Awaitable[None]) -> None:
        """Run work in the background, for the caller's tenant, but longer than the caller waits."""

        async def run() -> None:
            deadline.enter(deadline.NEVER)
            await work

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, MeshError | _Abandoned | Fenced):
            # Waiting callers get it, too; where nobody waits any more, only the log has it.
            _log.warning("work on a collection failed with %s", type(error).__name__, exc_info=error)


def _embed_ahead(
    ready: dict[str, VectorArray], base: SegmentSnapshot | None, encoder: Encoder, contents: Sequence[str]
) -> None:
    """Add vectors of passages to those that are ready."""
    known = () if base is None else base.views
    ready.update(zip(contents, embedding.vectors_of(contents, known, encoder), strict=True))


def _next_of(steps: Generator[None, None, T]) -> T | None:
    """Run one step; return the result after the last one."""
    try:
        next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    return None


def _shutting_down() -> Unavailable:
    return Unavailable("SHUTTING_DOWN", "the service is shutting down; nothing was kept")


def _taken_over() -> Unavailable:
    return Unavailable(
        "NOT_THE_WRITER",
        "another retriever has taken over these collections, and nothing was kept: send it there",
    )
