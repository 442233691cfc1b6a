"""Commands to a server that speaks the Redis protocol: no cancellation is lost, whatever the package does with it."""

from __future__ import annotations

import asyncio

import pytest

from evenmesh_kit.redis_client import answer, connect


async def _swallows(fails: bool) -> str:
    """Lose a cancellation as the package does while it connects: go on, or raise another error instead."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if fails:
            raise ConnectionError("cannot connect") from None
    return "PONG"


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancellation_that_the_package_loses_ends_the_task(fails: bool) -> None:
    asking = asyncio.create_task(answer(_swallows(fails), 600.0))
    await asyncio.sleep(0)  # until it waits
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert asking.cancelled()


async def test_what_the_server_says_is_returned_and_an_error_stays_one() -> None:
    async def says() -> str:
        return "PONG"

    async def fails() -> str:
        raise ConnectionError("refused")

    assert await answer(says(), 600.0) == "PONG"
    with pytest.raises(ConnectionError, match="refused"):
        await answer(fails(), 600.0)
    with pytest.raises(TimeoutError):
        await answer(asyncio.Event().wait(), 0.0)


def test_what_is_no_url_is_refused() -> None:
    pytest.importorskip("redis")
    with pytest.raises(ValueError, match="scheme"):
        connect("http://127.0.0.1", 1.0)
