"""One version of a collection, open for reading."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from services.retriever.backends.bm25.postings import Postings
from services.retriever.backends.local.manifest import Manifest, VersionName
from services.retriever.backends.local.records import RecordFile
from services.retriever.domain import CollectionInfo, Passage, VectorArray

RECORDS: Final = "passages.bin"
RECORD_BOUNDS: Final = "passages.npy"
TERMS: Final = "terms.txt"
VECTORS: Final = "vectors.npy"
POSTING_ARRAYS: Final = ("lengths", "row_bounds", "row_terms", "row_counts", "bounds", "rows", "counts")
"""Fields of :class:`Postings` that are arrays; each has its file, ``postings.<field>.npy``."""

_KEPT: Final = 4096


def postings_file(field: str) -> str:
    """Name of the file of one array of the postings."""
    return f"postings.{field}.npy"


class LocalSnapshot:
    """A version whose arrays are memory-mapped: opening it reads the terms, and pages come as they are used.

    Open files stay readable when the folder is renamed or removed.

    Args:
        folder: the version's folder.
        manifest: its manifest, verified or just written.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        self._info = CollectionInfo(
            name=manifest.collection,
            version=str(VersionName.of(manifest)),
            num_passages=manifest.num_passages,
            size_bytes=manifest.size_bytes,
            encoder=manifest.encoder.name if manifest.encoder else "",
            updated_at=manifest.created_at,
            description=manifest.description,
            analyzer=manifest.analyzer,
        )
        self.records = RecordFile.open(folder / RECORDS, _mapped(folder / RECORD_BOUNDS))
        # An audit asks for the same few hundred passages again and again.
        self._passage = lru_cache(_KEPT)(self.records.passage)
        # Tokens hold no white space, so lines separate them.
        names = (folder / TERMS).read_text(encoding="utf-8").split("\n")[:-1]
        self.postings = Postings(
            {name: number for number, name in enumerate(names)},
            *(_mapped(folder / postings_file(field)) for field in POSTING_ARRAYS),
        )
        self.vectors: VectorArray | None = _mapped(folder / VECTORS) if manifest.encoder else None

    @property
    def info(self) -> CollectionInfo:
        """The collection at this version."""
        return self._info

    @property
    def encoder_fingerprint(self) -> str:
        """Names the weights that made ``vectors``; empty where there are none."""
        return self.manifest.encoder.fingerprint if self.manifest.encoder else ""

    def __len__(self) -> int:
        return self.manifest.num_passages

    def passages(self, rows: Iterable[int]) -> list[Passage]:
        """The passages of some rows."""
        passage = self._passage
        return [passage(row) for row in rows]


def _mapped(path: Path) -> NDArray[Any]:
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
