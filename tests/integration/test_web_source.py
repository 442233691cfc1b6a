"""A web source through the real retriever, and expressions over it through the real orchestrator."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from evenmesh import Addresses, AsyncClient, Between, Lexical, MeshError, Passage
from evenmesh.retriever.v1 import retriever_service_pb2 as pb
from evenmesh.retriever.v1.retriever_service_pb2_grpc import RetrieverServiceStub
from evenmesh.wire.errors import from_rpc_error
from tests.support.killable import Killable
from tests.support.started import refusal
from tests.unit.retriever.backends.web.small_web import ROUTES, SmallWeb, small_web

pytestmark = pytest.mark.asyncio(loop_scope="module")

PASSAGES = [
    Passage("w1", "The long river has barges.", "River", {"provider": "wiki.test", "date": "2019-05-01"}),
    Passage("w2", "A river of the north.", "North", {"provider": "wiki.test", "date": "2022-05-01"}),
    Passage("w3", "Bread needs flour.", "Bread", {"provider": "bread.test", "date": "2023-01-01"}),
]


@dataclass
class Mesh:
    """A retriever with a small web, and an orchestrator over both."""

    web: SmallWeb
    retriever: RetrieverServiceStub
    client: AsyncClient

    async def retrieve(self, **fields: Any) -> pb.RetrieveResponse:
        """Asks the retriever."""
        return await self.retriever.Retrieve(pb.RetrieveRequest(**fields), timeout=30)

    async def shown(self, expression: str, **options: Any) -> list[str]:
        """Ids of what an expression would give a generator; none is asked."""
        result = await self.client.answer(
            "Which river is long?", expression=expression, num_answers=0, observe=False, **options
        )
        assert result.retrieved is not None
        assert result.ranked is not None
        (context,) = result.ranked.contexts
        return [result.retrieved.passages[i].id for i in context]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mesh]:
    home = tmp_path_factory.mktemp("home")
    async with small_web() as web:
        searx = {
            "url": web.url,
            "allow_private": True,
            "timeout_s": 60,
            "page_timeout_s": 60,
            "snippets": False,
        }
        web_sources = json.dumps({"searx": searx, "guarded": {"url": web.url}})
        sources = json.dumps(
            {
                "Wiki": {"collection": "wiki", "retriever": "bm25-lucene"},
                "SE": {"web": "searx"},
                "Gone": {"collection": "gone"},
                "All": {"all": ["SE@1", "Wiki@2"]},
            }
        )
        retriever = Killable("evenmesh_retriever", "retriever", home, ENCODER="", WEB_SOURCES=web_sources)
        upstream = {"RETRIEVER_TARGET": retriever.address, "DEFAULT_RERANKER": "none"}
        orchestrator = Killable("evenmesh_orchestrator", "orchestrator", home, SOURCES=sources, **upstream)
        addresses = Addresses(orchestrator=orchestrator.address, retriever=retriever.address)
        async with AsyncExitStack() as stack:
            for one in (retriever, orchestrator):
                stack.callback(one.kill)
                await one.start()
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(retriever.address))
            client = await stack.enter_async_context(AsyncClient(addresses))
            await client.ingest(PASSAGES, "wiki")
            yield Mesh(web, RetrieverServiceStub(channel), client)  # type: ignore[no-untyped-call]


@pytest.fixture
def mesh(shared: Mesh) -> Mesh:
    """The shared mesh, whose search finds two good pages."""
    shared.web.search_handler = None
    shared.web.lists("/short", "/river")
    shared.web.asked.clear()
    return shared


async def test_sources_are_listed(mesh: Mesh) -> None:
    listed = await mesh.retriever.ListSources(pb.ListSourcesRequest(), timeout=30)
    assert [one.name for one in listed.sources] == ["guarded", "searx"]
    assert all("SearxNG" in one.description for one in listed.sources)


async def test_pages_are_ranked_as_they_came(mesh: Mesh) -> None:
    reply = await mesh.retrieve(query="river", web="searx", k=2)
    assert [one.title for one in reply.passages] == ["A short lake", "The long river"]
    assert list(reply.scores) == [1.0, 1 / 2]
    assert list(reply.rankings.indices) == [0, 1]
    assert (reply.retriever, reply.index_version) == ("web", "")


async def test_pages_are_ranked_by_a_retriever_that_is_named(mesh: Mesh) -> None:
    reply = await mesh.retrieve(query="barges wait for the lock", web="searx", retriever="bm25", k=100)
    assert reply.retriever == "bm25"
    assert reply.passages[0].title == "The long river"
    assert list(reply.scores) == sorted(reply.scores, reverse=True)


async def test_rankings_of_pages_are_drawn(mesh: Mesh) -> None:
    fields = {"query": "river", "web": "searx", "k": 2, "sampling": {"num_rankings": 50, "seed": 3}}
    reply = await mesh.retrieve(**fields, include_inclusion_probabilities=True)
    assert len(reply.rankings.log_probabilities) == 50
    assert sum(reply.inclusion_probabilities) == pytest.approx(2)
    assert reply.rankings == (await mesh.retrieve(**fields)).rankings


async def test_pages_are_filtered(mesh: Mesh) -> None:
    wanted = {"conditions": [{"attribute": "date", "text_range": {"from": "2021-01-01"}}]}
    reply = await mesh.retrieve(query="river", web="searx", filter=wanted)
    assert {one.title for one in reply.passages} == {"The long river"}


async def test_private_pages_are_not_fetched(mesh: Mesh) -> None:
    reply = await mesh.retrieve(query="river", web="guarded")
    assert [one.text for one in reply.passages] == ["Snippet of /short.", "Snippet of /river."]
    assert mesh.web.paths() == []


async def test_failures_are_typed(mesh: Mesh) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await mesh.retrieve(query="river", web="none")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    error = from_rpc_error(caught.value)
    assert (error.field, error.message) == ("web", "there is no web source 'none'; there are guarded, searx")
    mesh.web.search_handler = ROUTES[
        "/broken"
    ]  # a query of its own: what was found a moment ago is given again
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await mesh.retrieve(query="canal", web="searx")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    mesh.web.search_handler = ROUTES["/silent"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await mesh.retriever.Retrieve(pb.RetrieveRequest(query="canal", web="searx"), timeout=0.5)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_expressions_over_a_collection_and_the_web(mesh: Mesh) -> None:
    shown = await mesh.shown("SE@2&Wiki@2")
    assert shown[2:] == ["wiki/w1", "wiki/w2"]
    assert all(one.startswith("web:searx/") for one in shown[:2])
    assert await mesh.shown("All") == [shown[0], *shown[2:]]
    assert await mesh.shown("(Wiki@2&SE@1)@2") == ["wiki/w1", "wiki/w2"]


async def test_what_fails_is_left_out_by_name(mesh: Mesh) -> None:
    mesh.web.search_handler = ROUTES["/broken"]
    result = await mesh.client.answer(
        "Which canal is long?", expression="SE@2&Gone@1&Wiki@1", num_answers=0, observe=False
    )
    assert [(one.action, one.message) for one in result.degradations] == [
        ("source_left_out", "source SE is unavailable: it is left out"),
        ("source_left_out", "source Gone refused the request: it is left out"),
    ]
    with pytest.raises(MeshError, match="source Gone: ") as caught:
        await mesh.shown("Gone@1")
    assert (caught.value.code, caught.value.field) == (grpc.StatusCode.NOT_FOUND, "expression")


async def test_filters_hold_for_every_source(mesh: Mesh) -> None:
    assert await mesh.shown("Wiki@3", filter={"date": Between("2020-01-01")}) == ["wiki/w2", "wiki/w3"]
    shown = await mesh.shown("SE@1&Wiki@3", filter={"date": Between("2021-01-01", "2022-12-31")})
    assert shown[1:] == ["wiki/w2"]
    assert shown[0].endswith("-1")
    with pytest.raises(MeshError, match="attribute") as caught:
        await mesh.shown("Wiki@3", filter={"colour": "red"})
    assert (caught.value.code, caught.value.field) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "filter.conditions[0].attribute",
    )


async def test_a_collection_is_indexed_as_its_first_ingest_says(mesh: Mesh) -> None:
    reported = Lexical("english", k1=0.9, b=0.4)
    done = await mesh.client.ingest(PASSAGES, "stemmed", lexical=reported)
    assert (done.added, done.collection.lexical) == (3, reported)
    reply = await mesh.retrieve(query="rivers", collection="stemmed", retriever="bm25-lucene", k=2)
    assert {one.id for one in reply.passages} == {"w1", "w2"}
    assert all(score > 0 for score in reply.scores)
    assert (await mesh.client.ingest(PASSAGES, "stemmed", lexical=Lexical("english"))).unchanged == 3
    with pytest.raises(MeshError, match="exists and is indexed with") as caught:
        await mesh.client.ingest(PASSAGES, "stemmed", lexical=Lexical("unicode"))
    assert caught.value.field == "lexical"
    with pytest.raises(MeshError) as caught:
        await mesh.client.create_collection("other", lexical=Lexical("klingon"))
    assert (caught.value.code, caught.value.field) == (grpc.StatusCode.INVALID_ARGUMENT, "lexical.analyzer")


async def test_web_sources_without_their_packages_stop_the_start_with_the_remedy(tmp_path: Path) -> None:
    # A folder of a package that says it is not there comes before the real one.
    (tmp_path / "trafilatura").mkdir()
    (tmp_path / "trafilatura" / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'trafilatura'\", name='trafilatura')"
    )
    said = await asyncio.to_thread(
        refusal,
        "retriever",
        tmp_path / "home",
        {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        ENCODER="",
        WEB_SOURCES='{"searx": {"url": "http://127.0.0.1:1"}}',
    )
    (line,) = said.strip().splitlines()
    assert (
        "web sources need trafilatura, which is not installed: in a checkout, pip install './services/retriever[web]'"
        in line
    )
