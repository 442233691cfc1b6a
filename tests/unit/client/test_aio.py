import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from evenmesh import Addresses, AsyncClient, Client, Health, MeshError, Passage, ReadError
from tests.support.scripted import ScriptedMesh


@pytest.fixture
async def client(scripted: ScriptedMesh) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(scripted.addresses) as client:
        yield client


async def test_both_clients_see_the_same(scripted: ScriptedMesh, client: AsyncClient) -> None:
    def of_the_other() -> object:
        with Client(scripted.addresses) as other:
            return other.answer("q", alpha=1.0, samples=2)

    assert await client.answer("q", alpha=1.0, samples=2) == await asyncio.to_thread(of_the_other)
    first, second = scripted.orchestrator.requests
    assert first == second


async def test_errors_come_through(client: AsyncClient) -> None:
    with pytest.raises(MeshError) as caught:
        await client.answer(" ")

    assert caught.value.field == "question"


async def test_leaving_an_ask_cancels_it(scripted: ScriptedMesh, client: AsyncClient) -> None:
    scripted.orchestrator.hang = True
    events = client.ask("q", timeout=30)
    await anext(events)

    await events.aclose()  # type: ignore[attr-defined]

    assert await asyncio.to_thread(scripted.orchestrator.cancelled.wait, 10)


async def test_ingest_of_passages_and_of_a_file(
    scripted: ScriptedMesh, client: AsyncClient, tmp_path: Path
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "text": "x"}\n', encoding="utf-8")
    progress: list[int] = []

    assert (await client.ingest(path, "file")).added == 1
    many = await client.ingest(
        (Passage(str(n), "x") for n in range(1200)), "many", on_progress=progress.append
    )

    assert many.added == 1200
    assert progress == [500, 1000, 1200]
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ReadError, match="line 1"):
        await client.ingest(path, "file")


async def test_passages_that_fail_on_the_way_leave_nothing(
    scripted: ScriptedMesh, client: AsyncClient
) -> None:
    passages = [Passage("a", "x")] * 600 + [Passage("b", "\ud800")]

    with pytest.raises(MeshError) as caught:
        await client.ingest(passages, "broken")

    assert caught.value.field == "passage 'b'.text"
    assert "broken" not in scripted.collections.kept


async def test_a_rejected_ingest_gives_its_reason(client: AsyncClient) -> None:
    with pytest.raises(MeshError) as caught:
        await client.ingest((Passage(str(n), "x") for n in range(5000)), "Bad")

    assert caught.value.field == "collection"


async def test_collections_runs_reports_and_status(client: AsyncClient) -> None:
    await client.ingest([Passage("a", "x")], "one")

    assert [one.name for one in await client.collections()] == ["one"]
    await client.delete_collection("one")
    with pytest.raises(MeshError) as caught:
        await client.delete_collection("one")
    assert caught.value.code is grpc.StatusCode.NOT_FOUND
    assert [run.run_id for run in await client.runs(3)] == ["r5", "r4", "r3"]
    assert (await client.report("r1")).num_rankings == 60
    assert {one.health for one in await client.status()} == {Health.SERVING}


async def test_an_unreachable_mesh_names_its_address() -> None:
    async with AsyncClient(Addresses(retriever="127.0.0.1:1")) as client:
        with pytest.raises(MeshError, match=r"no retriever answers at 127\.0\.0\.1:1"):
            await client.ingest([Passage("a", "x")], "c")
        with pytest.raises(MeshError, match=r"no retriever answers at 127\.0\.0\.1:1"):
            await client.collections()
