"""Requests are read and decoded only after their calls were admitted."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc

from evenmesh.common.v1.common_pb2 import ItemError
from evenmesh.wire import errors
from evenmesh.wire.channel import connect
from evenmesh_kit.rpc import requests, wire_scan
from evenmesh_kit.rpc.guard import MESSAGE_LIMIT_KEY
from evenmesh_kit.rpc.requests import RequestReader
from evenmesh_kit.rpc.runtime_streams import host_of
from tests.support.in_memory_telemetry import InMemoryTelemetry
from tests.unit.kit.conftest import KINDS, SERVICE

MIB = 2**20
_SERVING = health_pb2.HealthCheckResponse.SERVING
LARGE = b"\x0a\x00" * (31 * MIB // 2)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A file of keys that nobody has."""
    file = tmp_path / "keys.toml"
    file.write_text("")
    return file


def decoding(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list that the size of every request to be decoded goes to."""
    seen: list[int] = []
    decoder = requests._decoder

    def watched(*args: Any) -> Any:
        made = decoder(*args)

        def decoded(data: bytes) -> Any:
            seen.append(len(data))
            return made.decode(data)

        return replace(made, decode=decoded)

    monkeypatch.setattr(requests, "_decoder", watched)
    return seen


@pytest.mark.parametrize("kind", KINDS)
async def test_requests_of_unknown_callers_are_not_decoded(
    serve: Any, call: Any, kind: str, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = decoding(monkeypatch)
    echo = call(await serve(settings={"api_keys": keys}))
    with pytest.raises(grpc.RpcError) as failed:
        await echo(kind, raw=b"\xff\xff")
    assert errors.from_rpc_error(failed.value).reason == "NO_CREDENTIAL"
    assert seen == []


@pytest.mark.parametrize("kind", ["client_stream", "bidi"])
async def test_callers_of_refused_streams_see_why(
    serve: Any, call: Any, kind: str, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Send ten requests in each of 30 streams at once: grpc.aio loses the status while it still writes."""
    monkeypatch.setattr("evenmesh_kit.rpc.guard._REFUSED_PAUSE_S", 2.0)  # for slow machines
    echo = call(await serve(settings={"api_keys": keys}))
    requests = [ItemError(message="a")] * 10

    async def one() -> grpc.StatusCode:
        return await echo.method(kind)(iter(requests), timeout=60).code()

    assert set(await asyncio.gather(*(one() for _ in range(30)))) == {grpc.StatusCode.UNAUTHENTICATED}


async def test_few_refused_streams_wait_at_a_time(
    serve: Any, call: Any, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenmesh_kit.rpc.guard._REFUSED_AT_A_TIME", 2)
    monkeypatch.setattr("evenmesh_kit.rpc.guard._REFUSED_PAUSE_S", 600.0)
    echo = call(await serve(settings={"api_keys": keys}))
    running = {asyncio.ensure_future(echo.method("bidi")(timeout=60).code()) for _ in range(3)}
    ended, waiting = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    assert [one.result() for one in ended] == [grpc.StatusCode.UNAUTHENTICATED]
    assert len(waiting) == 2
    for one in waiting:
        one.cancel()


async def test_refused_logins_are_audited(
    serve: Any, call: Any, keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    echo = call(await serve(settings={"api_keys": keys}))
    with caplog.at_level("INFO", "evenmesh.audit"), pytest.raises(grpc.RpcError):
        await echo("unary", "a secret text")
    [record] = [one for one in caplog.records if getattr(one, "event", "") == "login_refused"]
    seen = vars(record)
    assert (seen["reason"], seen["method"]) == ("NO_CREDENTIAL", f"/{SERVICE}/unary")
    assert "secret" not in str(seen)


async def test_a_silent_stream_of_an_unknown_caller_ends(serve: Any, call: Any, keys: Path) -> None:
    echo = call(await serve(settings={"api_keys": keys}))
    stream = echo.method("bidi")(timeout=None)
    async with asyncio.timeout(60):
        assert await stream.code() == grpc.StatusCode.UNAUTHENTICATED


async def test_a_credential_is_sent_once(serve: Any, keys: Path) -> None:
    server = await serve(settings={"api_keys": keys})
    async with connect(server.address, service=SERVICE, retry=False) as channel:
        unary = channel.unary_unary(f"/{SERVICE}/unary")
        with pytest.raises(grpc.RpcError) as failed:
            await unary(
                b"", timeout=20, metadata=[("authorization", "Bearer a"), ("authorization", "Bearer b")]
            )
    assert errors.from_rpc_error(failed.value).reason == "TWO_CREDENTIALS"


async def test_a_request_over_the_bound_of_its_method_is_refused(
    serve: Any, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RequestReader, "_largest", lambda *_: 100)
    echo = call(await serve())
    assert await echo("unary", "a" * 98) == ["a" * 98]
    for kind in KINDS:
        with pytest.raises(grpc.RpcError) as failed:
            await echo(kind, "a" * 99)
        error = errors.from_rpc_error(failed.value)
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE")
        assert "has 101 bytes" in error.message
        assert "at most 100" in error.message


async def test_decoded_requests_of_running_calls_share_a_bound(
    serve: Any, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_scan, "UNSTATED", 2**20)
    monkeypatch.setattr(requests, "scanner_of", wire_scan.Scanner)
    running, go = asyncio.Semaphore(0), asyncio.Event()
    telemetry = InMemoryTelemetry("echo")

    async def hold(request: ItemError, context: Any) -> ItemError:
        running.release()
        await go.wait()
        return request

    server = await serve(telemetry=telemetry, settings={"max_decoded_bytes": 2**24, "queue_s": 0}, unary=hold)
    echo, text = call(server), "a" * 65_000  # counts as 16 times its size: 16 fit
    held = [asyncio.create_task(echo("unary", text)) for _ in range(16)]
    for _ in held:
        await asyncio.wait_for(running.acquire(), 60)
    stream = echo.method("bidi")(timeout=60)
    await stream.write(ItemError())
    await stream.read()
    await stream.write(ItemError(message=text))
    for refused in (echo.method("unary")(ItemError(message=text), timeout=60), stream):
        assert await refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "bytes of decoded requests do not fit now" in await refused.details()
    counts = telemetry.metrics()["evenmesh.admission.refused"].data.data_points
    assert {(one.attributes["unit"], one.attributes["reason"]) for one in counts if one.value} == {
        ("bytes of decoded requests", "OVERLOADED")
    }
    assert await echo("server_stream", "small") == ["small0", "small1", "small2"]
    go.set()
    await asyncio.gather(*held)
    assert await echo("bidi", *[text] * 40) == [text] * 40  # one at a time


async def test_a_small_request_beyond_a_bound_is_not_decoded(
    serve: Any, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = decoding(monkeypatch)
    echo = call(await serve())
    refused = echo.method("unary")(ItemError(message="a" * (wire_scan.UNSTATED + 1)), timeout=60)
    assert await refused.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "message: must be at most 1024 bytes, has 1025" in await refused.details()
    assert not seen


@pytest.mark.parametrize("kind", ["unary", "server_stream"])
async def test_a_call_without_its_request_is_refused(serve: Any, call: Any, kind: str) -> None:
    server = await serve()
    async with connect(server.address, service=SERVICE, retry=False) as channel:
        make = channel.stream_unary if kind == "unary" else channel.stream_stream
        running = make(f"/{SERVICE}/{kind}")(iter(()), timeout=20)
        assert await running.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "without a request" in await running.details()


async def test_a_call_whose_request_does_not_come_ends(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_FIRST_REQUEST_S", 0.05)
    server = await serve()
    async with connect(server.address, service=SERVICE, retry=False) as channel:
        running = channel.stream_unary(f"/{SERVICE}/unary")(timeout=None)
        async with asyncio.timeout(60):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await running
    error = errors.from_rpc_error(failed.value)
    assert (error.code, error.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "STREAM_IDLE")
    assert "no request came" in error.message


async def test_silent_calls_give_their_turns_back_at_their_deadline(serve: Any) -> None:
    server = await serve()
    async with connect(server.address, service=SERVICE, retry=False) as channel:
        silent = [channel.stream_unary(f"/{SERVICE}/unary")(timeout=0.5) for _ in range(20)]
        for one in silent:
            assert await one.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        unary = channel.unary_unary(f"/{SERVICE}/unary", request_serializer=ItemError.SerializeToString)
        await unary(ItemError(), timeout=30)
        async with asyncio.timeout(60):
            await server.idle()


async def test_a_tenants_silent_calls_do_not_hold_up_another(serve: Any) -> None:
    server = await serve()

    async def silent() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async with connect(server.address, service=SERVICE, retry=False) as channel:
        held = [
            channel.stream_unary(f"/{SERVICE}/unary")(
                silent(), timeout=60, metadata=[("evenmesh-tenant", "mallory")]
            )
            for _ in range(50)
        ]
        while server.in_flight < len(held):
            await asyncio.sleep(0.01)
        unary = channel.unary_unary(f"/{SERVICE}/unary", request_serializer=ItemError.SerializeToString)
        await unary(ItemError(), timeout=30, metadata=[("evenmesh-tenant", "ada")])
        for one in held:
            one.cancel()


@pytest.mark.parametrize("kind", KINDS)
async def test_calls_have_a_longest_life(serve: Any, call: Any, kind: str) -> None:
    async def wait(request: Any, context: Any) -> Any:
        await asyncio.Event().wait()

    limits = {"max_call_s": 0.05, "max_stream_s": 0.05}
    echo = call(await serve(settings=limits, **{kind: wait}))
    ten_years_s = 10 * 365 * 86_400
    with pytest.raises(grpc.RpcError) as failed:
        await echo(kind, timeout=ten_years_s)
    reason = errors.from_rpc_error(failed.value).reason
    assert reason == ("CALL_TOO_LONG" if kind == "unary" else "STREAM_TOO_LONG")


async def test_health_takes_no_large_request(serve: Any, call: Any) -> None:
    channel = call(await serve()).channel
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    with pytest.raises(grpc.RpcError) as failed:
        await check(health_pb2.HealthCheckRequest(service="a" * MIB).SerializeToString(), timeout=30)
    assert errors.from_rpc_error(failed.value).reason == "REQUEST_TOO_LARGE"
    await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)


async def test_silent_reflection_ends(serve: Any, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_RUNTIME_S", 0.05)
    stub = reflection_pb2_grpc.ServerReflectionStub(call(await serve()).channel)
    async with asyncio.timeout(60):
        assert await stub.ServerReflectionInfo(timeout=None).code() == grpc.StatusCode.DEADLINE_EXCEEDED


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server wait an hour for requests of health and reflection."""
    monkeypatch.setattr(requests, "_RUNTIME_S", 3600.0)


async def test_silent_checks_do_not_hold_up_health(
    serve: Any, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient(monkeypatch)
    channel = call(await serve()).channel
    silent = [channel.stream_unary("/grpc.health.v1.Health/Check")(timeout=None) for _ in range(7)]
    stub = health_pb2_grpc.HealthStub(channel)
    assert (await stub.Check(health_pb2.HealthCheckRequest(), timeout=60)).status == _SERVING
    # Those that were read gave way to those that waited behind them; in which order they came is not known.
    ended, _ = await asyncio.wait(
        [asyncio.create_task(one.code()) for one in silent], timeout=60, return_when=asyncio.FIRST_COMPLETED
    )
    assert {one.result() for one in ended} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    for one in silent:
        one.cancel()


async def test_of_each_host_few_checks_wait(serve: Any, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)
    monkeypatch.setattr(requests, "_HURRIED_S", 3600.0)
    channel = call(await serve()).channel
    silent = [channel.stream_unary("/grpc.health.v1.Health/Check")(timeout=None) for _ in range(9)]
    ended, waiting = await asyncio.wait(
        [asyncio.create_task(one.code()) for one in silent], timeout=60, return_when=asyncio.FIRST_COMPLETED
    )
    assert [one.result() for one in ended] == [grpc.StatusCode.RESOURCE_EXHAUSTED]
    assert len(waiting) == 8
    for one in silent:
        one.cancel()


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.7:4711", "ipv4:10.0.0.7"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:4711", "2001:db8:1:2::/64"),
        ("ipv6:[::ffff:10.0.0.7]:4711", "10.0.0.7"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", "fe80::/64"),
        ("unix:/run/mesh.sock", "unix"),
    ],
)
def test_the_host_of_a_peer_has_no_port(peer: str, host: str) -> None:
    assert host_of(peer) == host


async def test_grpc_receives_no_more_than_the_largest_method_takes(
    serve: Any, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenmesh_kit.rpc.server.largest_request_bytes", lambda _: 100_000)
    echo = call(await serve())
    running = echo.method("unary")(ItemError(), timeout=20)
    assert (MESSAGE_LIMIT_KEY, "100000") in tuple(await running.trailing_metadata())
    refused = echo.channel.unary_unary("/grpc.health.v1.Health/Check")(b"a" * 100_001, timeout=20)
    assert await refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in await refused.details()


@pytest.mark.parametrize("bound", ["_MOST", "_MOST_OF_A_HOST"])
async def test_health_watches_are_bounded(
    serve: Any, call: Any, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(f"evenmesh_kit.rpc.runtime_streams.{bound}", 2)
    stub = health_pb2_grpc.HealthStub(call(await serve()).channel)
    watches = [stub.Watch(health_pb2.HealthCheckRequest(), timeout=60) for _ in range(2)]
    for watch in watches:
        await watch.read()
    third = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
    assert await third.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    watches[0].cancel()
    async with asyncio.timeout(60):
        while True:  # until the server has seen that the first one ended
            fourth = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
            try:
                await fourth.read()
                break
            except grpc.RpcError:
                await asyncio.sleep(0.01)
    for watch in (*watches, fourth):
        watch.cancel()


SERVER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.support.lifecycle import Idle
from tests.unit.kit.conftest import EchoSettings, registration
from evenmesh_kit.rpc.server import MeshServer
from evenmesh_kit.telemetry.setup import Telemetry

async def main():
    keys = Path(sys.argv[2]) / "keys.toml"
    settings = EchoSettings(home=Path(sys.argv[2]), api_keys=keys, max_message_bytes=2**24)
    server = MeshServer("echo", settings, Idle(registration()), telemetry=Telemetry.disabled())
    async with server:
        print(server.address, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc of Linux")
@pytest.mark.parametrize("kind", ["unary", "bidi"])
@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_unknown_callers_raise_no_memory(
    tmp_path: Path, keys: Path, kind: str, compression: grpc.Compression
) -> None:
    """31 MiB in each of 100 calls at once, as a row of empty messages: decoded, 3 GB of each."""
    del keys
    async with (
        apart(tmp_path) as (pid, address),
        connect(address, service=SERVICE, retry=False) as channel,
    ):
        method = (channel.unary_unary if kind == "unary" else channel.stream_stream)(f"/{SERVICE}/{kind}")

        async def one(data: bytes) -> None:
            request = data if kind == "unary" else iter([data] * 4)
            code = await method(request, timeout=300, compression=compression).code()
            # A caller that still writes when its call ends may see the end of its writes, not the status.
            lost = (grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED) if kind == "bidi" else ()
            assert code in (grpc.StatusCode.UNAUTHENTICATED, *lost)

        await one(b"")
        before = _peak_mib(pid)
        calls = 10 if compression is grpc.Compression.Gzip else 100  # compressing takes the test's time
        await asyncio.gather(*(one(LARGE) for _ in range(calls)))
        assert _peak_mib(pid) - before < 64


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc of Linux")
@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_large_checks_of_health_take_turns(
    tmp_path: Path, keys: Path, compression: grpc.Compression
) -> None:
    """15 MiB to health over each of 20 connections: gRPC holds the one that is read, three times."""
    del keys
    async with apart(tmp_path) as (pid, address), AsyncExitStack() as stack:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        checks = [
            (
                await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
            ).unary_unary("/grpc.health.v1.Health/Check")
            for _ in range(20)
        ]
        await checks[0](b"", timeout=60)
        before = _peak_mib(pid)
        calls = [one(LARGE[: 15 * MIB], timeout=300, compression=compression) for one in checks]
        codes = await asyncio.gather(*(one.code() for one in calls))
        # One that comes slowly gives way to those that wait.
        assert set(codes) <= {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED}
        assert _peak_mib(pid) - before < 160


@asynccontextmanager
async def apart(home: Path) -> AsyncIterator[tuple[int, str]]:
    """Run a server of largest requests of 16 MiB as a process of its own: its id and address."""
    root = str(Path(__file__).parents[4])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, root, str(home), stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process.pid, (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()


def _peak_mib(pid: int) -> float:
    """Return the most memory that a process has had. MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
