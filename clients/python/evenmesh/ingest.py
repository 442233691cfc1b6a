"""Send an ingest: passages in parts that fit a message."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from evenmesh.codec.values import text
from evenmesh.files import passages as readers
from evenmesh.retriever.v1 import collection_service_pb2 as collection_pb2
from evenmesh.types.request import passage_message
from evenmesh.wire.checks import PassageLike

MAX_PART_PASSAGES: Final = 500
MAX_PART_BYTES: Final = 1 << 20

PassageSource = str | os.PathLike[str] | Iterable[PassageLike]
"""Passages to ingest: a file that :mod:`evenmesh.files.passages` reads, or the passages themselves."""

OnProgress = Callable[[int], None]
"""Called with the number of passages sent so far, in a thread of gRPC's."""


def checked(source: PassageSource) -> Iterable[PassageLike]:
    """Return the passages of ``source``; read a file through once before its first passage is used.

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
    """Yield the messages of one ingest, at least one.

    Raises:
        InvalidField: a message cannot hold a passage.
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
    """Hands the messages of an ingest to gRPC, which iterates in its own thread.

    If their source fails, the stream ends without its last message, and the service keeps nothing.

    Attributes:
        failure: what the source of the messages raised; None if it raised nothing.
    """

    def __init__(self, messages: Iterable[collection_pb2.IngestRequest]) -> None:
        self._messages = messages
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[collection_pb2.IngestRequest]:
        try:
            yield from self._messages
        except Exception as exc:  # noqa: BLE001 - whatever it was, the caller gets it
            self.failure = exc
