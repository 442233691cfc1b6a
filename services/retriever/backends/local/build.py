"""Writing a new version beside the old ones."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from services.retriever.backends.bm25 import postings
from services.retriever.backends.bm25.postings import Postings
from services.retriever.backends.local import durable
from services.retriever.backends.local.change import Change
from services.retriever.backends.local.manifest import FILE_NAME, EncoderEntry, FileEntry, Manifest, entry_of
from services.retriever.backends.local.records import bounds_of, joined, sizes_of
from services.retriever.backends.local.snapshot import (
    POSTING_ARRAYS,
    RECORD_BOUNDS,
    RECORDS,
    TERMS,
    VECTORS,
    LocalSnapshot,
    postings_file,
)
from services.retriever.domain import VectorArray
from services.retriever.ports import Analyzer, Encoder

_PROGRESS_EVERY_S: Final = 5.0
_log = logging.getLogger("ragmesh.retriever.store")


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """How passages are indexed."""

    analyzer: Analyzer
    encoder: Encoder | None
    """None for no vectors."""

    def made(self, snapshot: LocalSnapshot) -> bool:
        """Whether a snapshot is indexed this way."""
        fingerprint = self.encoder.fingerprint if self.encoder else ""
        return snapshot.info.analyzer == self.analyzer.name and snapshot.encoder_fingerprint == fingerprint


def write_version(
    folder: Path,
    *,
    collection: str,
    generation: int,
    description: str,
    base: LocalSnapshot | None,
    change: Change,
    recipe: Recipe,
    checkpoint: Callable[[], None],
) -> Manifest:
    """Writes every file of a new version into a folder that is empty; all are on disk when it returns.

    Args:
        folder: where to write.
        collection: name of the collection.
        generation: the version's number.
        description: the collection's description.
        base: the version before, None for the first.
        change: what differs from it.
        recipe: how passages are indexed.
        checkpoint: called now and then; what it raises ends the work.
    """
    writer = _Writer(folder, checkpoint)
    old = base.records if base is not None else None
    sizes = sizes_of(change.records)
    if old is not None:
        sizes = np.concatenate([old.sizes, sizes])
    writer.add(RECORDS, lambda file: file.writelines(joined(old, change.records, change.sources.tolist())))
    writer.add_array(RECORD_BOUNDS, bounds_of(sizes[change.sources]))
    lexical = _lexical(base, change, recipe.analyzer)
    writer.add(TERMS, lambda file: file.writelines(f"{term}\n".encode() for term in lexical.terms))
    for field in POSTING_ARRAYS:
        writer.add_array(postings_file(field), getattr(lexical, field))
    encoder = None
    if recipe.encoder is not None:
        encoder = EncoderEntry(
            name=recipe.encoder.name,
            fingerprint=recipe.encoder.fingerprint,
            dimension=recipe.encoder.dimension,
        )
        writer.add_array(VECTORS, _vectors(collection, base, change, recipe.encoder, checkpoint))
    manifest = Manifest(
        collection=collection,
        generation=generation,
        description=description,
        created_at=datetime.now(UTC),
        num_passages=len(change.sources),
        analyzer=recipe.analyzer.name,
        encoder=encoder,
        files=dict(writer.files),
    )
    durable.write(folder / FILE_NAME, lambda file: file.write(manifest.serialized()))
    return manifest


class _Writer:
    """Writes files durably and notes their hashes."""

    def __init__(self, folder: Path, checkpoint: Callable[[], None]) -> None:
        self._folder = folder
        self._checkpoint = checkpoint
        self._files: dict[str, FileEntry] = {}

    @property
    def files(self) -> Mapping[str, FileEntry]:
        """What has been written."""
        return self._files

    def add(self, name: str, content: Callable[[BinaryIO], object]) -> None:
        """Writes one file."""
        self._checkpoint()
        durable.write(self._folder / name, content)
        self._files[name] = entry_of(self._folder / name)

    def add_array(self, name: str, array: NDArray[np.generic]) -> None:
        """Writes one array."""
        self.add(name, lambda file: np.save(file, array, allow_pickle=False))


def _lexical(base: LocalSnapshot | None, change: Change, analyzer: Analyzer) -> Postings:
    if base is not None and base.info.analyzer == analyzer.name:
        new = (analyzer.tokens(passage.content) for passage in change.passages)
        return postings.merge(base.postings, new, change.sources)
    contents = _contents(base, change, range(len(change.sources)))
    return postings.build(analyzer.tokens(content) for content in contents)


def _vectors(
    collection: str,
    base: LocalSnapshot | None,
    change: Change,
    encoder: Encoder,
    checkpoint: Callable[[], None],
) -> VectorArray:
    """Vectors of all passages; contents that were encoded before, under whichever id, keep theirs."""
    sources = change.sources
    vectors = np.empty((len(sources), encoder.dimension), dtype=np.float32)
    old: VectorArray | None = None
    if base is not None and base.encoder_fingerprint == encoder.fingerprint:
        old = base.vectors
    size = len(base) if base is not None else 0
    kept = (sources < size) if old is not None else np.zeros(len(sources), dtype=bool)
    if old is not None:
        vectors[kept] = old[sources[kept]]
    rows = np.flatnonzero(~kept)
    if not len(rows):
        return vectors
    contents = _contents(base, change, rows.tolist())
    known: dict[bytes, int] = {}
    if base is not None and old is not None:
        known = {_digest(base.records.passage(row).content): row for row in range(size)}
    places = [known.get(_digest(content)) for content in contents]
    to_do = [j for j, place in enumerate(places) if place is None]
    started = told = time.monotonic()

    def progress(done: int) -> None:
        nonlocal told
        checkpoint()
        now = time.monotonic()
        if done == len(to_do) or now - told >= _PROGRESS_EVERY_S:
            told = now
            _log.info(
                "collection %s: %d of %d passages embedded",
                collection,
                done,
                len(to_do),
                extra={"passages_per_s": round(done / max(now - started, 1e-9), 1)},
            )

    for j, place in enumerate(places):
        if place is not None and old is not None:
            vectors[rows[j]] = old[place]
    if to_do:
        vectors[rows[to_do]] = encoder.encode_passages([contents[j] for j in to_do], progress)
    return vectors


def _contents(base: LocalSnapshot | None, change: Change, rows: Sequence[int]) -> list[str]:
    """What retrievers index of some rows of the new version."""
    size = len(base) if base is not None else 0
    contents = []
    for source in change.sources[list(rows)].tolist():
        if base is not None and source < size:
            contents.append(base.records.passage(source).content)
        else:
            contents.append(change.passages[source - size].content)
    return contents


def _digest(content: str) -> bytes:
    return hashlib.blake2b(content.encode(), digest_size=16).digest()
