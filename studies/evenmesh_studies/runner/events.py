"""Collect what a mesh streams, or fail so that the runner asks again."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TypeVar

from evenmesh.long_runs import RETRYABLE_REASONS, may_pass
from evenmesh.types.events import Degraded, Done, Failed
from evenmesh.wire.errors import Unavailable

E = TypeVar("E")


async def collect(events: AsyncIterator[E], *, until_done: str = "") -> list[E]:
    """Return all events of one call.

    Args:
        events: an asynchronous generator.
        until_done: name of a call that must end with :class:`Done`; empty if it need not.

    Raises:
        Unavailable: a stage degraded or an answer failed for a reason that may pass, or the stream ended
            early. A degraded ``observe`` stage does not count: it changes no result.
    """
    found: list[E] = []
    async with aclosing(events) as stream:  # type: ignore[type-var]  # it is a generator
        async for event in stream:
            match event:
                case Degraded(stage=stage, reason=why) if stage != "observe" and why in RETRYABLE_REASONS:
                    raise Unavailable(why, event.message)
                case Failed() if may_pass(event.code, event.reason):
                    raise Unavailable("NO_ANSWER", event.message)
                case _:
                    found.append(event)
    if until_done and not any(isinstance(event, Done) for event in found):
        raise Unavailable("CUT_OFF", f"the orchestrator ended the {until_done} early")
    return found
