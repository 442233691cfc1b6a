"""Compute the vectors of passages; reuse those of equal texts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from evenmesh_kit.storage import durable_files
from evenmesh_retriever.backends.segments.files import dense, faults
from evenmesh_retriever.backends.segments.files.dense import VECTORS
from evenmesh_retriever.backends.segments.files.hashes import hashes_of
from evenmesh_retriever.backends.segments.files.manifest import DenseManifest, EncoderEntry
from evenmesh_retriever.backends.segments.files.segment import View
from evenmesh_retriever.domain import VectorArray
from evenmesh_retriever.ports import Encoder

_CHUNK: Final = 128
_DONE: Final = "done.json"

Progress = Callable[[int], None]


def entry_of(encoder: Encoder) -> EncoderEntry:
    """Return an encoder as manifests name it."""
    return EncoderEntry(name=encoder.name, fingerprint=encoder.fingerprint, dimension=encoder.dimension)


def write(
    folder: Path,
    contents: Sequence[str],
    ready: Mapping[str, VectorArray],
    known: Sequence[View],
    encoder: Encoder,
    progress: Progress,
) -> DenseManifest:
    """Write the vectors of texts into a separate folder; durable on return.

    Args:
        folder: made if it is not there.
        contents: 1 or more texts.
        ready: vectors of some of them.
        known: segments whose vectors are taken over where a text is the same.
        encoder: makes the others.
        progress: called with the number of texts done; what it raises ends the work.
    """
    vectors = dense.new_vectors(folder, len(contents), encoder.dimension)
    missing = [place for place, content in enumerate(contents) if content not in ready]
    if missing:
        vectors[missing] = vectors_of([contents[place] for place in missing], known, encoder, progress)
    for place, content in enumerate(contents):
        if content in ready:
            vectors[place] = ready[content]
    vectors.flush()
    del vectors
    return dense.finish(folder, entry_of(encoder), len(contents), progress)


def write_on(
    folder: Path, view: View, known: Sequence[View], encoder: Encoder, progress: Progress
) -> Generator[None, None, tuple[Path, DenseManifest]]:
    """Write the vectors of a segment in chunks, going on where an earlier process stopped.

    Each chunk is a step. Rows that are gone get none.

    Args:
        folder: where to; nobody else writes there.
        view: the segment.
        known: segments whose vectors are taken over where a text is the same.
        encoder: makes the others.
        progress: called with the number of rows done; what it raises ends the work, which is then taken up
            again after the last whole chunk.
    """
    size = len(view.segment)
    done = _done(folder, size, encoder.dimension)
    if not done:
        shutil.rmtree(folder, ignore_errors=True)
        vectors = dense.new_vectors(folder, size, encoder.dimension)
    else:
        vectors = np.lib.format.open_memmap(folder / VECTORS, mode="r+")
    progress(done)
    for begin in range(done, size, _CHUNK):
        rows = np.arange(begin, min(begin + _CHUNK, size))
        if view.alive is not None:
            rows = rows[view.alive[rows]]
        contents = [view.segment.records.passage(row).content for row in rows.tolist()]
        if contents:
            vectors[rows] = vectors_of(contents, known, encoder, lambda _: progress(begin))  # noqa: B023
        vectors.flush()
        durable_files.replace(folder / _DONE, json.dumps(min(begin + _CHUNK, size)).encode())
        progress(min(begin + _CHUNK, size))
        faults.point("embedding.half-written")
        yield
    del vectors
    (folder / _DONE).unlink(missing_ok=True)
    return folder, dense.finish(folder, entry_of(encoder), size, lambda _: progress(size))


def _done(folder: Path, size: int, dimension: int) -> int:
    try:
        vectors = np.load(folder / VECTORS, mmap_mode="r", allow_pickle=False)
        done = int(json.loads((folder / _DONE).read_text()))
    except (OSError, ValueError):
        return 0
    return done if vectors.shape == (size, dimension) and 0 <= done <= size else 0


def vectors_of(
    contents: Sequence[str], known: Sequence[View], encoder: Encoder, progress: Progress = lambda _: None
) -> VectorArray:
    """Return the vectors of texts, of ``known`` segments where a text is the same; see :func:`write`."""
    vectors = np.empty((len(contents), encoder.dimension), dtype=np.float32)
    missing = np.ones(len(contents), dtype=np.bool_)
    hashes = hashes_of(content.encode() for content in contents)
    for view in known:
        if view.dense is None or view.dense.manifest.encoder.fingerprint != encoder.fingerprint:
            continue
        for position, row in view.segment.contents.candidates(hashes):
            if missing[position] and view.segment.records.passage(row).content == contents[position]:
                vector = view.dense.vectors[row]
                if vector.any():  # else the row was gone before its turn came
                    vectors[position] = vector
                    missing[position] = False
    to_do = np.flatnonzero(missing).tolist()
    if to_do:
        vectors[to_do] = encoder.encode_passages([contents[one] for one in to_do], progress)
    return vectors
