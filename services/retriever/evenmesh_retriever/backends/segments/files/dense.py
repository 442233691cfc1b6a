"""Keep the vectors of a segment and their index, which are added to a segment when they are ready."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from evenmesh_kit.storage import durable_files
from evenmesh_retriever.backends.segments.files import faults
from evenmesh_retriever.backends.segments.files import manifest as manifests
from evenmesh_retriever.backends.segments.files.manifest import (
    MANIFEST,
    Corrupt,
    DenseManifest,
    EncoderEntry,
    Name,
)
from evenmesh_retriever.backends.segments.files.mapping import load
from evenmesh_retriever.domain import VectorArray

if TYPE_CHECKING:
    from evenmesh_retriever.backends.dense.build import DenseIndex

VECTORS: Final = "vectors.npy"
_PREFIX: Final = "dense-"


class DensePart:
    """Vectors of length 1 of all rows of a segment, memory-mapped.

    Args:
        folder: their folder within the segment's.
        manifest: its manifest.

    Raises:
        Corrupt: a file is missing or of another size.
    """

    def __init__(self, folder: Path, manifest: DenseManifest) -> None:
        for name, entry in manifest.files.items():
            manifests.check_size(folder / name, entry.bytes)
        self.folder = folder
        self.manifest = manifest
        self.vectors: VectorArray = load(folder / VECTORS)

    @cached_property
    def index(self) -> DenseIndex:
        """What searches them.

        Raises:
            Corrupt: the index cannot be read, or is of other vectors.
        """
        from evenmesh_retriever.backends.dense import build as indexing  # FAISS, only where there are vectors
        from evenmesh_retriever.backends.dense.manifest import CorruptIndex

        try:
            return indexing.open(self.folder, self.vectors)
        except CorruptIndex as error:
            raise Corrupt(str(error)) from None

    def check(self) -> None:
        """Raise Corrupt unless the index can be opened."""
        self.index  # noqa: B018 - it is kept once it is open

    @property
    def name(self) -> str:
        """Its name, which holds the hash of its manifest."""
        return name_of(self.folder)

    @classmethod
    def open(cls, segment: Path, name: str) -> DensePart:
        """Open the vectors of a segment; they are not read.

        Raises:
            Corrupt: they are not as they were written.
        """
        folder = folder_of(segment, name)
        return cls(folder, manifests.read(folder / MANIFEST, name, DenseManifest))


def folder_of(segment: Path, name: str) -> Path:
    """Return the folder of the dense part of a segment."""
    return segment / f"{_PREFIX}{name}"


def name_of(folder: Path) -> str:
    """Return the name of the dense part in a folder."""
    return folder.name.removeprefix(_PREFIX)


def folders(segment: Path) -> list[Path]:
    """Return folders of all dense parts of a segment."""
    return sorted(path for path in segment.glob(f"{_PREFIX}*") if path.is_dir())


def new_vectors(folder: Path, num_vectors: int, dimension: int) -> np.memmap[Any, np.dtype[np.float32]]:
    """Return a file of vectors to be filled, in a folder that is made.

    Raises:
        OSError: the disk has no room for it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / VECTORS
    vectors = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(num_vectors, dimension))
    if hasattr(os, "posix_fallocate"):  # not on macOS
        # Without its blocks a file is sparse, and to write where the disk is full then kills the process.
        with path.open("rb+") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return vectors


def finish(
    folder: Path, encoder: EncoderEntry, num_vectors: int, progress: Callable[[int], None]
) -> DenseManifest:
    """Build the index over vectors that are written, describe them, and flush all to disk."""
    from evenmesh_retriever.backends.dense import build as indexing

    index = indexing.build(
        np.load(folder / VECTORS, mmap_mode="r", allow_pickle=False), folder, progress=progress
    )
    files = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        files[path.name] = manifests.entry_of(path)
    manifest = DenseManifest(
        encoder=encoder, num_vectors=num_vectors, kind=index.kind, recall=index.recall_at_100, files=files
    )
    durable_files.write(folder / MANIFEST, manifest.serialized())
    return manifest


def part_name(manifest: DenseManifest) -> str:
    """Return the name of a dense part."""
    return str(Name.of(1, manifest.serialized()))


def publish(segment: Path, folder: Path, manifest: DenseManifest) -> DensePart:
    """Move finished vectors to their segment, which has none of that name; they count once a version names
    them.
    """
    name = part_name(manifest)
    durable_files.move_folder(folder, folder_of(segment, name))
    faults.point("embedding.moved")
    return DensePart.open(segment, name)
