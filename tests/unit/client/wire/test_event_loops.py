"""Asynchronous clients that are made before an event loop runs, as programs do at the top of a module."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from evenmesh import Addresses, AsyncClient
from evenmesh.retriever.v1 import collection_service_pb2 as pb
from evenmesh.retriever.v1 import collection_service_pb2_grpc as collection_grpc
from evenmesh.wire.errors import FailedPrecondition


class _Collections(collection_grpc.CollectionServiceServicer):
    def ListCollections(  # noqa: N802 - the name of the method
        self, request: pb.ListCollectionsRequest, context: grpc.ServicerContext
    ) -> pb.ListCollectionsResponse:
        return pb.ListCollectionsResponse(collections=[pb.Collection(name="demo")])


@pytest.fixture
def addresses() -> Iterator[Addresses]:
    server = grpc.server(ThreadPoolExecutor(1))
    collection_grpc.add_CollectionServiceServicer_to_server(_Collections(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield Addresses(*[f"127.0.0.1:{port}"] * 5)
    server.stop(None).wait()


async def _names(client: AsyncClient, *, then_close: bool = False) -> list[str]:
    names = [one.name for one in await client.collections()]
    if then_close:
        await client.close()
    return names


def test_a_client_that_is_made_before_its_loop_works_in_it(addresses: Addresses) -> None:
    client = AsyncClient(addresses)

    assert asyncio.run(_names(client, then_close=True)) == ["demo"]


def test_a_thread_without_a_loop_can_make_a_client(addresses: Addresses) -> None:
    with ThreadPoolExecutor(1) as thread:
        client = thread.submit(AsyncClient, addresses).result()

    assert asyncio.run(_names(client, then_close=True)) == ["demo"]


def test_a_client_in_a_second_loop_says_what_is_wrong(addresses: Addresses) -> None:
    client = AsyncClient(addresses)
    with asyncio.Runner() as first:
        assert first.run(_names(client)) == ["demo"]
        with ThreadPoolExecutor(1) as thread:
            second = thread.submit(asyncio.run, _names(client))
            with pytest.raises(FailedPrecondition, match="open one in each") as caught:
                second.result()
        assert caught.value.reason == "OTHER_EVENT_LOOP"
        assert first.run(_names(client, then_close=True)) == ["demo"]
