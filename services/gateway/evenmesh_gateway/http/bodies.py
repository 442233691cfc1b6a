"""Read the bodies of requests within their bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import ClientDisconnect, Request

from evenmesh.wire.deadline import LONGEST_BUDGET_S, Deadline
from evenmesh.wire.errors import DeadlineExceeded
from evenmesh_gateway.http.events import HungUpError
from evenmesh_gateway.http.problems import TOO_LARGE, UNSUPPORTED_TYPE, HttpProblem
from evenmesh_gateway.methods import PublicMethod

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
    parts: list[bytes] = []
    size = 0
    async for piece in pieces(request, deadline):
        size += len(piece)
        if size > most:
            raise too_large(most)
        parts.append(piece)
    return b"".join(parts)


async def read_lines(request: Request, most_line: int, most: int, deadline: Deadline) -> AsyncIterator[bytes]:
    """Yield the lines of a body as they come, without empty ones.

    Raises:
        HttpProblem: a line is longer than ``most_line`` bytes, or the body than ``most``.
        DeadlineExceeded: it has not come in time.
        HungUpError: the client hung up.
    """
    rest = bytearray()
    size = 0
    async for piece in pieces(request, deadline):
        size += len(piece)
        if size > most:
            raise too_large(most)
        rest += piece
        *lines, rest = rest.split(b"\n")
        if any(len(line) > most_line for line in (*lines, rest)):
            raise too_large(most_line, "a line of the body")
        for line in lines:
            if line.strip():
                yield bytes(line)
    if rest.strip():
        yield bytes(rest)


async def pieces(
    request: Request, deadline: Deadline, *, idle_s: float = LONGEST_BUDGET_S
) -> AsyncIterator[bytes]:
    """Yield a body in the pieces in which it comes.

    Raises:
        DeadlineExceeded: it has not come in time, or none of it for ``idle_s`` seconds.
        HungUpError: the client hung up.
    """
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(min(deadline.remaining(), idle_s, LONGEST_BUDGET_S)):
                piece = await anext(stream, None)
        except TimeoutError:
            raise DeadlineExceeded("the body of the request did not come in time") from None
        except ClientDisconnect:
            raise HungUpError from None
        if piece is None:
            return
        yield piece


def too_large(most: int, what: str = "the body") -> HttpProblem:
    """Return the problem of what has more than ``most`` bytes."""
    return HttpProblem(TOO_LARGE, "TOO_LARGE", f"{what} must be at most {most:,} bytes here")
