"""What can go wrong with a model server, and the status that each fault has: the table of the guides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import grpc

from tests.support.scripted_http import HttpReply, HttpRequest, Script, hang, replying

IDLE_S: Final = 1.0
"""Longest silence in the tests of these faults. Seconds."""
PATIENT_S: Final = 30.0
"""The same where no server is silent: a busy machine is, for as long as it likes. Seconds."""
REPLY_BYTES: Final = 4096
"""Largest reply in the tests of these faults."""


@dataclass(frozen=True)
class Fault:
    """A fault of a server, and how a caller learns of it."""

    name: str
    script: Script
    code: grpc.StatusCode
    reason: str
    retry_after_s: float | None = None

    def __str__(self) -> str:
        return self.name


async def _killed(_: HttpRequest, reply: HttpReply) -> None:
    reply.kill()


async def _killed_within(_: HttpRequest, reply: HttpReply) -> None:
    await reply.head(200, **{"content-type": "application/json", "content-length": "1000"})
    await reply.raw(b'{"results": [')
    reply.kill()


async def _cut(_: HttpRequest, reply: HttpReply) -> None:
    await reply.head(200, **{"content-type": "application/json", "content-length": "1000"})
    await reply.raw(b'{"results": [')


async def _silent_within(_: HttpRequest, reply: HttpReply) -> None:
    await reply.head(200, **{"content-type": "application/json", "content-length": "1000"})
    await reply.raw(b'{"results": [')
    await hang(_, reply)


async def _endless(_: HttpRequest, reply: HttpReply) -> None:
    await reply.head(200, **{"content-type": "application/json"})
    while True:
        await reply.raw(b" " * 1024)


_UNAVAILABLE: Final = grpc.StatusCode.UNAVAILABLE
_PRECONDITION: Final = grpc.StatusCode.FAILED_PRECONDITION
_EXHAUSTED: Final = grpc.StatusCode.RESOURCE_EXHAUSTED

FAULTS: Final = (
    Fault("429", replying(429, {}, retry_after="7"), _EXHAUSTED, "OVERLOADED", 7.0),
    Fault("429 without a delay", replying(429, {}), _EXHAUSTED, "OVERLOADED", 1.0),
    Fault("503", replying(503, {}, retry_after="9"), _UNAVAILABLE, "REMOTE_UNAVAILABLE", 9.0),
    Fault("500", replying(500, "<html>"), _UNAVAILABLE, "REMOTE_UNAVAILABLE", 1.0),
    Fault("424", replying(424, {"error": "CUDA"}), _UNAVAILABLE, "REMOTE_UNAVAILABLE", 1.0),
    Fault("a hang", hang, _UNAVAILABLE, "REMOTE_SILENT", 1.0),
    Fault("a hang within the reply", _silent_within, _UNAVAILABLE, "REMOTE_SILENT", 1.0),
    Fault("a kill", _killed, _UNAVAILABLE, "REMOTE_UNAVAILABLE", 1.0),
    Fault("a kill within the reply", _killed_within, _UNAVAILABLE, "REMOTE_CUT_STREAM", 1.0),
    Fault("a cut body", _cut, _UNAVAILABLE, "REMOTE_CUT_STREAM", 1.0),
    Fault("no JSON", replying(200, "<html>"), _UNAVAILABLE, "REMOTE_MALFORMED_REPLY"),
    Fault("an empty body", replying(200, ""), _UNAVAILABLE, "REMOTE_MALFORMED_REPLY"),
    Fault("other JSON", replying(200, {"ok": True}), _UNAVAILABLE, "REMOTE_MALFORMED_REPLY"),
    Fault("a large body", replying(200, " " * 5000), _UNAVAILABLE, "REMOTE_REPLY_TOO_LARGE"),
    Fault("an endless body", _endless, _UNAVAILABLE, "REMOTE_REPLY_TOO_LARGE"),
    Fault("400", replying(400, {"error": {"message": "Invalid"}}), _PRECONDITION, "REMOTE_REJECTED"),
    Fault("413", replying(413, {"error": "batch size 9 > 4"}), _PRECONDITION, "REMOTE_REJECTED"),
    Fault("422", replying(422, {"detail": "too long"}), _PRECONDITION, "REMOTE_REJECTED"),
    Fault("401", replying(401, {}), _PRECONDITION, "REMOTE_KEY_REFUSED"),
    Fault("404", replying(404, {}), _PRECONDITION, "REMOTE_NOT_FOUND"),
    Fault("302", replying(302, "", location="http://x"), _PRECONDITION, "REMOTE_REDIRECTED"),
)
"""Faults that every client of a model server must map."""
