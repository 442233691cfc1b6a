"""Two evaluators on one PostgreSQL as processes: each answers for both, and ``kill -9`` of one loses nothing.

What must hold when one is killed while orchestrators send it observations: the other takes them, every observation that
left an outbox is stored, and none is counted twice. ``EVENMESH_REPLICAS_STEP=2000 EVENMESH_REPLICAS_KILLS=12`` is a
longer one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as pb_grpc
from evenmesh.statements import new_key, public_keys, verify
from evenmesh.types.statements import SignedStatement, StatementSignature
from evenmesh.wire.channel import connect
from evenmesh.wire.errors import MeshError
from evenmesh_kit.rpc.breaker import Unanswered
from evenmesh_orchestrator.clients import EvaluatorClient
from evenmesh_orchestrator.domain import Contexts, Observation, Pool, Ranked
from evenmesh_orchestrator.observations.outbox import Outbox
from evenmesh_orchestrator.observations.relay import ObserveStream, OutboxRelay
from tests.support.killable import Killable
from tests.support.postgres import Postgres
from tests.support.waiting import until
from tests.unit.orchestrator.fakes import ask

STEP = int(os.environ.get("EVENMESH_REPLICAS_STEP", "200"))
KILLS = int(os.environ.get("EVENMESH_REPLICAS_KILLS", "1"))
ORCHESTRATORS = 2
SERVICE = pb.DESCRIPTOR.services_by_name["EvaluatorService"].full_name
YESTERDAY = datetime.now(UTC) - timedelta(days=1)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300 + 60 * KILLS)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("replicas")
    _, public = new_key(home / "signing.pem")
    (home / "public.pem").write_text(public)
    return home


@pytest.fixture(scope="module")
def evaluators(home: Path) -> Iterator[list[Killable]]:
    """Two that start at once on an empty database, with the same key and nothing else in common."""
    server = Postgres(durable=True)
    made: list[Killable] = []
    try:
        server.start()
        for name in ("a", "b"):
            (home / name).mkdir()
            made.append(
                Killable(
                    "evenmesh_evaluator",
                    "evaluator",
                    home / name,
                    DATABASE_URL=server.url.replace("+asyncpg", ""),
                    STATEMENT_KEY=str(home / "signing.pem"),
                    STATEMENT_EPSILON="1.0",
                    STATEMENT_MIN_ASKS="1",
                ).also(EVENMESH_HOME="/dev/null/none")  # as in their pods, where nothing can be written
            )

        async def start() -> None:
            await asyncio.gather(*(one.start() for one in made))

        asyncio.run(start())
        yield made
    finally:
        for one in made:
            one.kill()
        server.end()


@pytest.fixture
async def stubs(evaluators: Sequence[Killable]) -> AsyncIterator[list[pb_grpc.EvaluatorServiceStub]]:
    """Of each of the two."""
    async with AsyncExitStack() as stack:
        yield [
            pb_grpc.EvaluatorServiceStub(
                await stack.enter_async_context(connect(one.address, service=SERVICE))
            )
            for one in evaluators
        ]


def _observation(id_: str, run_id: str) -> pb.Observation:
    number = int(id_.rpartition("-")[2])
    message = pb.Observation(id=id_, run_id=run_id, query_id=f"q{number % 7}", collection=run_id)
    message.candidates.add(passage_id="a", provider="Acme", text="", merit_share=0.75)
    message.candidates.add(passage_id="b", provider="Other", merit_share=0.25)
    message.shown.depth = 1
    message.shown.indices.append(number % 2)
    message.answers.add(text="the Rhine" if number % 3 else "the Elbe", samples=[0], cited=[0])
    message.labels.references.append("the Rhine")
    message.observed_at.FromDatetime(YESTERDAY.replace(tzinfo=None))
    return message


async def _answers(stub: pb_grpc.EvaluatorServiceStub, run_id: str) -> dict[str, Any]:
    """What an evaluator says of a run and its collection, but for when it says it."""
    report = (await stub.GetReport(pb.GetReportRequest(run_id=run_id), timeout=60)).report
    first = await stub.ListRuns(pb.ListRunsRequest(page_size=1), timeout=60)
    balance = await stub.GetExposureBalance(pb.GetExposureBalanceRequest(collection=run_id), timeout=60)
    measured = stub.ListMeasurements(pb.ListMeasurementsRequest(run_id=run_id), timeout=60)
    return {
        "report": MessageToDict(report),
        "runs": MessageToDict(first),
        "configurations": MessageToDict(
            await stub.ListConfigurations(pb.ListConfigurationsRequest(), timeout=60)
        ),
        "balance": sorted((one.provider, round(one.target / one.exposure, 6)) for one in balance.providers),
        "measurements": [MessageToDict(one) async for one in measured],
    }


async def test_each_answers_for_both(stubs: Sequence[pb_grpc.EvaluatorServiceStub], home: Path) -> None:
    ids = [f"o-{number}" for number in range(60)]

    async def send(seed: int, stub: pb_grpc.EvaluatorServiceStub) -> list[bool]:
        order = random.Random(seed).sample(ids, len(ids))
        requests = [pb.ObserveRequest(observation=_observation(id_, "both")) for id_ in order]
        return [response.ack.duplicate async for response in stub.Observe(iter(requests), timeout=120)]

    duplicates = await asyncio.gather(*(send(seed, stub) for seed, stub in enumerate(stubs)))
    assert sorted([*duplicates[0], *duplicates[1]]) == [False] * 60 + [True] * 60
    answered = [await _answers(stub, "both") for stub in stubs]
    assert answered[0] == answered[1]
    assert answered[0]["report"]["numObservations"] == "60"
    assert sorted(one["observationId"] for one in answered[0]["measurements"]) == sorted(ids)
    # Acme deserves 45 of 60 asks and got 30; both fade alike.
    assert answered[0]["balance"] == [("Acme", 1.5), ("Other", 0.5)]

    # A list that was begun at one goes on at the other.
    for number in range(3):
        request = pb.ObserveRequest(observation=_observation(f"run-{number}", f"run-{number}"))
        async for _ in stubs[number % 2].Observe(iter([request]), timeout=60):
            pass
    names = []
    token = ""
    for number in range(4):
        page = await stubs[number % 2].ListRuns(pb.ListRunsRequest(page_size=1, page_token=token), timeout=60)
        names += [one.run_id for one in page.runs]
        token = page.next_page_token
    assert (names, token) == (["run-2", "run-1", "run-0", "both"], "")

    # A statement says the same, noise and all, and is signed with the same key.
    keys = public_keys([home / "public.pem"])
    stated = []
    for stub in stubs:
        day = YESTERDAY.date().isoformat()
        request = pb.GetExposureStatementRequest(
            provider="Acme", first_day=(YESTERDAY - timedelta(days=9)).date().isoformat(), last_day=day
        )
        envelope = (await stub.GetExposureStatement(request, timeout=60)).envelope
        signed = SignedStatement(
            envelope.payload,
            envelope.payload_type,
            tuple(StatementSignature(one.keyid, one.sig) for one in envelope.signatures),
        )
        verify(signed, keys)
        stated.append({**json.loads(envelope.payload), "issuedAt": None})
    assert stated[0] == stated[1]


class Watched(EvaluatorClient):
    """Counts the streams that broke because nobody answered any more."""

    broken = 0

    def observe(self) -> ObserveStream:
        stream = super().observe()
        responses = stream.responses

        async def counted() -> AsyncIterator[pb.ObserveResponse]:
            try:
                async for response in responses():
                    yield response
            except MeshError as error:
                self.broken += isinstance(error, Unanswered)
                raise

        stream.responses = counted  # type: ignore[method-assign]
        return stream


def _asked(id_: str) -> Observation:
    asked = ask()
    object.__setattr__(asked, "id", id_)
    nothing = np.empty((1, 0), dtype=np.int64)
    pool = Pool([], np.empty(0), nothing, None, "", "")
    return Observation(asked, pool, Ranked(Contexts(nothing, None), "none", ""), [], {})


class Orchestrators:
    """Outboxes with relays that send to both evaluators by one name, as of a headless Service."""

    def __init__(self, target: str, folder: Path) -> None:
        self._target = target
        self._files = [folder / f"outbox-{number}.db" for number in range(ORCHESTRATORS)]
        self._outboxes = [Outbox(file, capacity=10_000) for file in self._files]
        self._clients: list[Watched] = []
        self._relays: list[OutboxRelay] = []
        self.submitted = 0

    @property
    def waiting(self) -> int:
        """Observations that are still in an outbox."""
        return sum(one.size for one in self._outboxes)

    @property
    def delivered(self) -> int:
        """Observations that were acknowledged, and so have left their outbox."""
        return self.submitted - self.waiting

    @property
    def broken(self) -> int:
        """Streams that broke."""
        return sum(one.broken for one in self._clients)

    def set_aside(self) -> int:
        """Observations that a relay gave up."""
        count = 0
        for file in self._files:
            with contextlib.closing(sqlite3.connect(file)) as database:
                count += database.execute("SELECT COUNT(*) FROM outbox_set_aside").fetchone()[0]
        return count

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Delivers within the block; new observations come within :meth:`asking`."""
        async with AsyncExitStack() as stack:
            for outbox in self._outboxes:
                channel = await stack.enter_async_context(connect(self._target, service=SERVICE, retry=False))
                self._clients.append(Watched(channel))
                self._relays.append(OutboxRelay(outbox, self._clients[-1], _encoded))
                await self._relays[-1].start()
                stack.push_async_callback(self._relays[-1].stop)
            yield

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Submits observations, a few hundred ahead of their delivery."""
        asking = asyncio.create_task(self._ask())
        try:
            yield
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _ask(self) -> None:
        while True:
            while self.waiting > 300:
                await asyncio.sleep(0.001)
            number = self.submitted
            self.submitted += 1
            await asyncio.shield(self._relays[number % ORCHESTRATORS].submit(_asked(f"k-{number}")))

    async def until_delivered(self, count: int) -> None:
        """Waits until so many have been delivered."""
        await until(lambda: self.delivered >= count, 240)


def _encoded(one: Observation) -> bytes:
    return _observation(one.ask.id, "killed").SerializeToString()


async def test_one_may_be_killed_while_orchestrators_send(
    evaluators: Sequence[Killable], stubs: Sequence[pb_grpc.EvaluatorServiceStub], tmp_path: Path
) -> None:
    name = "ipv4:" + ",".join(one.address for one in evaluators)
    mesh = Orchestrators(name, tmp_path)
    async with mesh.running():
        turn = 0
        while turn < KILLS or not mesh.broken:  # one that had no stream has one when the other was killed
            victim = evaluators[turn % 2]
            async with mesh.asking():
                await mesh.until_delivered(mesh.delivered + STEP)
                await asyncio.to_thread(victim.kill)
                # What is on its way, and more: the other takes it alone.
                await mesh.until_delivered(mesh.submitted + STEP)
            await victim.start()
            turn += 1
        await mesh.until_delivered(mesh.submitted)
    assert mesh.set_aside() == 0
    answered = [await _answers(stub, "killed") for stub in stubs]
    assert answered[0] == answered[1]
    assert answered[0]["report"]["numObservations"] == str(mesh.submitted)
    names = [one["observationId"] for one in answered[0]["measurements"]]
    assert len(names) == len(set(names)) == mesh.submitted
