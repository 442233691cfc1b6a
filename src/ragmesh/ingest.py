"""An ingest as messages: passages in parts that fit a message, and what became of them on the way."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from meshkit.checks import PassageLike
from ragmesh import readers
from ragmesh.request import passage_message
from ragmesh.retriever.v1 import collection_service_pb2 as collection_pb2
from ragmesh.texts import text

MAX_PART_PASSAGES: Final = 500
MAX_PART_BYTES: Final = 1 << 20

Source = str | os.PathLike[str] | Iterable[PassageLike]
"""Passages to ingest: a file that :mod:`ragmesh.readers` reads, or the passages themselves."""

OnProgress = Callable[[int], None]
"""Is told how many passages have been handed over so far; in a thread of gRPC's."""


def checked(source: Source) -> Iterable[PassageLike]:
    """The passages of ``source``; a file is read through once before its first passage is handed out.

    Raises:
        ReadError: the file cannot be read, or any line of it is not a passage.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        readers.check(path)
        return readers.read(path)
    return source


def requests(
    passages: Iterable[PassageLike], collection: str, *, create: bool, on_progress: OnProgress | None = None
) -> Iterator[collection_pb2.IngestRequest]:
    """The messages of one ingest stream, one at least.

    Raises:
        InvalidField: a passage that cannot be said on the wire.
        ReadError: the file that is read from has changed since it was checked.
    """
    part = collection_pb2.IngestRequest(collection=text("collection", collection), create_if_missing=create)
    size = total = 0
    for passage in passages:
        message = passage_message(passage)
        bytes_more = message.ByteSize()
        if part.passages and (len(part.passages) >= MAX_PART_PASSAGES or size + bytes_more > MAX_PART_BYTES):
            yield part
            if on_progress is not None:
                on_progress(total)
            part, size = collection_pb2.IngestRequest(), 0
        part.passages.append(message)
        size, total = size + bytes_more, total + 1
    part.last = True
    yield part
    if on_progress is not None:
        on_progress(total)


class IngestStream:
    """The messages of an ingest on their way, iterated by gRPC in its own thread.

    Should their source fail, the stream ends without its last message, and the service keeps nothing.

    Attributes:
        failure: what the source of the messages raised; None while all is well.
    """

    def __init__(self, messages: Iterable[collection_pb2.IngestRequest]) -> None:
        self._messages = messages
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[collection_pb2.IngestRequest]:
        try:
            yield from self._messages
        except Exception as exc:  # noqa: BLE001 - whatever it was, the caller gets it
            self.failure = exc
