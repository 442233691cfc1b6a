"""Keep many arrays in one file, written one after the other and memory-mapped as a whole.

A segment has two dozen arrays. In one file they cost one open, one mapping and one flush to disk instead of
two dozen each, which is what a small ingest and a restart with many segments are made of.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from evenmesh_retriever.backends.segments.files.mapping import mapped

_ALIGNMENT: Final = 64


class ArrayEntry(BaseModel):
    """Where one array lies."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: str = Field(pattern=r"^[|<][biuf]\d$")
    shape: tuple[int, ...]
    offset: int = Field(ge=0)


class ArrayFile(BaseModel):
    """What a file of arrays holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    arrays: dict[str, ArrayEntry]


class ArrayWriter:
    """Writes arrays into a new file; on disk once :meth:`finish` has returned.

    Args:
        path: the file.
        checkpoint: called before each piece; what it raises ends the work.
    """

    def __init__(self, path: Path, checkpoint: Callable[[], None]) -> None:
        self._file = path.open("xb")
        self._checkpoint = checkpoint
        self._digest = hashlib.sha256()
        self._size = 0
        self._arrays: dict[str, ArrayEntry] = {}

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, name: str, array: NDArray[Any]) -> None:
        """Write one array, row by row in memory order."""
        self.stream(name, array.dtype, [array], row_shape=array.shape[1:])

    def stream(
        self,
        name: str,
        dtype: np.dtype[Any] | type[np.generic],
        pieces: Iterable[NDArray[Any]],
        *,
        row_shape: tuple[int, ...] = (),
    ) -> None:
        """Write one array that comes in pieces, of which one at a time is in memory."""
        self._write(bytes(-self._size % _ALIGNMENT))
        offset, rows = self._size, 0
        kind = np.dtype(dtype)
        for piece in pieces:
            self._checkpoint()
            ready = np.ascontiguousarray(piece, dtype=kind)
            self._write(ready.reshape(-1).view(np.uint8).data)
            rows += len(ready)
        self._arrays[name] = ArrayEntry(dtype=kind.str, shape=(rows, *row_shape), offset=offset)

    def finish(self) -> ArrayFile:
        """Flush the file to disk."""
        self._checkpoint()
        self._file.flush()
        os.fsync(self._file.fileno())
        return ArrayFile(bytes=self._size, sha256=self._digest.hexdigest(), arrays=self._arrays)

    def _write(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        self._size += self._file.write(data)


def opened(path: Path, content: ArrayFile) -> Mapping[str, NDArray[Any]]:
    """Map a file's arrays into memory; none of it is read before it is used. A small file is read.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is shorter than its arrays.
    """
    data = mapped(path)
    return {
        name: np.frombuffer(
            data, dtype=entry.dtype, count=int(np.prod(entry.shape)), offset=entry.offset
        ).reshape(entry.shape)
        for name, entry in content.arrays.items()
    }
