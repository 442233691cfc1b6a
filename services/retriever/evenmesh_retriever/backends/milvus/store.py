"""Keep the collections of all tenants in one Milvus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Event, Lock
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from pymilvus.exceptions import MilvusException

from evenmesh.wire.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidField,
    MeshError,
    NotFound,
    Unavailable,
)
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_retriever.analyzer import DEFAULT
from evenmesh_retriever.backends.milvus import rows as rows_of
from evenmesh_retriever.backends.milvus import schema
from evenmesh_retriever.backends.milvus.connection import Connection
from evenmesh_retriever.backends.milvus.expressions import one_of
from evenmesh_retriever.backends.milvus.registry import DenseKind, Record, Registry
from evenmesh_retriever.backends.milvus.snapshot import MilvusSnapshot
from evenmesh_retriever.backends.segments.quotas import Quotas, Usage
from evenmesh_retriever.backends.splade.postings import SparseTextEncoder
from evenmesh_retriever.domain import CollectionInfo, DeleteReport, IngestReport, Lexical, Passage
from evenmesh_retriever.ports import CannotStart, CollectionStore, Encoder, Key, Snapshot

_IDS_AT_ONCE: Final = 500
_ROWS_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 8 * 2**20
_WRITTEN_AT_ONCE: Final = 2
"""Collections of a tenant that may be written at a time."""
_REFRESHED_AT_ONCE: Final = 1
_MAX_K1: Final = 3
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MilvusIndexing:
    """How passages are indexed."""

    encoder: Encoder | None
    """Makes dense vectors; None for none."""
    sparse: SparseTextEncoder | None = None
    """Makes weights of terms; None for none."""
    dense_index: DenseKind = "FLAT"
    """Kind of the dense index of new collections."""
    k1: float = 1.2
    """BM25's k1 of collections that bring none, (0, 3]."""
    b: float = 0.75
    """BM25's b of collections that bring none, [0, 1]."""
    quotas: Quotas = field(default_factory=Quotas)


class MilvusStore(CollectionStore):
    """Collections of all tenants. For one event loop.

    One process writes a collection at a time; several may read it. A change is announced in the record of the
    collection, made, and acknowledged there. Where it is cut off, the record keeps saying so until the next
    change has ended.

    Args:
        connect: opens the connection; called in a thread, when it starts.
        recipe: how passages are indexed.
    """

    def __init__(self, connect: Callable[[], Connection], recipe: MilvusIndexing) -> None:
        self._connect = connect
        self._recipe = recipe
        # A write makes the vectors of all its passages, which may take hours.
        self._pool = TenantPool(_WRITTEN_AT_ONCE, "retriever-milvus")
        self._refreshing = TenantPool(_REFRESHED_AT_ONCE, "retriever-milvus-refresh")
        self._turns: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._known: dict[Key, Record] = {}
        # Collections that are being made, which count before they are known; guarded, as threads make them.
        self._begun: set[Key] = set()
        self._counting = Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._connection: Connection
        self._registry: Registry
        self._is_open = False
        self._closing = Event()

    async def start(self) -> None:
        """Connect, and make sure that there are records.

        Raises:
            CannotStart: Milvus does not answer, or refuses.
        """
        self._connection = await self._pool.run(self._connect)
        self._is_open = True
        self._registry = Registry(self._connection)
        try:
            await self._pool.run(self._registry.open)
            await self.refresh()
        except (MeshError, MilvusException) as error:
            raise CannotStart(f"Milvus does not keep collections: {error.message}") from None

    async def stop(self) -> None:
        """Abandon writes whose vectors are being made, wait for the others, and close the connection."""
        self._closing.set()
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._is_open:
            self._is_open = False
            await self._pool.run(self._connection.close)
        self._pool.close()
        self._refreshing.close()

    @property
    def version(self) -> str:
        """Version of the Milvus."""
        return self._connection.version

    async def refresh(self) -> None:
        """Read the current state: other processes may have changed it."""
        records = await self._refreshing.run(self._registry.list)
        self._known = {record.key: record for record in records}

    @contextmanager
    def lease(self, key: Key) -> Iterator[Snapshot]:
        """Yield a collection as it is found when the block first uses it."""
        yield MilvusSnapshot(self._connection, self._registry, key)

    def describe(self, key: Key) -> CollectionInfo:
        """Return a collection as it was last described."""
        if key not in self._known:
            raise NotFound("name", f"there is no collection {key[1]!r}")
        return self._known[key].info()

    def list(self, tenant: str) -> list[CollectionInfo]:
        """Return a tenant's collections as they were last described, by ascending name."""
        return [record.info() for key, record in sorted(self._known.items()) if key[0] == tenant]

    def everyones(self) -> Sequence[tuple[str, CollectionInfo]]:
        """Return all collections as they were last described, each after its tenant; from any thread."""
        return [(tenant, record.info()) for (tenant, _), record in tuple(self._known.items())]

    async def create(self, key: Key, description: str, lexical: Lexical) -> CollectionInfo:
        """Return a new, empty collection."""

        def work() -> Record:
            if self._registry.read(key) is not None:
                raise AlreadyExists("name", f"there is a collection {key[1]!r} already")
            record = self._made(key, description, lexical)
            self._registry.write(record)
            return record

        return (await self._alone(key, work, self._note)).info()

    async def ingest(self, key: Key, passages: Sequence[Passage], *, create: bool) -> IngestReport:
        """Add or replace passages; a passage already stored, equal in every field, changes nothing."""
        record, added, replaced = await self._alone(
            key, lambda: self._ingest(key, passages, create=create), lambda done: self._note(done[0])
        )
        return IngestReport(record.info(), added, replaced, len(passages) - added - replaced)

    async def delete_passages(self, key: Key, ids: Sequence[str]) -> DeleteReport:
        """Remove passages by id."""
        record, deleted = await self._alone(
            key, lambda: self._delete(key, list(dict.fromkeys(ids))), lambda done: self._note(done[0])
        )
        return DeleteReport(record.info(), deleted, len(set(ids)) - deleted)

    async def drop(self, key: Key) -> None:
        """Remove a collection."""

        def work() -> None:
            record = self._registry.read(key)
            if record is None:
                raise NotFound("name", f"there is no collection {key[1]!r}")
            # In this order: a collection without a record is garbage, a record without one a lie.
            self._registry.remove(key)
            self._connection.drop(record.place)

        await self._alone(key, work, lambda _: self._known.pop(key, None))

    async def _alone(self, key: Key, work: Callable[[], T], note: Callable[[T], object]) -> T:
        """Run a write in its turn, to its end and until it is noted, even if no one waits for it any more.

        Args:
            key: of the collection.
            work: the write; runs in a thread.
            note: notes what it has done: whoever does not wait must not escape the quotas.
        """

        async def run() -> T:
            async with self._turns.setdefault(key, asyncio.Lock()):
                try:
                    done = await self._pool.run(work)
                    note(done)
                    return done
                finally:
                    with self._counting:
                        self._begun.discard(key)

        task = asyncio.ensure_future(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    def _note(self, record: Record) -> None:
        self._known[record.key] = record

    # In a thread, by who has the turn.

    def _made(self, key: Key, description: str, lexical: Lexical) -> Record:
        """Make the collection; there is one only once its record is written."""
        if lexical.analyzer:
            return self._made_with(key, description, lexical)
        try:
            return self._made_with(key, description, replace(lexical, analyzer=DEFAULT))
        except InvalidField as error:
            if error.field != "lexical.analyzer":
                raise
            # Milvus Lite has this one only.
            return self._made_with(key, description, replace(lexical, analyzer=schema.ALWAYS_THERE))

    def _made_with(self, key: Key, description: str, lexical: Lexical) -> Record:
        if lexical.analyzer not in schema.ANALYZERS:
            raise InvalidField("lexical.analyzer", f"must be one of {', '.join(schema.ANALYZERS)}")
        if lexical.k1 is not None and not 0 < lexical.k1 <= _MAX_K1:
            raise InvalidField("lexical.k1", f"must be above 0 and at most {_MAX_K1} in Milvus")
        recipe = self._recipe
        with self._counting:
            known = {*tuple(self._known), *self._begun} - {key}
            recipe.quotas.check_number(sum(owner == key[0] for owner, _ in known), len(known))
            self._begun.add(key)
        encoder, sparse = recipe.encoder, recipe.sparse
        record = Record.new(
            key,
            description=description,
            analyzer=lexical.analyzer,
            k1=recipe.k1 if lexical.k1 is None else lexical.k1,
            b=recipe.b if lexical.b is None else lexical.b,
            given_k1=lexical.k1,
            given_b=lexical.b,
            encoder=encoder.name if encoder else "",
            encoder_fingerprint=encoder.fingerprint if encoder else "",
            sparse=sparse.name if sparse else "",
            sparse_fingerprint=sparse.fingerprint if sparse else "",
            dense_index=recipe.dense_index if encoder else None,
        )
        try:
            self._connection.create(
                record.place,
                schema.passages(
                    lexical.analyzer, encoder.dimension if encoder else None, sparse=sparse is not None
                ),
                schema.indexes(record.k1, record.b, record.dense_index, sparse=sparse is not None),
            )
        except MilvusException as error:
            if "tokenizer" in error.message or "analyzer" in error.message:
                raise InvalidField(
                    "lexical.analyzer", f"this Milvus ({self.version}) has no analyzer {lexical.analyzer!r}"
                ) from error
            raise
        return record

    def _ingest(self, key: Key, passages: Sequence[Passage], *, create: bool) -> tuple[Record, int, int]:
        for number, passage in enumerate(passages):
            rows_of.check(f"passages[{number}]", passage)
        record = self._registry.read(key)
        is_new = record is None
        if record is None:
            if not create:
                raise NotFound("collection", f"there is no collection {key[1]!r}")
            self._admit(key, Usage(len(passages), sum(map(rows_of.bytes_of, passages))), Usage(0, 0))
            record = self._made(key, "", Lexical())
        self._check_encoders(record)
        there = {} if is_new else self._there(record, [passage.id for passage in passages])
        changed = [passage for passage in passages if there.get(passage.id) != passage]
        replaced = sum(passage.id in there for passage in changed)
        added = len(changed) - replaced
        grown = sum(map(rows_of.bytes_of, changed)) - sum(
            rows_of.bytes_of(there[passage.id]) for passage in changed if passage.id in there
        )
        if not is_new:
            if not changed and not record.changing:
                return record, 0, 0
            before = Usage(record.num_passages, record.passage_bytes)
            self._admit(key, before + Usage(added, grown), before)
        if is_new:
            # Not seen until its record is written: all of it, or none.
            try:
                self._send(record, self._rows(changed))
            except BaseException:
                self._connection.drop(record.place)
                raise
            record = record.ended(added, grown)
            # Where this fails it may be written all the same: what it names is kept, if only as garbage.
            self._registry.write(record)
            return record, added, replaced
        rows = self._rows(changed)
        return self._changed(record, lambda: self._send(record, rows), added, grown), added, replaced

    def _delete(self, key: Key, ids: Sequence[str]) -> tuple[Record, int]:
        record = self._registry.read(key)
        if record is None:
            raise NotFound("collection", f"there is no collection {key[1]!r}")
        there = self._there(record, ids)
        if not there and not record.changing:
            return record, 0

        def remove() -> None:
            for some in _parts(list(there), _IDS_AT_ONCE):
                self._connection.delete(record.place, one_of(rows_of.ID, some))

        gone = sum(map(rows_of.bytes_of, there.values()))
        return self._changed(record, remove, -len(there), -gone), len(there)

    def _changed(self, record: Record, change: Callable[[], None], passages: int, size: int) -> Record:
        """Make a change between two writes of the record, which say that it begins and that it has ended."""
        begun = record.begun()
        self._registry.write(begun)
        try:
            change()
        except (MeshError, MilvusException) as error:
            raise Unavailable(
                "CHANGE_CUT_OFF",
                f"Milvus failed in the middle of the change ({error.message}): a part of it may be there; "
                "send it again, which ends it",
            ) from error
        if record.changing:
            # How far the change before it had come is not known.
            ended = begun.ended(*self._measured(record))
        else:
            ended = begun.ended(record.num_passages + passages, record.passage_bytes + size)
        self._registry.write(ended)
        return ended

    def _measured(self, record: Record) -> tuple[int, int]:
        passages = size = 0
        for page in self._connection.pages(record.place, rows_of.ID, rows_of.FIELDS, _ROWS_AT_ONCE):
            passages += len(page)
            size += sum(rows_of.bytes_of(rows_of.passage_of(row)) for row in page)
        return passages, size

    def _there(self, record: Record, ids: Sequence[str]) -> dict[str, Passage]:
        """Return the passages of some ids that are there, by id."""
        found: dict[str, Passage] = {}
        for some in _parts(ids, _IDS_AT_ONCE):
            for row in self._connection.query(record.place, one_of(rows_of.ID, some), rows_of.FIELDS):
                found[row[rows_of.ID]] = rows_of.passage_of(row)
        return found

    def _check_encoders(self, record: Record) -> None:
        for what, there, here in (
            ("vectors", (record.encoder, record.encoder_fingerprint), self._recipe.encoder),
            ("weights", (record.sparse, record.sparse_fingerprint), self._recipe.sparse),
        ):
            name, fingerprint = there
            if fingerprint != (here.fingerprint if here else ""):
                raise FailedPrecondition(
                    "OTHER_ENCODER",
                    f"collection {record.name!r} has {what} of {name or 'no model'!r} and this server makes "
                    f"those of {here.name if here else 'no model'!r}: export it, and import it under another "
                    "name",
                )

    def _rows(self, passages: Sequence[Passage]) -> Sequence[dict[str, Any]]:
        """Return the rows of passages, vectors included."""
        texts = [passage.content for passage in passages]
        rows = [rows_of.row_of(passage) for passage in passages]
        if self._recipe.encoder is not None and texts:
            vectors = self._recipe.encoder.encode_passages(texts, self._go_on)
            for row, vector in zip(rows, vectors, strict=True):
                row[rows_of.DENSE] = vector
        if (sparse := self._recipe.sparse) is not None and texts:
            weights = sparse.encode_passages(texts, self._go_on)
            for row, one in zip(rows, weights, strict=True):
                given = dict(zip(one.terms.tolist(), one.weights.tolist(), strict=True))
                # A vector must not be empty; no query has the term that is not in the vocabulary.
                row[rows_of.IMPACTS] = given or {sparse.vocabulary: 1.0}
        return rows

    def _go_on(self, _: int) -> None:
        """End the making of vectors when the service ends."""
        if self._closing.is_set():
            raise Unavailable("SHUTTING_DOWN", "the service is shutting down; nothing was kept")

    def _send(self, record: Record, rows: Sequence[Mapping[str, Any]]) -> None:
        part: list[Mapping[str, Any]] = []
        size = 0
        for row in rows:
            more = len(row[rows_of.CONTENT].encode()) + sum(
                len(name.encode()) + len(value.encode()) for name, value in row["attributes"].items()
            )
            if part and (len(part) >= _ROWS_AT_ONCE or size + more > _BYTES_AT_ONCE):
                self._connection.upsert(record.place, part)
                part, size = [], 0
            part.append(row)
            size += more
        if part:
            self._connection.upsert(record.place, part)

    def _admit(self, key: Key, collection: Usage, before: Usage) -> None:
        quotas = self._recipe.quotas
        everything = collection
        if quotas.tenant_passages.most or quotas.tenant_bytes.most:
            tenant = [record for record in self._registry.list() if record.tenant == key[0]]
            everything = Usage(
                sum(record.num_passages for record in tenant) - before.passages + collection.passages,
                sum(record.passage_bytes for record in tenant) - before.bytes + collection.bytes,
            )
        quotas.check(key[1], collection, everything)


def _parts(ids: Sequence[str], size: int) -> Iterable[Sequence[str]]:
    return (ids[begin : begin + size] for begin in range(0, len(ids), size))
