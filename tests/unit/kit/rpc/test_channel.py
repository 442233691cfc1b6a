"""Channels: spread, retried where that is safe, and nowhere else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from evenmesh.common.v1.common_pb2 import ItemError
from evenmesh.wire import errors
from evenmesh.wire.channel import connect_sync, service_config, with_scheme

SERVICE = "evenmesh.test.v1.EchoService"


class Flaky:
    """Fails a number of times, then answers."""

    def __init__(self, failures: int, error: BaseException) -> None:
        self.failures = failures
        self.error = error
        self.calls = 0

    def _count(self) -> None:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error

    async def unary(self, request: ItemError, context: Any) -> ItemError:
        self._count()
        return request

    async def client_stream(self, requests: Any, context: Any) -> ItemError:
        self._count()
        return ItemError(message=",".join([request.message async for request in requests]))

    async def late(self, request: ItemError, context: Any) -> Any:
        yield ItemError(message="first")
        self._count()


UNAVAILABLE = errors.Unavailable("STARTING", "not yet")


async def test_a_call_of_a_retryable_method_is_tried_again(serve: Any, call: Any) -> None:
    flaky = Flaky(2, UNAVAILABLE)
    echo = call(await serve(unary=flaky.unary), retry=True)
    assert await echo("unary") == ["a"]
    assert flaky.calls == 3


async def test_five_attempts_are_all(serve: Any, call: Any) -> None:
    flaky = Flaky(9, UNAVAILABLE)
    echo = call(await serve(unary=flaky.unary), retry=True)
    with pytest.raises(grpc.RpcError) as failed:
        await echo("unary")
    assert errors.from_rpc_error(failed.value).reason == "STARTING"
    assert flaky.calls == 5


async def test_retries_have_a_budget(serve: Any, call: Any) -> None:
    flaky = Flaky(10**6, UNAVAILABLE)
    echo = call(await serve(unary=flaky.unary), retry=True)
    failed = await asyncio.gather(*(echo("unary") for _ in range(20)), return_exceptions=True)
    assert all(isinstance(one, grpc.RpcError) for one in failed)
    # Of 100 tokens every attempt that fails takes one; at 50 nothing is sent again, and what is under way then,
    # at most one attempt of each call, is the last. Without a budget there would be 5 of each.
    assert 50 <= flaky.calls <= 50 + 20


async def test_other_calls_are_not_tried_again(serve: Any, call: Any) -> None:
    flaky = Flaky(1, UNAVAILABLE)
    echo = call(await serve(client_stream=flaky.client_stream), retry=True)
    with pytest.raises(grpc.RpcError):
        await echo("client_stream")
    assert flaky.calls == 1


async def test_a_channel_without_retries_tries_once(serve: Any, call: Any) -> None:
    flaky = Flaky(1, UNAVAILABLE)
    echo = call(await serve(unary=flaky.unary), retry=False)
    with pytest.raises(grpc.RpcError):
        await echo("unary")
    assert flaky.calls == 1


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidField("k", "no"),
        errors.Overloaded("full", 0.01),
        errors.DeadlineExceeded("late"),
        errors.Internal("0"),
        errors.MeshError(grpc.StatusCode.ABORTED, "RACE", "lost"),
    ],
    ids=lambda error: error.code.name,
)
async def test_only_unavailable_is_tried_again(serve: Any, call: Any, error: errors.MeshError) -> None:
    flaky = Flaky(1, error)
    echo = call(await serve(unary=flaky.unary), retry=True)
    with pytest.raises(grpc.RpcError) as failed:
        await echo("unary")
    assert failed.value.code() == error.code
    assert flaky.calls == 1


async def test_a_stream_that_has_begun_is_not_tried_again(serve: Any, call: Any) -> None:
    flaky = Flaky(1, UNAVAILABLE)
    echo = call(await serve(server_stream=flaky.late), retry=True)
    with pytest.raises(grpc.RpcError) as failed:
        await echo("server_stream")
    assert failed.value.code() == grpc.StatusCode.UNAVAILABLE
    assert flaky.calls == 1


async def test_a_sync_channel_retries_too(serve: Any) -> None:
    flaky = Flaky(2, UNAVAILABLE)
    server = await serve(unary=flaky.unary)

    def sync_call() -> bytes:
        with connect_sync(server.address, service=SERVICE) as channel:
            answer: bytes = channel.unary_unary(f"/{SERVICE}/unary")(b"", timeout=20)
            return answer

    assert await asyncio.to_thread(sync_call) == b""
    assert flaky.calls == 3


async def test_calls_are_spread_over_all_addresses(serve: Any, call: Any) -> None:
    seen: list[str] = []

    def named(name: str) -> Any:
        async def unary(request: ItemError, context: Any) -> ItemError:
            seen.append(name)
            return request

        return unary

    first, second = await serve(unary=named("first")), await serve(unary=named("second"))
    echo = call(f"ipv4:{first.address},{second.address}", retry=True)
    async with asyncio.timeout(20):
        while len(set(seen)) < 2:  # until both connections stand
            await echo("unary")
    seen.clear()
    for _ in range(20):
        await echo("unary")
    assert seen.count("first") == seen.count("second") == 10


async def test_a_restarted_service_is_found_again(serve: Any, call: Any) -> None:
    first = await serve()
    echo = call(first)
    assert await echo("unary") == ["a"]
    await first.stop()
    with pytest.raises(grpc.RpcError) as failed:
        await echo("unary")
    assert failed.value.code() == grpc.StatusCode.UNAVAILABLE
    await serve(settings={"port": int(first.address.rpartition(":")[2])})
    answer: list[str] | None = None
    async with asyncio.timeout(20):
        while answer is None:
            try:
                answer = await echo("unary")
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.05)
    assert answer == ["a"]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("127.0.0.1:7071", "dns:///127.0.0.1:7071"),
        ("localhost:7071", "dns:///localhost:7071"),
        ("retriever.evenmesh:7071", "dns:///retriever.evenmesh:7071"),
        ("dns:///retriever:7071", "dns:///retriever:7071"),
        ("ipv4:127.0.0.1:1,127.0.0.1:2", "ipv4:127.0.0.1:1,127.0.0.1:2"),
        ("unix:/run/evenmesh.sock", "unix:/run/evenmesh.sock"),
    ],
)
def test_a_target_without_a_scheme_is_a_name_to_resolve(target: str, expected: str) -> None:
    assert with_scheme(target) == expected


def test_the_service_config_names_only_the_retryable_methods() -> None:
    config = json.loads(service_config(SERVICE, retry=True))
    [method] = config["methodConfig"]
    assert method["name"] == [{"service": SERVICE, "method": name} for name in ("unary", "server_stream")]
    assert method["waitForReady"] is False
    assert method["retryPolicy"]["maxAttempts"] == 5
    assert method["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]
    assert config["loadBalancingConfig"] == [{"round_robin": {}}]
    assert "methodConfig" not in json.loads(service_config(SERVICE, retry=False))
    assert "methodConfig" not in json.loads(service_config("another.v1.Service", retry=True))


@pytest.mark.parametrize(
    "target", ["127.0.0.1:{}", "localhost:{}", "dns:///127.0.0.1:{}", "ipv4:127.0.0.1:{}"]
)
async def test_a_service_of_this_machine_is_called_without_the_proxy_of_the_environment(
    serve: Any, call: Any, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    async with _proxy(monkeypatch) as asked:
        port = (await serve()).address.rpartition(":")[2]
        assert await call(target.format(port))("unary") == ["a"]
    assert asked.empty()


@pytest.mark.parametrize("target", ["mesh.example:7070", "ipv4:127.0.0.1:1,192.0.2.1:1"])
async def test_a_service_elsewhere_is_called_through_the_proxy_of_the_environment(
    call: Any, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    async with _proxy(monkeypatch) as asked:
        with pytest.raises(grpc.RpcError):
            await call(target)("unary")
        assert (await asked.get()).startswith(b"CONNECT ")


@asynccontextmanager
async def _proxy(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncio.Queue[bytes]]:
    """Let the environment name a proxy that refuses; yields the first line of each of its requests."""
    asked: asyncio.Queue[bytes] = asyncio.Queue()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.put_nowait(await reader.readline())
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy", "grpc_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with await asyncio.start_server(refuse, "127.0.0.1") as server:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        yield asked
