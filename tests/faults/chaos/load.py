"""Clients that ask, give feedback and ingest, and note what they were promised."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import grpc

from evenmesh import Addresses, AsyncClient, Degraded, Done, MeshError, Passage
from evenmesh.types.feedback import Feedback
from evenmesh.types.request import Agent
from evenmesh_studies import demo

ASKERS: Final = 4
GIVERS: Final = 2
WRITERS: Final = 2
TIMEOUT_S: Final = 10.0
"""Deadline of every call. Seconds."""
RUN: Final = "chaos"
COLLECTION: Final = "demo"
QUESTIONS: Final = [one.question for one in demo.questions()[:20]]

ALLOWED: Final = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""What a fault may do to a call; all else is an error without a proper name."""


@dataclass
class Seen:
    """What the clients saw.

    Attributes:
        started: asks begun.
        asked: their queries, each asked once.
        observed: ids of asks whose end said that their observation is kept.
        clean: asks that ended without any degradation.
        given: ids of feedback that was acknowledged.
        written: ids of passages that were acknowledged, by collection.
        degraded: degradations by stage and action.
        failed: failed calls by status and reason.
        untyped: errors that have no proper name.
        overrun_s: longest time a call took beyond its deadline. Seconds.
    """

    started: int = 0
    asked: set[str] = field(default_factory=set)
    observed: list[str] = field(default_factory=list)
    clean: int = 0
    given: list[str] = field(default_factory=list)
    written: dict[str, list[str]] = field(default_factory=dict)
    degraded: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    untyped: list[str] = field(default_factory=list)
    overrun_s: float = float("-inf")


class Load:
    """The clients.

    Args:
        addresses: where the services are.
        seen: what they note.
        passages: most passages that a writer has; then it writes them anew, with other texts. None: it goes on
            with more.
        askers: how many of them ask.
        pause_s: time between two asks of one of them. Seconds.
    """

    def __init__(
        self,
        addresses: Addresses,
        seen: Seen,
        *,
        passages: int | None = None,
        askers: int = ASKERS,
        pause_s: float = 0.05,
    ) -> None:
        self._addresses = addresses
        self._askers = askers
        self._pause_s = pause_s
        self._seen = seen
        self._passages = passages
        self._ended = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Makes the collections and starts."""
        async with AsyncClient(self._addresses, timeout=TIMEOUT_S) as client:
            await client.ingest(demo.passages()[:60], COLLECTION)
            for writer in range(WRITERS):
                await client.create_collection(f"written-{writer}")
        kinds = ((self._askers, self._ask), (GIVERS, self._give), (WRITERS, self._write))
        self._tasks = [asyncio.create_task(work(number)) for count, work in kinds for number in range(count)]

    async def end(self) -> None:
        """Waits for the calls under way; raises what a client died of."""
        self._ended.set()
        await asyncio.gather(*self._tasks)

    async def clean_round(self, timeout_s: float) -> bool:
        """Whether an ask without degradation, feedback and an ingest all succeed now, each within a time."""
        async with AsyncClient(self._addresses, timeout=timeout_s) as client:
            degraded = 0
            try:
                async for event in client.ask(
                    QUESTIONS[0], run_id="recovery", depth=5, k=2, timeout=timeout_s
                ):
                    degraded += isinstance(event, Degraded)
                await client.record_feedback([_item("recovery", 0)], timeout=timeout_s)
                await client.ingest([_passage("recovery")], COLLECTION, create=False, timeout=timeout_s)
            except MeshError:
                return False
            return not degraded

    async def _timed(self, work: Callable[[], Awaitable[bool]]) -> bool:
        """Does one call; whether it succeeded."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            return await work()
        except MeshError as error:
            self._seen.failed[f"{error.code.name} {error.reason}"] += 1
            if error.code not in ALLOWED:
                self._seen.untyped.append(f"{error.code.name} {error.reason}: {error}")
            return False
        except Exception as error:  # noqa: BLE001 - that there is none is what is shown
            self._seen.untyped.append(repr(error))
            return False
        finally:
            self._seen.overrun_s = max(self._seen.overrun_s, loop.time() - begun - TIMEOUT_S)

    async def _ask(self, number: int) -> None:
        turn = 0
        async with AsyncClient(self._addresses, timeout=TIMEOUT_S) as client:
            while not self._ended.is_set():
                turn += 1
                query_id = f"{number}-{turn}"
                question = QUESTIONS[(number + turn) % len(QUESTIONS)]

                async def ask(question: str = question, query_id: str = query_id) -> bool:
                    self._seen.started += 1
                    self._seen.asked.add(query_id)
                    actions = []
                    asked = client.ask(
                        question, run_id=RUN, query_id=query_id, depth=5, k=2, timeout=TIMEOUT_S
                    )
                    async for event in asked:
                        if isinstance(event, Degraded):
                            actions.append(event.action)
                            self._seen.degraded[f"{event.stage} {event.action}"] += 1
                        elif isinstance(event, Done):
                            if "observation_dropped" not in actions:
                                self._seen.observed.append(event.ask_id)
                            self._seen.clean += not actions
                    return True

                await self._timed(ask)
                await asyncio.sleep(self._pause_s)

    async def _give(self, number: int) -> None:
        turn = 0
        async with AsyncClient(self._addresses, timeout=TIMEOUT_S) as client:
            while not self._ended.is_set():
                turn += 1
                batch = [_item(f"{number}-{turn}-{one}", one) for one in range(10)]

                async def give(batch: list[Feedback] = batch) -> bool:
                    await client.record_feedback(batch, timeout=TIMEOUT_S)
                    self._seen.given.extend(one.id for one in batch)
                    return True

                await self._until_done(give)

    async def _write(self, number: int) -> None:
        name = f"written-{number}"
        written = self._seen.written.setdefault(name, [])
        turn = 0
        async with AsyncClient(self._addresses, timeout=TIMEOUT_S) as client:
            while not self._ended.is_set():
                turn += 1
                place = turn if self._passages is None else turn % (self._passages // 5)
                batch = [_passage(f"{place}-{one}", turn) for one in range(5)]

                async def write(batch: list[Passage] = batch) -> bool:
                    await client.ingest(batch, name, create=False, timeout=TIMEOUT_S)
                    written.extend(one.id for one in batch)
                    return True

                await self._until_done(write)

    async def _until_done(self, work: Callable[[], Awaitable[bool]]) -> None:
        """Sends the same again until it is acknowledged, as who must not lose it does."""
        while not await self._timed(work):
            if self._ended.is_set():
                return
            await asyncio.sleep(0.2)
        await asyncio.sleep(0.2)


def _item(id_: str, at: int) -> Feedback:
    return Feedback(
        query=f"query {id_}",
        passage_id="p",
        usefulness=float(at % 2),
        agent=Agent(task_id="qa", model_id="chaos"),
        id=id_,
    )


def _passage(id_: str, turn: int = 0) -> Passage:
    return Passage(id=id_, text=f"What was written as {id_} in turn {turn}.")
