"""Make the next version of a collection from the last. Runs in threads, one write at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from evenmesh_retriever.analyzer import DEFAULT
from evenmesh_retriever.backends.segments.building import build, embedding, merge
from evenmesh_retriever.backends.segments.building.merge import MergeOrder
from evenmesh_retriever.backends.segments.files import dense, faults
from evenmesh_retriever.backends.segments.files.dense import DensePart
from evenmesh_retriever.backends.segments.files.hashes import hashes_of
from evenmesh_retriever.backends.segments.files.manifest import (
    DenseManifest,
    LexicalEntry,
    Name,
    SegmentEntry,
    SegmentManifest,
    VersionManifest,
)
from evenmesh_retriever.backends.segments.files.records import Record, record_of
from evenmesh_retriever.backends.segments.files.segment import View
from evenmesh_retriever.backends.segments.files.writable_directory import WritableDirectory
from evenmesh_retriever.backends.segments.quotas import Usage
from evenmesh_retriever.backends.segments.snapshot import SegmentSnapshot
from evenmesh_retriever.domain import CollectionInfo, Lexical, Passage, VectorArray
from evenmesh_retriever.ports import Analyzer, Encoder

_VECTORS: Final = "vectors"

Checkpoint = Callable[[], None]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentIndexing:
    """How passages are indexed."""

    analyzer: Callable[[str], Analyzer]
    """The analyzer of a name; raises InvalidField for an unknown one."""
    encoder: Encoder | None
    """None for no vectors."""
    embed_at_once: int = 5_000
    """Passages of an ingest up to which their vectors are made before it returns, [0, inf)."""
    carry: Callable[[str, MergeOrder, SegmentManifest], None] = lambda _, __, ___: None
    """Called with the tenant when segments have been merged into one, before that is served: takes over what
    else is kept about their passages."""
    ahead: Callable[[str], AbstractContextManager[Callable[[Sequence[str]], None]]] | None = None
    """What else is to be made of passages' contents, and takes long: the block gives what makes it, in a
    thread, before an ingest takes its turn to write. None if there is nothing."""

    @property
    def fingerprint(self) -> str:
        """Of the encoder; empty without one."""
        return self.encoder.fingerprint if self.encoder else ""

    def lacks_vectors(self, view: View) -> bool:
        """Return whether the vectors of a segment are to be made."""
        return self.encoder is not None and (
            view.dense is None or view.dense.manifest.encoder.fingerprint != self.encoder.fingerprint
        )

    def snapshot(
        self, manifest: VersionManifest, views: Sequence[View], warning: str = ""
    ) -> SegmentSnapshot:
        """Return a version open for reading."""
        analyzer = self.analyzer(manifest.lexical.analyzer).name
        passages = sum(view.num_passages for view in views)
        parts = [view for view in views if view.dense is not None]
        largest = max(
            (view.dense for view in parts if view.dense), key=lambda one: len(one.vectors), default=None
        )
        embedded = sum(view.num_passages for view in parts if not self.lacks_vectors(view))
        named = self.encoder or (largest.manifest.encoder if largest else None)
        sizes = [view.segment.manifest.size_bytes for view in views]
        sizes += [view.dense.manifest.size_bytes for view in parts if view.dense]
        sizes += [entry.dead.bytes for entry in manifest.segments if entry.dead]
        return SegmentSnapshot(
            manifest,
            views,
            CollectionInfo(
                name=manifest.collection,
                version=str(manifest.name),
                num_passages=passages,
                size_bytes=sum(sizes) + len(manifest.serialized()),
                encoder=named.name if named else "",
                updated_at=manifest.created_at,
                description=manifest.description,
                analyzer=analyzer,
                lexical=Lexical(manifest.lexical.analyzer, manifest.lexical.k1, manifest.lexical.b),
                dense_kind=largest.manifest.kind if largest else "",
                dense_recall=largest.manifest.recall if largest else None,
                num_segments=len(views),
                num_tombstones=sum(view.num_dead for view in views),
                embedded=embedded / passages if passages else float(self.encoder is not None),
                warning=warning,
            ),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """What a write has made. Unit of the counts: passages."""

    snapshot: SegmentSnapshot
    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    deleted: int = 0
    missing: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """A segment that is written and not yet part of a version."""

    folder: Path
    plan: MergeOrder
    manifest: SegmentManifest
    vectors: DenseManifest | None


class CollectionWriter:
    """Writes versions of one collection.

    Args:
        directory: where the collection lies.
        recipe: how passages are indexed.
        prepare: called with each version before it is published; what it raises ends the write.
    """

    def __init__(
        self,
        directory: WritableDirectory,
        recipe: SegmentIndexing,
        prepare: Callable[[SegmentSnapshot], None],
    ) -> None:
        self.directory = directory
        self._recipe = recipe
        self._prepare = prepare

    def begun(self, tenant: str, name: str, description: str, lexical: Lexical) -> SegmentSnapshot:
        """Return a version of a collection to be: empty, and not published."""
        manifest = VersionManifest(
            tenant=tenant,
            collection=name,
            generation=1,
            description=description,
            created_at=datetime.now(UTC),
            lexical=LexicalEntry(analyzer=lexical.analyzer or DEFAULT, k1=lexical.k1, b=lexical.b),
            segments=(),
        )
        return self._recipe.snapshot(manifest, ())

    def publish(self, base: SegmentSnapshot, checkpoint: Checkpoint) -> SegmentSnapshot:
        """Publish the first version, which is empty."""
        return self._published(base, base.manifest.generation, base.views, checkpoint)

    def ingest(
        self,
        base: SegmentSnapshot,
        passages: Sequence[Passage],
        admit: Callable[[Usage], None],
        checkpoint: Checkpoint,
        ready: Mapping[str, VectorArray] = MappingProxyType({}),
    ) -> Written:
        """Add or replaces passages by id; their ids are unique. Costs what the passages hold.

        Args:
            base: the version before.
            passages: the passages.
            admit: called with what the collection would hold; what it raises ends the write.
            checkpoint: called now and then; what it raises ends the write.
            ready: vectors of passages, by content; others are made.
        """
        change = _change(base.views, passages)
        order, replaced = change.order, change.replaced
        unchanged = len(passages) - len(order)
        if not order:
            return Written(base, unchanged=unchanged)
        admit(change.usage)
        generation = self.directory.generation() + 1
        passages = [passages[place] for place in order]
        built = self._built(base, generation, passages, change.new, checkpoint, ready)
        snapshot = self._published(base, generation, [*change.views, built], checkpoint)
        return Written(snapshot, len(order) - replaced, replaced, unchanged)

    def delete(self, base: SegmentSnapshot, ids: Sequence[str], checkpoint: Checkpoint) -> Written:
        """Remove passages by id, which are unique; unknown ones are counted."""
        wanted = [one.encode() for one in ids]
        hashes = hashes_of(wanted)
        views = []
        deleted = 0
        for view in base.views:
            rows = view.rows_of(wanted, hashes)
            rows = rows[rows >= 0]
            deleted += len(rows)
            views.append(view.without(rows))
        missing = len(ids) - deleted
        if not deleted:
            return Written(base, missing=missing)
        snapshot = self._published(base, self.directory.generation() + 1, views, checkpoint)
        return Written(snapshot, deleted=deleted, missing=missing)

    def merge(
        self, base: SegmentSnapshot, names: Sequence[str], folder: Path, checkpoint: Checkpoint
    ) -> Merged:
        """Write one segment from some of a version, into an empty folder; others may write meanwhile."""
        plan = MergeOrder.of([view for view in base.views if view.segment.name in names])
        manifest = merge.write(folder, plan, checkpoint)
        vectors = merge.write_vectors(folder / _VECTORS, plan, checkpoint)
        if vectors is not None:
            dense.publish(folder, folder / _VECTORS, vectors)
        self._recipe.carry(base.manifest.tenant, plan, manifest)
        return Merged(folder, plan, manifest, vectors)

    def exchange(self, base: SegmentSnapshot, merged: Merged, checkpoint: Checkpoint) -> SegmentSnapshot:
        """Publish a merged segment in place of those it was made from, less what has gone since."""
        generation = self.directory.generation() + 1
        now = {view.segment.name: view for view in base.views}
        gone = []
        for old, new_rows in zip(merged.plan.views, merged.plan.new_rows, strict=True):
            # A segment of which nothing is left is no longer in the version.
            view = now.pop(old.segment.name, None)
            there = new_rows if view is None else new_rows[~view.is_there]
            gone.append(there[there >= 0].astype(np.int64))
        views = list(now.values())
        checkpoint()
        segment = self.directory.add(merged.folder, generation, merged.manifest)
        faults.point("compaction.moved")
        part = None
        if merged.vectors is not None:
            part = DensePart.open(
                self.directory.segment_folder(segment.name), str(Name.of(1, merged.vectors.serialized()))
            )
        views.append(View(segment, None, part).without(np.concatenate(gone)))
        return self._published(base, generation, views, checkpoint)

    def embed(
        self, base: SegmentSnapshot, name: str, encoder: Encoder, progress: Callable[[int], None]
    ) -> Generator[None, None, tuple[Path, DenseManifest]]:
        """Make the vectors of a segment of a version, step by step; others may write meanwhile."""
        view = next(view for view in base.views if view.segment.name == name)
        folder = self.directory.partial(name, encoder.fingerprint)
        return embedding.write_on(folder, view, base.views, encoder, progress)

    def attach(
        self, base: SegmentSnapshot, name: str, folder: Path, vectors: DenseManifest, checkpoint: Checkpoint
    ) -> SegmentSnapshot:
        """Publish the vectors of a segment, unless it has gone since."""
        if not any(view.segment.name == name for view in base.views):
            return base
        checkpoint()
        self.directory.clear(name, dense.part_name(vectors))  # the same, left by a write that was cut short
        part = dense.publish(self.directory.segment_folder(name), folder, vectors)
        views = [
            View(view.segment, view.tombstones, part) if view.segment.name == name else view
            for view in base.views
        ]
        return self._published(base, self.directory.generation() + 1, views, checkpoint)

    def _built(
        self,
        base: SegmentSnapshot,
        generation: int,
        passages: Sequence[Passage],
        stored: Sequence[Record],
        checkpoint: Checkpoint,
        ready: Mapping[str, VectorArray],
    ) -> View:
        """Return a segment of new passages, with vectors if they are few."""
        analyzer = self._recipe.analyzer(base.manifest.lexical.analyzer)
        encoder = self._recipe.encoder
        with self.directory.scratch() as folder:
            manifest = build.write(folder, passages, stored, analyzer, checkpoint)
            vectors = None
            if encoder is not None and len(passages) <= self._recipe.embed_at_once:
                contents = [passage.content for passage in passages]
                vectors = embedding.write(
                    folder / _VECTORS, contents, ready, base.views, encoder, lambda _: checkpoint()
                )
                dense.publish(folder, folder / _VECTORS, vectors)
            checkpoint()
            segment = self.directory.add(folder, generation, manifest)
        faults.point("ingest.moved")
        if vectors is None:
            return View(segment, None, None)
        name = str(Name.of(1, vectors.serialized()))
        return View(segment, None, DensePart.open(self.directory.segment_folder(segment.name), name))

    def _published(
        self, base: SegmentSnapshot, generation: int, views: Sequence[View], checkpoint: Checkpoint
    ) -> SegmentSnapshot:
        views = [view for view in views if view.num_passages]
        before: Mapping[str, SegmentEntry] = {entry.name: entry for entry in base.manifest.segments}
        known = {view.segment.name: view for view in base.views}
        entries = []
        for view in views:
            name = view.segment.name
            same = name in known and known[name].tombstones is view.tombstones
            entries.append(
                SegmentEntry(
                    name=name,
                    num_passages=len(view.segment),
                    dense=view.dense.name if view.dense else None,
                    dead=before[name].dead if same else self.directory.bury(generation, view),
                )
            )
        manifest = base.manifest.model_copy(
            update={
                "generation": generation,
                "created_at": datetime.now(UTC),
                "segments": tuple(entries),
            }
        )
        snapshot = self._recipe.snapshot(manifest, views)
        self._prepare(snapshot)
        checkpoint()
        self.directory.publish(manifest)
        return snapshot


def changed(base: SegmentSnapshot | None, passages: Sequence[Passage]) -> tuple[list[Passage], Usage]:
    """Return the passages that a version does not have, equal in every field, and what there would be
    with them.

    Args:
        base: the version; None for none yet.
        passages: the passages, whose ids are unique.
    """
    change = _change(() if base is None else base.views, passages)
    return [passages[place] for place in change.order], change.usage


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """What some passages change of a version."""

    views: Sequence[View]
    """The version's, without what is replaced."""
    order: Sequence[int]
    """Places of the passages that it does not have, equal in every field, by ascending id."""
    new: Sequence[Record]
    """Those, as they are stored."""
    replaced: int
    """How many of them there are others of the same id of."""
    usage: Usage
    """What the collection would hold."""


def _change(views: Sequence[View], passages: Sequence[Passage]) -> _Change:
    stored = [record_of(passage) for passage in passages]
    ids = [record[0] for record in stored]
    hashes = hashes_of(ids)
    changed = np.ones(len(passages), dtype=np.bool_)
    replaced = 0
    left = []
    for view in views:
        rows = view.rows_of(ids, hashes)
        for place in np.flatnonzero(rows >= 0).tolist():
            changed[place] = not view.segment.records.holds(int(rows[place]), stored[place])
        gone = rows[(rows >= 0) & changed]
        replaced += len(gone)
        left.append(view.without(gone))
    order = sorted(np.flatnonzero(changed).tolist(), key=ids.__getitem__)
    new = [stored[place] for place in order]
    usage = Usage(
        sum(view.num_passages for view in left) + len(new),
        sum(view.passage_bytes for view in left) + sum(map(len, (field for one in new for field in one))),
    )
    return _Change(left, order, new, replaced, usage)
