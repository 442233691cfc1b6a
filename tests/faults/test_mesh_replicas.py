"""Two of every service: each is killed, and each is replaced at a new address, while questions are in flight.

What must hold: no ask fails; every ask is observed once; feedback and passages that were acknowledged are there, once; and a
conversation goes on. Callers know three addresses of each service, as a headless Service names them, of which two answer. Of
the retriever one writes, at one of two addresses, and the others follow it.

A round kills one of each service and replaces the other one; in the next round it is the other way round. ``make replicas``
(``EVENMESH_REPLICAS_ASKS=50 EVENMESH_REPLICAS_ROUNDS=10``) is the full size; the suite runs a short one.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Final

import pytest

from evenmesh import Addresses, AskOptions, AsyncClient, MeshError
from evenmesh_studies import demo
from tests.faults.chaos.load import Load, Seen
from tests.faults.chaos.stored import feedback_of, written
from tests.faults.chaos.world import MODULES
from tests.support.killable import Killable
from tests.support.postgres import Postgres

IN_FLIGHT: Final = int(os.environ.get("EVENMESH_REPLICAS_ASKS", "6"))
ROUNDS: Final = int(os.environ.get("EVENMESH_REPLICAS_ROUNDS", "1"))
PAUSE_S: Final = 0.0 if "EVENMESH_REPLICAS_ASKS" in os.environ else 1.0
"""Between two asks of one asker while something starts, which needs the processors. Seconds."""
QUESTIONS: Final = [one.question for one in demo.questions()[:20]]
HOW: Final[AskOptions] = {"collection": "demo", "retriever": "bm25", "reranker": "none", "depth": 5, "k": 2}
ORDER: Final = ("retriever", "reranker", "generator", "evaluator", "orchestrator")

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600 + 300 * ROUNDS)]


class Replicas:
    """A service at several addresses, of which two answer.

    Args:
        places: its processes, of which the first two run.
        heir: of the first one, where only one process may write: at another address, it waits for its folder.
    """

    def __init__(self, places: list[Killable], heir: Killable | None = None) -> None:
        self._heir = heir
        every = [*places, heir] if heir else places
        self.target = "ipv4:" + ",".join(one.address for one in every)
        self.running, self._free = places[:2], places[2:]

    @property
    def writing(self) -> str:
        """The addresses of which one writes."""
        assert self._heir is not None
        return f"ipv4:{self.running[0].address},{self._heir.address}"

    async def start(self) -> None:
        await asyncio.gather(*(one.start() for one in self.running))

    async def kill(self, place: int, world: World) -> None:
        """``kill -9`` of one while all ask; it is started again at its address."""
        await world.answers()
        self.running[place].kill()
        await self.running[place].start()

    async def replace(self, place: int, world: World) -> None:
        """Start another at a free address, and end one: when the other answers, or waits for what that one has."""
        before = self.running[place]
        if place == 0 and self._heir is not None:
            self.running[0], self._heir = self._heir, before
            await self.running[0].wait_for_folder()
            await world.answers()
            await before.stop()
            await self.running[0].serves()
            return
        successor = self._free.pop()
        await successor.start()
        self.running[place] = successor
        await world.answers()
        await before.stop()
        self._free.append(before)

    def end(self) -> None:
        for one in (*self.running, *self._free, *([self._heir] if self._heir else [])):
            one.kill()


class World:
    """A mesh of two of everything on one PostgreSQL, and who asks it."""

    def __init__(
        self, home: Path, postgres: Postgres, services: Mapping[str, Replicas], client: AsyncClient
    ) -> None:
        self.home = home
        self.postgres = postgres
        self.services = services
        self.done: list[str] = []
        self.failed: list[str] = []
        self.degraded: Counter[str] = Counter()
        self._client = client
        self._ended = asyncio.Event()
        self._wanted = asyncio.Event()

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[None]:
        """Questions are in flight while the block runs."""
        asking = [asyncio.create_task(self._ask_on(asker)) for asker in range(IN_FLIGHT)]
        try:
            yield
            await self.answers()
        finally:
            self._ended.set()
            self._wanted.set()
            await asyncio.gather(*asking)

    async def answers(self) -> None:
        """Have all ask without a pause, until as many asks as there are in flight have ended: then all are at one."""
        ends = len(self.done) + len(self.failed) + IN_FLIGHT
        self._wanted.set()
        async with asyncio.timeout(240):
            while len(self.done) + len(self.failed) < ends:
                await asyncio.sleep(0.05)
        self._wanted.clear()

    def tell(self, what: str) -> None:
        """Say how it goes."""
        sys.stderr.write(
            f"\n{what}: {IN_FLIGHT} in flight, {len(self.done)} asks, {len(self.failed)} failed "
            f"{self.failed[:3]}, degraded: {dict(self.degraded)}"
        )
        sys.stderr.flush()

    async def _ask_on(self, asker: int) -> None:
        turn = 0
        while not self._ended.is_set():
            turn += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), PAUSE_S)
            question = QUESTIONS[(asker + turn) % len(QUESTIONS)]
            try:
                found = await self._client.answer(
                    question, **HOW, run_id="replicas", query_id=f"{asker}-{turn}"
                )
            except MeshError as error:
                self.failed.append(f"{error.code.name} {error.reason}: {error}")
            else:
                assert found.done is not None
                self.done.append(found.done.ask_id)
                self.degraded.update(f"{one.stage} {one.action} {one.reason}" for one in found.degradations)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    server = Postgres(durable=True)
    services: dict[str, Replicas] = {}
    try:
        server.start()
        url = server.url.replace("+asyncpg", "")
        models = tmp_path / "models"
        models.mkdir()
        settings: dict[str, dict[str, str]] = {
            "reranker": {
                "DATABASE_URL": url,
                "MODEL_STORE": str(models),
                "CROSS_ENCODER": "",
                "DEFAULT_RERANKER": "none",
            },
            "generator": {},
            "evaluator": {"DATABASE_URL": url},
            "retriever": {"ENCODER": "", "DEFAULT_RETRIEVER": "bm25", "FOLLOW_LOOK_S": "0.2"},
            # As in the manifests: what a pod has not delivered when it ends waits for the pod of its number.
            "orchestrator": {"CONVERSATIONS_URL": url, "CONVERSATION_LEASE_S": "2", "OUTBOX_DRAIN_S": "60"},
        }
        writes = {"LEASE_WAIT_S": "600"}  # until the one before has let go
        modules = {**MODULES, "generator": "benchmarks.stand_in_generator"}
        for name in ORDER:
            places = []
            for place in "abc":
                home = tmp_path / name / place
                home.mkdir(parents=True)
                given = dict(settings[name])
                if name == "retriever":
                    given |= writes if place == "a" else {"FOLLOW": str(tmp_path / name / "a")}
                if name == "orchestrator":
                    given |= {f"{one.upper()}_TARGET": found.target for one, found in services.items()}
                places.append(Killable(modules[name], name, home, **given))
            heir = None
            if name == "retriever":
                heir = Killable(modules[name], name, tmp_path / name / "a", **settings[name], **writes)
            services[name] = Replicas(places, heir)
            await services[name].start()
        targets = {name: one.target for name, one in services.items()}
        async with AsyncClient(
            Addresses(**{**targets, "retriever": services["retriever"].writing}), timeout=120
        ) as client:
            await client.ingest(demo.passages()[:60], "demo")
        follower = services["retriever"].running[1].address
        async with (
            AsyncClient(Addresses(**{**targets, "retriever": follower})) as client,
            asyncio.timeout(120),
        ):
            while not await client.collections():
                await asyncio.sleep(0.1)
        async with AsyncClient(Addresses(**targets), timeout=120) as client:
            yield World(tmp_path, server, services, client)
    finally:
        for one in services.values():
            one.end()
        server.end()


async def test_no_ask_fails_where_any_one_is_killed_or_replaced(world: World) -> None:
    targets = {name: one.target for name, one in world.services.items()}
    promised = Seen()
    load = Load(
        Addresses(**{**targets, "retriever": world.services["retriever"].writing}),
        promised,
        passages=500,
        askers=0,
    )
    async with AsyncClient(Addresses(**targets), timeout=120) as client:
        talk = Talk(client)
        await talk.go_on()
        await load.begin()
        async with world.asked():
            for round_ in range(ROUNDS):
                for name, service in world.services.items():
                    await service.kill(round_ % 2, world)
                    await world.answers()
                    await service.replace(1 - round_ % 2, world)
                    await world.answers()
                    await talk.go_on()
                    world.tell(f"round {round_ + 1}, {name}")
        await load.end()
        await _all_observed(client, world)
    world.tell(
        f"all observed; acknowledged: {len(promised.given)} items of feedback, "
        f"{sum(map(len, promised.written.values()))} passages; calls for them that were sent again: "
        f"{dict(promised.failed)}"
    )
    assert not world.failed
    assert not any("dropped" in one for one in world.degraded)
    assert not promised.untyped
    stored = await feedback_of(world.postgres)
    assert promised.given
    assert set(promised.given) <= set(stored), "acknowledged feedback is lost"
    assert max(stored.values()) == 1
    # From the one that writes: those that follow may be a moment behind.
    kept = await written(
        Addresses(**{**targets, "retriever": world.services["retriever"].running[0].address})
    )
    for name, ids in promised.written.items():
        assert ids
        assert set(ids) <= set(kept[name]), "an acknowledged passage is lost"
        assert max(Counter(kept[name]).values()) == 1


class Talk:
    """A conversation, each turn of which may reach another orchestrator."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._id, self._turn = "", 0

    async def go_on(self) -> None:
        self._turn += 1
        async with self._client.converse(conversation_id=self._id, **({} if self._id else HOW)) as talk:
            await talk.answer(QUESTIONS[self._turn % len(QUESTIONS)])
            assert talk.turn == self._turn
            self._id = talk.id


async def _all_observed(client: AsyncClient, world: World) -> None:
    """Wait until all that was answered is observed, for as long as some of it still comes."""
    seen, since = -1, time.monotonic()
    while True:
        waits = {str(file.relative_to(world.home)): _waiting(file) for file in world.home.rglob("outbox.db")}
        async with asyncio.timeout(240):
            observed = [one.observation_id async for one in client.measurements("replicas")]
        missing = set(world.done) - set(observed)
        if not missing:
            break
        if len(observed) != seen:
            seen, since = len(observed), time.monotonic()
        assert any(map(any, waits.values())), f"{len(missing)} asks are lost"
        assert time.monotonic() - since < 180, f"{len(missing)} asks are not delivered: {waits}"
        await asyncio.sleep(0.5)
    assert max(Counter(observed).values()) == 1


def _waiting(file: Path) -> tuple[int, int]:
    """Return how many observations wait in an outbox, and how many it has set aside."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as opened:
        found = opened.execute(
            "SELECT (SELECT COUNT(*) FROM outbox), (SELECT COUNT(*) FROM outbox_set_aside)"
        )
        waits, aside = found.fetchone()
    return waits, aside
