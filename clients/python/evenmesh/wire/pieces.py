"""Send many items in as few calls as the service takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from evenmesh.wire.errors import MeshError

Item = TypeVar("Item")
Reply = TypeVar("Reply")

TOO_LARGE: Final = "REQUEST_TOO_LARGE"
"""Reason of a refusal before any work: the same items fit in several calls."""


async def in_pieces(
    items: Sequence[Item], call: Callable[[Sequence[Item]], Awaitable[Reply]]
) -> list[tuple[Sequence[Item], Reply]]:
    """Call with all items, or one call after the other with as many as are taken; return pieces and replies.

    A piece that is too large is halved, and those after it have no more items than it has then.

    Raises:
        MeshError: as a call does; ``REQUEST_TOO_LARGE`` if an item alone is too large.
    """
    size, begin = max(1, len(items)), 0
    done: list[tuple[Sequence[Item], Reply]] = []
    while begin < len(items) or not done:
        piece = items[begin : begin + size]
        try:
            reply = await call(piece)
        except MeshError as error:
            if error.reason != TOO_LARGE or len(piece) < 2:
                raise
            size = -(-len(piece) // 2)
        else:
            done.append((piece, reply))
            begin += size
    return done
