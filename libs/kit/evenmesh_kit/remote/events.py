"""Read server-sent events from the bytes of a reply (WHATWG HTML, section 9.2)."""

from __future__ import annotations

from typing import Final

from evenmesh_kit.remote.errors import MalformedReply

MOST_EVENT_BYTES: Final = 2**20
"""Longest event. Bytes."""


class EventReader:
    """Collects bytes, in any pieces, and returns the ``data`` of each complete event.

    Other fields and comments are ignored. An event that is not complete at the end of the reply is none.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[str]:
        """Return the data of the events that ``piece`` completes.

        Raises:
            MalformedReply: an event is too long or is not UTF-8.
        """
        events: list[str] = []
        lines = (self._rest + piece).replace(b"\r\n", b"\n").split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if not line.strip(b"\r"):
                if self._data:
                    events.append(self._event())
                continue
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
                self._size += len(value)
            self._check(self._size)
        self._check(self._size + len(self._rest))
        return events

    def _event(self) -> str:
        data = b"\n".join(self._data)
        self._data, self._size = [], 0
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise MalformedReply("the model server sent an event that is not UTF-8") from None

    def _check(self, size: int) -> None:
        if size > MOST_EVENT_BYTES:
            raise MalformedReply(
                f"the model server sent an event of more than {MOST_EVENT_BYTES} bytes",
                "REMOTE_REPLY_TOO_LARGE",
            )
