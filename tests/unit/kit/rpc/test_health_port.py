"""Health has a port of its own, which answers however many callers the service has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenmesh_kit.process.start import ServerStartError
from evenmesh_kit.rpc import health_port
from evenmesh_kit.rpc.readiness import Readiness
from evenmesh_kit.rpc.server import MeshServer
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support import ports
from tests.support.lifecycle import Idle
from tests.unit.kit.conftest import SERVICE, EchoSettings, registration
from tests.unit.kit.rpc.test_connection_bounds import PREFACE, closed

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Owner:
    """What a port is reserved for."""


@pytest.fixture
def port() -> Iterator[int]:
    """A free port, which stays reserved for the test."""
    owner = Owner()
    yield ports.reserve(owner)
    del owner


async def ask(channel: grpc.aio.Channel, service: str = "", timeout: float = 20) -> Any:
    """Return the health that a port states."""
    request = health_pb2.HealthCheckRequest(service=service)
    return (await health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout)).status


async def test_health_answers_while_callers_hold_every_connection(serve: Any, port: int) -> None:
    """Else Kubernetes would end a pod, and the calls of everybody, because one caller opens connections."""
    server = await serve(settings={"max_connections": 16, "health_port": port})
    host, _, taken = server.address.rpartition(":")
    held = [await asyncio.open_connection(host, int(taken)) for _ in range(16)]
    async with asyncio.timeout(60):
        for reader, writer in held:
            writer.write(PREFACE)
            assert await reader.read(1), "the server greets a connection that it keeps"
        await closed(server.address, PREFACE)
        for _ in range(20):  # each probe opens a connection
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                assert await ask(channel) == await ask(channel, "live") == SERVING
    for _, writer in held:
        writer.close()


async def test_nothing_but_checks_is_served_there(serve: Any, port: int) -> None:
    await serve(settings={"health_port": port})
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert await ask(channel, SERVICE) == SERVING
        for method in (
            f"/{SERVICE}/unary",
            "/grpc.health.v1.Health/Watch",
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(method)(b"", timeout=20)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED, method


async def test_it_follows_start_and_readiness(tmp_path: Path, port: int) -> None:
    readiness, go = Readiness(), asyncio.Event()

    class Slow(Idle):
        async def start(self) -> None:
            await go.wait()

    server = MeshServer(
        "echo",
        EchoSettings(home=tmp_path, health_port=port),
        Slow(registration(), readiness=readiness),
        telemetry=Telemetry.disabled(),
    )
    starting = asyncio.create_task(server.start())
    async with asyncio.timeout(60), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        first = await stub.Check(health_pb2.HealthCheckRequest(), timeout=20, wait_for_ready=True)
        assert first.status == NOT_SERVING
        assert await ask(channel, "live") == SERVING
        go.set()
        await starting
        assert await ask(channel) == SERVING
        readiness.ready = False
        while await ask(channel) == SERVING:
            await asyncio.sleep(0.01)
        assert await ask(channel, "live") == SERVING
        await server.stop()
        with pytest.raises(grpc.aio.AioRpcError):
            await ask(channel)


async def test_nobody_holds_the_connections_of_probes(
    serve: Any, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_port, "_HELD_S", 0.5)
    await serve(settings={"health_port": port})
    async with asyncio.timeout(60):
        silent = [closed(f"127.0.0.1:{port}") for _ in range(40)]
        greeted = [closed(f"127.0.0.1:{port}", PREFACE) for _ in range(40)]
        await asyncio.gather(*silent, *greeted)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert await ask(channel) == SERVING


async def test_it_asks_for_neither_tls_nor_keys(serve: Any, port: int, tmp_path: Path) -> None:
    """The kubelet speaks no TLS, and has no key."""
    certificate = trustme.CA().issue_cert("localhost")
    files = {name: tmp_path / name for name in ("tls_cert", "tls_key", "api_keys")}
    certificate.cert_chain_pems[0].write_to_path(files["tls_cert"])
    certificate.private_key_pem.write_to_path(files["tls_key"])
    files["api_keys"].write_text("")
    server = await serve(settings={"health_port": port, **files})
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert await ask(channel) == SERVING
    async with grpc.aio.insecure_channel(server.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await ask(channel)


async def test_a_taken_port_is_reported_by_its_setting(serve: Any) -> None:
    taken = int((await serve()).address.rpartition(":")[2])
    with pytest.raises(ServerStartError) as failed:
        await serve(settings={"health_port": taken})
    assert str(failed.value) == (
        f"port {taken} is taken on 127.0.0.1: stop what listens there or set EVENMESH_ECHO_HEALTH_PORT"
    )
