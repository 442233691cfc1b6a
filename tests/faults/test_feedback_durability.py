"""``kill -9`` of the reranker and of PostgreSQL while feedback is recorded and models are promoted.

What must hold: every item that was acknowledged is stored, and stored once; nothing is stored that was not
sent; and after a promotion that was killed at any point a version serves that was whole before or after it.

The suite records 4,000 items a store. ``EVENMESH_FEEDBACK_ITEMS=10000`` is the full size.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
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
from evenmesh.wire.channel import connect
from evenmesh_reranker.backends.sql.database import Database
from evenmesh_reranker.backends.sql.tables import AGENTS, FEEDBACK
from evenmesh_reranker.domain import AllAgents
from evenmesh_reranker.feedback.servicer import NAME
from evenmesh_reranker.models.manifest import Lineage
from evenmesh_reranker.models.store import ModelStore
from evenmesh_reranker.settings import RerankerSettings
from tests.support import tiny_models
from tests.support.forked import LEARNING
from tests.support.killable import Killable
from tests.support.postgres import Postgres

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900), pytest.mark.xdist_group("learning")]

CLIENTS = 16
ITEMS = int(os.environ.get("EVENMESH_FEEDBACK_ITEMS", "4000"))
BATCH = 25
KILLS = 4
ALLOWED_CODES = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}


def reranker(home: Path, **settings: str) -> Killable:
    return Killable(
        "evenmesh_reranker", "reranker", home, DEVICE="cpu", DTYPE="float32", THREADS="1", **settings
    ).having_imported(LEARNING)


@dataclass
class Seen:
    """What clients saw, and how many kills there were, or are about to be."""

    acknowledged: Counter[tuple[str, str]] = field(default_factory=Counter)
    sent: int = 0
    batches: int = 0
    more: asyncio.Event = field(default_factory=asyncio.Event)
    kills: int = 0

    async def until(self, batches: int) -> None:
        """Wait until so many batches are acknowledged."""
        while self.batches < batches:
            self.more.clear()
            await self.more.wait()


async def _give(client: int, address: str, seen: Seen) -> None:
    """Sends a client's items, each batch until it is acknowledged."""
    agent = common_pb2.Agent(task_id="qa", model_id=f"agent-{client % 4}")
    async with connect(address, service=NAME) as channel:
        stub = FeedbackServiceStub(channel)
        for begin in range(0, ITEMS // CLIENTS, BATCH):
            # So that each kill comes in the middle of a part.
            while seen.kills < (KILLS + 1) * begin * CLIENTS // ITEMS:
                await asyncio.sleep(0.02)
            batch = [
                pb.Feedback(
                    id=f"{client}-{at}",
                    query=f"query {at} of {client}",
                    passage_id="p",
                    agent=agent,
                    usefulness=at % 2,
                )
                for at in range(begin, begin + BATCH)
            ]
            seen.sent += 1
            while True:
                try:
                    request = pb.RecordFeedbackRequest(feedback=batch)
                    results = (await stub.RecordFeedback(request, timeout=20)).results
                except grpc.aio.AioRpcError as error:
                    if error.code() not in ALLOWED_CODES:
                        raise
                    await asyncio.sleep(0.2)
                    continue
                assert not any(one.HasField("error") for one in results)
                seen.acknowledged.update((agent.model_id, one.id) for one in results)
                seen.batches += 1
                seen.more.set()
                break


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_what_was_acknowledged_is_stored_once(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: Postgres | None = None
    settings = {"CROSS_ENCODER": "", "DEFAULT_RERANKER": "none"}  # feedback needs no model
    if kind == "postgresql":
        server = request.getfixturevalue("postgres")
        settings["DATABASE_URL"] = server.url.replace("+asyncpg", "")
    process = reranker(tmp_path, **settings)
    rng = random.Random(7)
    seen, under_way = Seen(), 0
    try:
        await process.start()
        giving = [asyncio.create_task(_give(client, process.address, seen)) for client in range(CLIENTS)]
        for turn in range(KILLS):
            before = seen.batches
            seen.kills += 1  # the next part is on its way: two batches or more of every client
            await seen.until(before + rng.randint(1, CLIENTS))
            under_way += seen.sent - seen.batches
            if server is not None and turn % 2:
                server.kill()
                await asyncio.to_thread(server.start)
            else:
                process.kill()
                await process.start()
        await asyncio.gather(*giving)
    finally:
        process.kill()
    assert under_way, "no batch was under way when it was killed: the test shows nothing"
    acknowledged = seen.acknowledged
    assert len(acknowledged) == ITEMS

    url = RerankerSettings(home=tmp_path).database() if server is None else make_url(server.url)
    database = Database(url)
    await database.open()
    async with database.read() as connection:
        query = select(AGENTS.c.model_id, FEEDBACK.c.id).join(AGENTS, AGENTS.c.id == FEEDBACK.c.agent_id)
        stored = Counter((model_id, id_) for model_id, id_ in await connection.execute(query))
        counted = sum(await connection.scalars(select(AGENTS.c.stored)))
    await database.close()
    assert set(stored) == set(acknowledged)
    assert max(stored.values()) == 1
    assert counted == ITEMS


async def test_a_promotion_that_was_killed_leaves_what_can_be_served(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "reranker" / "models")
    folder = tiny_models.cross_encoder(tmp_path / "model")
    versions = []
    for provenance in ("one", "two"):
        with store.write(Lineage(provenance)) as draft:
            for path in folder.iterdir():
                (draft.folder / path.name).write_bytes(path.read_bytes())
        versions.append(draft.version)
    # What is promoted alone.
    process = reranker(tmp_path, CROSS_ENCODER="", DEFAULT_RERANKER="none", CPU_ENGINE="torch")
    passages = [common_pb2.Passage(id="p", text="water")]
    wanted = reranker_pb.RerankRequest(query="q", passages=passages, reranker="cross-encoder")
    rng = random.Random(3)
    served = ""
    try:
        for turn in range(3):
            await process.start()
            async with connect(process.address, service=NAME) as channel:
                stub = FeedbackServiceStub(channel)
                if served:
                    reply = await RerankerServiceStub(channel).Rerank(wanted, timeout=60)
                    assert reply.model_version in (served, versions[turn % 2 - 1])
                else:
                    await stub.PromoteModel(pb.PromoteModelRequest(version=versions[-1]), timeout=600)
                served = store.pointer(AllAgents()).serving or ""
                assert served in versions
                promoting = stub.PromoteModel(pb.PromoteModelRequest(version=versions[turn % 2]), timeout=600)
                promoting_task = asyncio.ensure_future(promoting)
                await asyncio.sleep(rng.uniform(0.0, 0.3))
                process.kill()
                await asyncio.gather(promoting_task, return_exceptions=True)
    finally:
        process.kill()
