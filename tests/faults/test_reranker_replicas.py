"""Two rerankers on one PostgreSQL and one store of versions: they count feedback once and serve the same.

What must hold: every item that one of them acknowledged is stored exactly once, whichever it is sent to again;
feedback is accepted on what the other ranked; and what is promoted or rolled back through either serves in both.

The suite runs it on a folder. ``EVENMESH_REPLICAS_BUCKET=1`` runs it on a bucket of a local S3 server, too.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
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
from evenmesh_reranker.backends.sql.promotions import SqlPromotions
from evenmesh_reranker.backends.sql.tables import AGENTS, FEEDBACK
from evenmesh_reranker.domain import AllAgents
from evenmesh_reranker.models.bucket import BucketStore
from evenmesh_reranker.models.manifest import Lineage
from evenmesh_reranker.models.ports import VersionStore
from evenmesh_reranker.models.store import ModelStore, Pointer
from evenmesh_reranker.servicer import RERANKER
from tests.support import s3_server, tiny_models
from tests.support.forked import LEARNING
from tests.support.killable import Killable
from tests.support.postgres import Postgres, running

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600), pytest.mark.xdist_group("learning")]

BATCHES, BATCH = 12, 10
AGENT = common_pb2.Agent(task_id="qa", model_id="ann")
PASSAGES = [common_pb2.Passage(id=f"p{at}", text=f"water {at}") for at in range(4)]
ALLOWED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running(durable=True) as server:
        yield server


@dataclass
class Replica:
    """A reranker, and stubs of it."""

    process: Killable
    feedback: FeedbackServiceStub
    reranker: RerankerServiceStub

    async def rank(self, query: str = "water?") -> str:
        """The version that ranks; empty while nothing was promoted."""
        request = reranker_pb.RerankRequest(
            query=query, passages=PASSAGES, agent=AGENT, reranker="cross-encoder"
        )
        try:
            return (await self.reranker.Rerank(request, timeout=60)).model_version
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
            return ""

    async def serves(self, version: str) -> None:
        """Waits until the version ranks."""
        async with asyncio.timeout(120):
            while await self.rank() != version:
                await asyncio.sleep(0.05)

    async def promote(self, version: str) -> None:
        await self.feedback.PromoteModel(pb.PromoteModelRequest(version=version), timeout=120)

    async def record(self, items: list[pb.Feedback]) -> list[pb.FeedbackResult]:
        request = pb.RecordFeedbackRequest(feedback=items)
        return list((await self.feedback.RecordFeedback(request, timeout=60)).results)


@asynccontextmanager
async def _replicas(
    postgres: Postgres, tmp_path: Path, store: str, **variables: str
) -> AsyncIterator[tuple[Replica, Replica]]:
    """Two rerankers that share a database and a store, and nothing else."""
    postgres.empty()
    async with AsyncExitStack() as stack:
        made = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            process = Killable(
                "evenmesh_reranker",
                "reranker",
                tmp_path / name,
                DATABASE_URL=postgres.url.replace("+asyncpg", ""),
                MODEL_STORE=store,
                MODEL_POLL_S="0.2",
                FEEDBACK_SERVED_ONLY="true",
                CROSS_ENCODER="",
                DEFAULT_RERANKER="none",
                CPU_ENGINE="torch",  # of tiny models
                DEVICE="cpu",
                DTYPE="float32",
                THREADS="1",
            ).also(**variables)
            process.having_imported(LEARNING)
            stack.callback(process.kill)
            channel = await stack.enter_async_context(connect(process.address, service=RERANKER))
            made.append(Replica(process, FeedbackServiceStub(channel), RerankerServiceStub(channel)))
        await asyncio.gather(*(one.process.start() for one in made))
        yield made[0], made[1]


def _keep(store: VersionStore, tmp_path: Path, *provenances: str) -> list[str]:
    folder = tiny_models.cross_encoder(tmp_path / "model")
    versions = []
    for provenance in provenances:
        with store.write(Lineage(provenance)) as draft:
            for path in folder.iterdir():
                (draft.folder / path.name).write_bytes(path.read_bytes())
        versions.append(draft.version)
    return versions


@asynccontextmanager
async def _database(postgres: Postgres) -> AsyncIterator[Database]:
    database = Database(make_url(postgres.url))
    await database.open()
    try:
        yield database
    finally:
        await database.close()


def _items(begin: int, version: str) -> list[pb.Feedback]:
    ranking = [one.id for one in PASSAGES]
    return [
        pb.Feedback(
            id=f"{at}",
            query="water?",
            passage_id=ranking[at % 4],
            agent=AGENT,
            usefulness=at % 2,
            model_version=version,
            ranking=ranking,
        )
        for at in range(begin, begin + BATCH)
    ]


async def test_feedback_counts_once_and_promotions_reach_both(postgres: Postgres, tmp_path: Path) -> None:
    one, two, three = _keep(ModelStore(tmp_path / "models"), tmp_path, "one", "two", "three")
    async with _replicas(postgres, tmp_path, str(tmp_path / "models")) as (a, b):
        await a.promote(one)
        await b.serves(one)

        # b takes feedback on what a alone ranked; what nobody ranked it does not.
        assert await a.rank("only a ranks it") == one
        item = pb.Feedback(
            id="first",
            query="only a ranks it",
            passage_id="p0",
            agent=AGENT,
            usefulness=1,
            model_version=one,
            ranking=["p0", "p1"],
        )
        async with asyncio.timeout(60):
            while (await b.record([item]))[0].HasField("error"):
                await asyncio.sleep(0.05)  # a database so busy that a could not write for a second
        item.query, item.id = "nobody ranks it", "none"
        (refused,) = await b.record([item])
        assert refused.error.reason == "NOT_SERVED"

        async with _database(postgres) as database:
            # Of two promotions at once one serves in both; each is rolled back to through the other.
            await asyncio.gather(a.promote(two), b.promote(three))
            pointer = await SqlPromotions(database).pointer(AllAgents())
            assert pointer.history[1:] == (one, None)
            assert {pointer.serving, pointer.history[0]} == {two, three}
            for replica in (a, b):
                await replica.serves(pointer.serving or "")
            rolled = await b.feedback.RollbackModel(pb.RollbackModelRequest(), timeout=120)
            assert rolled.model.version == pointer.history[0]
            await a.serves(rolled.model.version)
            again = await a.feedback.RollbackModel(pb.RollbackModelRequest(), timeout=120)
            assert again.model.version == one
            await b.serves(one)

            acknowledged, failures = await _given_while_one_dies(a, b, one)
            assert failures, "nobody noticed: the test shows nothing"
            acknowledged["first"] = 1
            assert len(acknowledged) == BATCHES * BATCH + 1
            async with database.read() as connection:
                stored = Counter(await connection.scalars(select(FEEDBACK.c.id)))
                counted = sum(await connection.scalars(select(AGENTS.c.stored)))
            assert stored == Counter(dict.fromkeys(acknowledged, 1))
            assert counted == len(acknowledged)


async def _given_while_one_dies(a: Replica, b: Replica, version: str) -> tuple[Counter[str], int]:
    """Gives batches to both by turns, and all again to ``b``; ``a`` is killed meanwhile.

    Returns what was acknowledged, and how often a call failed.
    """
    acknowledged: Counter[str] = Counter()
    failures = 0
    by_a = asyncio.Event()

    async def give(turn: int) -> None:
        nonlocal failures
        items, replicas = _items(turn * BATCH, version), [a, b] if turn % 2 else [b, a]
        while True:
            try:
                results = await replicas[0].record(items)
                break
            except grpc.aio.AioRpcError as error:
                if error.code() not in ALLOWED:
                    raise
                failures += 1
            replicas.reverse()
            await asyncio.sleep(0.05)
        assert not any(result.HasField("error") for result in results)
        acknowledged.update(result.id for result in results)
        if replicas[0] is a:
            by_a.set()
        assert all(result.duplicate for result in await b.record(items))

    giving = [asyncio.create_task(give(turn)) for turn in range(BATCHES // 2)]
    await by_a.wait()
    a.process.kill()
    giving += [asyncio.create_task(give(turn)) for turn in range(BATCHES // 2, BATCHES)]
    await asyncio.gather(*giving)
    return acknowledged, failures


@pytest.mark.skipif("EVENMESH_REPLICAS_BUCKET" not in os.environ, reason="EVENMESH_REPLICAS_BUCKET=1 runs it")
async def test_a_bucket_of_versions_serves_both(postgres: Postgres, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.fs")
    with s3_server.s3_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        variables = {**s3_server.ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}
        for name, value in variables.items():
            patch.setenv(name, value)
        s3_server.put(f"{endpoint}/models", b"")
        address = f"s3://models/{secrets.token_hex(8)}"
        writes = BucketStore(address, tmp_path / "trainer", local_bytes=10**9)
        one, two = await asyncio.to_thread(_keep, writes, tmp_path, "one", "two")
        async with _replicas(postgres, tmp_path, address, **variables) as (a, b):
            await a.promote(one)
            await b.serves(one)
            await b.promote(two)
            await a.serves(two)
            for home in ("a", "b"):
                local = {path.name for path in (tmp_path / home / "reranker" / "model-cache").iterdir()}
                assert local == {one, two, "incoming"}
            # Damaged in the bucket, a version is refused by name and the other serves on.
            damaged = tmp_path / "a" / "reranker" / "model-cache" / one
            config = f"{address.removeprefix('s3://')}/versions/{one}/config.json"
            s3_server.put(f"{endpoint}/{config}", b"{}")
            (damaged / "config.json").write_text("{}")
            with pytest.raises(
                grpc.aio.AioRpcError, match=rf"version {one} cannot be served: config\.json has"
            ):
                await a.promote(one)
            assert await a.rank() == two
            assert await b.rank() == two
            async with _database(postgres) as database:
                assert await SqlPromotions(database).pointer(AllAgents()) == Pointer(two, (one, None))
