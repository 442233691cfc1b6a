"""Read the bodies of requests within their bounds."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from evenmesh.wire.deadline import LONGEST_BUDGET_S, Deadline
from evenmesh.wire.errors import DeadlineExceeded
from evenmesh_gateway.http.events import HungUpError
from evenmesh_gateway.http.memory import Admit, PieceMemory
from evenmesh_gateway.http.problems import TOO_LARGE, UNSUPPORTED_TYPE, HttpProblem
from evenmesh_gateway.methods import PublicMethod

_BLANK: Final = re.compile(rb"\s*")
_PIECE_BYTES: Final = 65_536
_JSON_PER_BYTE: Final = 3
"""How much longer than a serialized message its JSON may be: numbers, escapes and names take more."""


def largest_json(method: PublicMethod, max_body_bytes: int) -> int:
    """Return the largest JSON of one request of a method. Bytes."""
    return min(max_body_bytes, _JSON_PER_BYTE * method.facts.max_request_bytes)


def check_head(request: Request, most: int, *types: str) -> None:
    """Check what the headers say of a body.

    Args:
        request: the request.
        most: largest body. Bytes.
        types: media types of bodies that are read here; a request without a type has the first of them.

    Raises:
        HttpProblem: another media type, a content encoding, or a longer body.
    """
    given = request.headers.get("content-type", types[0]).partition(";")[0].strip().lower()
    if given not in types:
        raise HttpProblem(
            UNSUPPORTED_TYPE, "UNSUPPORTED_TYPE", f"the body must be {' or '.join(types)}, not {given[:64]!r}"
        )
    if (encoding := request.headers.get("content-encoding", "identity")) != "identity":
        raise HttpProblem(
            UNSUPPORTED_TYPE, "UNSUPPORTED_ENCODING", f"send the body as it is, not as {encoding[:64]!r}"
        )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise too_large(most)


async def read_body(request: Request, most: int, deadline: Deadline) -> bytes:
    """Return the whole body of a request.

    Raises:
        HttpProblem: it is longer than ``most`` bytes.
        DeadlineExceeded: it has not come in time.
        HungUpError: the client hung up.
    """
    return b"".join([piece async for piece in pieces(request, most, deadline)])


async def read_lines(
    request: Request, most_line: int, most: int, deadline: Deadline, admit: Admit
) -> AsyncIterator[bytes]:
    """Yield the lines of a body as they come, without empty ones.

    Args:
        request: the request.
        most_line: largest line. Bytes.
        most: largest body. Bytes.
        deadline: of the call.
        admit: holds memory of a line that is not whole yet.

    Raises:
        HttpProblem: a line is longer than ``most_line`` bytes, or the body than ``most``.
        MeshError: RESOURCE_EXHAUSTED; a line does not fit the memory.
        DeadlineExceeded: it has not come in time.
        HungUpError: the client hung up.
    """
    async with PieceMemory(admit) as memory:
        async for line in split_lines(pieces(request, most, deadline), most_line, memory.hold):
            yield line


async def _free(size: int) -> None:
    """Hold nothing, for what is in memory already."""


async def split_lines(
    given: AsyncIterator[bytes], most_line: int, hold: Callable[[int], Awaitable[None]] = _free
) -> AsyncIterator[bytes]:
    """Yield the lines of a text that comes in pieces, without empty ones.

    Each byte is looked at once, however small the pieces are.

    Args:
        given: the pieces.
        most_line: largest line. Bytes.
        hold: takes how much is here of a line that is not whole yet. Bytes.

    Raises:
        HttpProblem: a line is longer than ``most_line`` bytes.
    """
    rest = bytearray()
    async for piece in given:
        begin = 0
        while True:
            if not rest:  # blank lines are passed over in one go
                blank = _BLANK.match(piece, begin)
                begin = blank.end() if blank else begin
            end = piece.find(b"\n", begin)
            rest += piece[begin:] if end < 0 else piece[begin:end]
            if len(rest) > most_line:
                raise too_large(most_line, "a line of the body")
            if end < 0:
                await hold(len(rest))
                break
            yield bytes(rest)
            rest.clear()
            begin = end + 1
    if rest.strip():
        yield bytes(rest)


async def in_pieces(body: bytes) -> AsyncIterator[bytes]:
    """Yield a body that is here in pieces, between which others get their turn."""
    for begin in range(0, len(body), _PIECE_BYTES):
        yield body[begin : begin + _PIECE_BYTES]
        await asyncio.sleep(0)


def timely(receive: Receive, deadline: Callable[[], Deadline]) -> Receive:
    """Return ``receive`` for a body that must come in time.

    It raises DeadlineExceeded until all of the body is here; later it waits for the client to leave.

    Args:
        receive: of the request.
        deadline: returns the deadline of the call.
    """
    whole = False

    async def receiving() -> Message:
        nonlocal whole
        if whole:
            return await receive()
        try:
            async with asyncio.timeout(min(deadline().remaining(), LONGEST_BUDGET_S)):
                message = await receive()
        except TimeoutError:
            raise _late() from None
        whole = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    return receiving


async def pieces(
    request: Request, most: int, deadline: Deadline, *, idle_s: float = LONGEST_BUDGET_S
) -> AsyncIterator[bytes]:
    """Yield a body in the pieces in which it comes.

    Raises:
        HttpProblem: it is longer than ``most`` bytes.
        DeadlineExceeded: it has not come in time, or none of it for ``idle_s`` seconds.
        HungUpError: the client hung up.
    """
    stream = request.stream()
    size = 0
    while True:
        try:
            async with asyncio.timeout(min(deadline.remaining(), idle_s, LONGEST_BUDGET_S)):
                piece = await anext(stream, None)
        except TimeoutError:
            raise _late() from None
        except ClientDisconnect:
            raise HungUpError from None
        if piece is None:
            return
        size += len(piece)
        if size > most:
            raise too_large(most)
        yield piece


def _late() -> DeadlineExceeded:
    return DeadlineExceeded("the body of the request did not come in time")


def too_large(most: int, what: str = "the body") -> HttpProblem:
    """Return the problem of what has more than ``most`` bytes."""
    return HttpProblem(TOO_LARGE, "TOO_LARGE", f"{what} must be at most {most:,} bytes here")
