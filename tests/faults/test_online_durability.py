"""``kill -9`` of the reranker, the trainer and PostgreSQL while agents give feedback and are trained for.

What must hold: every acknowledged item is stored exactly once; whoever is served is so by a version that is whole;
a training that was killed goes on or begins again, and in the end every agent was trained for.

The suite runs a small one. ``EVENMESH_DURABILITY_ITEMS=10000 EVENMESH_DURABILITY_KILLS=12`` is the full size;
``EVENMESH_DURABILITY_SEED`` repeats one.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import sys
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from sqlalchemy import make_url, select

from evenmesh.common.v1 import common_pb2
from evenmesh.reranker.v1 import feedback_service_pb2 as pb
from evenmesh.reranker.v1 import reranker_service_pb2 as reranker_pb
from evenmesh.reranker.v1.feedback_service_pb2_grpc import FeedbackServiceStub
from evenmesh.reranker.v1.reranker_service_pb2_grpc import RerankerServiceStub
from evenmesh.retriever.v1 import collection_service_pb2 as collection_pb
from evenmesh.retriever.v1.collection_service_pb2_grpc import CollectionServiceStub
from evenmesh.wire.channel import connect
from evenmesh_reranker.backends.sql.database import Database
from evenmesh_reranker.backends.sql.feedback import SqlFeedbackStore
from evenmesh_reranker.backends.sql.leases import SqlLeases
from evenmesh_reranker.backends.sql.tables import AGENTS, FEEDBACK
from evenmesh_reranker.backends.sql.trainings import SqlTrainingLog
from evenmesh_reranker.domain import Agent, AllAgents
from evenmesh_reranker.models.store import ModelStore
from evenmesh_reranker.servicer import RERANKER
from tests.support import tiny_encoders, tiny_models
from tests.support.forked import LEARNING
from tests.support.killable import Killable
from tests.support.online_world import COLLECTION, Stream, Taste, corpus, dislikes, likes
from tests.support.postgres import Postgres
from tests.support.waiting import until

CLIENTS = 16
ITEMS = int(os.environ.get("EVENMESH_DURABILITY_ITEMS", "800"))
KILLS = int(os.environ.get("EVENMESH_DURABILITY_KILLS", "3"))
SEED = int(os.environ.get("EVENMESH_DURABILITY_SEED", "11"))

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600 + 60 * KILLS), pytest.mark.xdist_group("learning")]

QUERIES = 24
JUDGED = 5
AGENTS_THERE = tuple(Agent("qa", f"agent-{number}") for number in range(4))
ALLOWED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}


@dataclass
class Seen:
    """What clients saw."""

    acknowledged: Counter[tuple[str, str]] = field(default_factory=Counter)
    versions: set[str] = field(default_factory=set)
    rankings: int = 0
    failures: int = 0
    turn: int = 0


def _taste(agent: Agent) -> Taste:
    return likes("water") if agent.model_id[-1] in "02" else dislikes("water")


async def _give(client: int, address: str, stream: Stream, seen: Seen) -> None:
    """Sends a client's items, each batch until it is acknowledged."""
    agent = AGENTS_THERE[client % len(AGENTS_THERE)]
    queries = range(client * 10_000, client * 10_000 + ITEMS // CLIENTS // JUDGED)
    said = stream.said(agent, _taste(agent), queries)
    async with connect(address, service=RERANKER) as channel:
        stub = FeedbackServiceStub(channel)
        for begin in range(0, len(said), 5 * JUDGED):
            while seen.turn < KILLS * begin // len(said):  # so that all of it takes as long as the killing
                await asyncio.sleep(0.02)
            batch = [
                pb.Feedback(
                    id=one.id,
                    query=one.query,
                    passage_id=one.passage_id,
                    agent=common_pb2.Agent(task_id=agent.task_id, model_id=agent.model_id),
                    usefulness=one.usefulness,
                    collection=one.collection,
                )
                for one in said[begin : begin + 5 * JUDGED]
            ]
            while True:
                try:
                    request = pb.RecordFeedbackRequest(feedback=batch)
                    results = (await stub.RecordFeedback(request, timeout=20)).results
                except grpc.aio.AioRpcError as error:
                    if error.code() not in ALLOWED:
                        raise
                    seen.failures += 1
                    await asyncio.sleep(0.2)
                    continue
                assert not any(one.HasField("error") for one in results)
                seen.acknowledged.update((agent.model_id, one.id) for one in results)
                break


async def _ask(address: str, stream: Stream, seen: Seen) -> None:
    """Has passages ranked for one agent after the other until cancelled; what comes is whole or an error."""
    async with connect(address, service=RERANKER) as channel:
        stub = RerankerServiceStub(channel)
        number = 0
        while True:
            agent = AGENTS_THERE[number % len(AGENTS_THERE)]
            request = reranker_pb.RerankRequest(
                query=stream.query(number),
                passages=[common_pb2.Passage(id=one.id, text=one.text) for one in stream.candidates(number)],
                agent=common_pb2.Agent(task_id=agent.task_id, model_id=agent.model_id),
                reranker="cross-encoder",
            )
            number += 1
            try:
                reply = await stub.Rerank(request, timeout=20)
            except grpc.aio.AioRpcError as error:
                if error.code() not in ALLOWED:
                    raise
                seen.failures += 1
                await asyncio.sleep(0.1)
                continue
            assert all(math.isfinite(score) and 0 <= score <= 1 for score in reply.scores)
            seen.versions.add(reply.model_version)
            seen.rankings += 1
            await asyncio.sleep(0.1)


async def _noticed(seen: Seen) -> None:
    """Waits until a call has failed: a process that is back at once is hidden by the client's retries."""
    before = seen.failures
    await until(lambda: seen.failures != before)


async def _fill(address: str, stream: Stream) -> None:
    passages = [common_pb2.Passage(id=one.id, text=one.text) for one in stream.passages.values()]
    request = collection_pb.IngestRequest(
        collection=COLLECTION, passages=passages, create_if_missing=True, last=True
    )
    async with connect(address, service="evenmesh.retriever.v1.CollectionService") as channel:
        await CollectionServiceStub(channel).Ingest(iter([request]), timeout=120)


async def test_nothing_acknowledged_is_lost_and_nothing_half_serves(
    postgres: Postgres, tmp_path: Path
) -> None:
    sys.stdout.write(f"seed {SEED}\n")
    rng = random.Random(SEED)
    stream = Stream(corpus(100), judged=JUDGED)
    models = ModelStore(tmp_path / "reranker" / "models")
    plain = tiny_models.cross_encoder(tmp_path / "plain")
    first = tiny_encoders.keep(
        models, tiny_encoders.personal(plain, tmp_path / "personal", []), "offline-ium"
    )
    models.set_pointer(AllAgents(), models.pointer(AllAgents()).promoted(first))

    database_url = {"EVENMESH_RERANKER_DATABASE_URL": postgres.url.replace("+asyncpg", "")}
    retriever = Killable("evenmesh_retriever", "retriever", tmp_path, ENCODER="")
    reranker = Killable(
        "evenmesh_reranker",
        "reranker",
        tmp_path,
        DEVICE="cpu",
        DTYPE="float32",
        THREADS="1",
        CROSS_ENCODER="",
        CPU_ENGINE="torch",  # of tiny models
    )
    trainer = Killable(
        "evenmesh_training.online",
        "trainer",
        tmp_path,
        RETRIEVER_TARGET=retriever.address,
        RERANKER_TARGET=reranker.address,
        QUERIES=str(QUERIES),
        WAKE_S="0.2",
        LEASE_S="3",
        EPOCHS="1",
        BATCH_SIZE="16",
        LEARNING_RATE="0.01",
        MAX_LENGTH="64",
        DEVICE="cpu",
    )
    seen = Seen()
    kills: Counter[str] = Counter()
    database = Database(make_url(postgres.url))
    async with AsyncExitStack() as stack:
        for one in (retriever, reranker.also(**database_url), trainer.also(**database_url)):
            stack.callback(one.kill)
            await one.having_imported(LEARNING).start()
        await _fill(retriever.address, stream)
        asking = asyncio.create_task(_ask(reranker.address, stream, seen))
        giving = [asyncio.create_task(_give(one, reranker.address, stream, seen)) for one in range(CLIENTS)]
        stack.callback(lambda: [task.cancel() for task in (asking, *giving)])
        for turn in range(KILLS):
            await asyncio.sleep(rng.uniform(0.0, 6.0))
            seen.turn += 1  # the next part is on its way
            await asyncio.sleep(rng.uniform(0.0, 0.3))
            # Each of the three at least once for every three kills.
            victim = ("trainer", "reranker", "postgres")[turn % 3]
            kills[victim] += 1
            if victim == "postgres":
                postgres.kill()
                await asyncio.to_thread(postgres.start)
            else:
                process = trainer if victim == "trainer" else reranker
                process.kill()
                if victim == "reranker":
                    await _noticed(seen)
                await process.start()
        await asyncio.gather(*giving)

        await database.open()
        stack.push_async_callback(database.close)
        await _trained(database, trainer)
        before = seen.rankings
        while seen.rankings < before + 2 * len(AGENTS_THERE):  # by what serves in the end, too
            assert not asking.done() or asking.result() is None
            await asyncio.sleep(0.1)
        asking.cancel()

        async with database.read() as connection:
            query = select(AGENTS.c.model_id, FEEDBACK.c.id).join(AGENTS, AGENTS.c.id == FEEDBACK.c.agent_id)
            stored = Counter((model_id, id_) for model_id, id_ in await connection.execute(query))
        assert set(stored) == set(seen.acknowledged)
        assert max(stored.values()) == 1
        assert len(stored) == ITEMS // CLIENTS // JUDGED * JUDGED * CLIENTS

        # Every version there is was written whole, and only such were served.
        versions = models.manifests({})
        for version in versions:
            models.verified(version)
        assert first in seen.versions
        assert seen.versions <= set(versions)
        own = [models.pointer(agent).serving for agent in AGENTS_THERE]
        trained = [version for version in versions if versions[version].lineage.agent is not None]
        assert len({versions[one].lineage.agent for one in trained}) == len(AGENTS_THERE)
        assert seen.versions & set(own) or not any(own)
        reported = f"{len(stored):,} items, kills {dict(kills)}, {seen.failures} failed calls, {seen.rankings} rankings"
        sys.stdout.write(f"{reported} by {len(seen.versions)} of {len(versions)} versions\n")


async def _trained(database: Database, trainer: Killable) -> None:
    """Waits until every agent was trained for as far as its queries go, and no lease is left."""
    log = SqlTrainingLog(database)
    async with asyncio.timeout(900):
        while any(one.pending_queries >= QUERIES for one in await log.trainings_of_agents()):
            await asyncio.sleep(0.3)
    for agent in AGENTS_THERE:
        training = await log.training(agent)
        assert training.report.trained_upto > 0
    assert await SqlFeedbackStore(database).latest() > 0
    leases = SqlLeases(database, "the test", lease_s=1)
    async with asyncio.timeout(60):
        for agent in AGENTS_THERE:
            while not await leases.take(agent):
                await asyncio.sleep(0.2)
