"""Bind, health, reflection, start, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from evenmesh.common.v1.common_pb2 import ItemError
from evenmesh.wire import errors
from evenmesh_kit.process import serving
from evenmesh_kit.process.serving import run
from evenmesh_kit.process.serving import serve as run_service
from evenmesh_kit.process.start import ServerStartError
from evenmesh_kit.rpc.server import MeshServer, Service
from evenmesh_kit.settings import ServiceSettings, SettingsError
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support.lifecycle import Idle
from tests.support.waiting import until

SERVICE = "evenmesh.test.v1.EchoService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(echo: Any, service: str = "") -> Any:
    request = health_pb2.HealthCheckRequest(service=service)
    return (await health_pb2_grpc.HealthStub(echo.channel).Check(request, timeout=20)).status


async def test_health_is_reported_overall_and_per_service(serve: Any, call: Any) -> None:
    echo = call(await serve())
    assert await health(echo) == SERVING
    assert await health(echo, SERVICE) == SERVING
    with pytest.raises(grpc.RpcError) as failed:
        await health(echo, "evenmesh.other.v1.OtherService")
    assert failed.value.code() == grpc.StatusCode.NOT_FOUND


async def test_reflection_lists_the_service(serve: Any, call: Any) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(call(await serve()).channel)
    [reply] = [
        reply
        async for reply in stub.ServerReflectionInfo(
            [reflection_pb2.ServerReflectionRequest(list_services="")], timeout=20
        )
    ]
    names = {service.name for service in reply.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names


async def test_one_task_waits_for_the_next_call_whatever_the_number_of_methods(serve: Any, call: Any) -> None:
    # grpcio waits for a call of each method that is registered with it, and anew for all at every call.
    assert await call(await serve())("unary") == ["a"]
    waiting = [task.get_coro().__name__ for task in asyncio.all_tasks()]  # type: ignore[union-attr]
    assert waiting.count("_request_call") == 1
    assert "_request_registered_call" not in waiting


class Slow(Idle):
    """A service that starts when reported."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.events: list[str] = []

    async def start(self) -> None:
        self.events.append("starting")
        await self.go.wait()
        self.events.append("started")

    async def stop(self) -> None:
        self.events.append("stopped")


async def test_until_it_has_started_it_is_not_serving_and_takes_no_calls(
    serve: Any, call: Any, tmp_path: Path
) -> None:
    service, port_file = Slow(), tmp_path / "run" / "echo.port"
    starting = asyncio.create_task(serve(service=service, settings={"port_file": port_file}))
    await until(port_file.exists)
    echo = call(port_file.read_text())
    assert await health(echo) == NOT_SERVING
    assert await health(echo, SERVICE) == NOT_SERVING
    with pytest.raises(grpc.RpcError) as failed:
        await echo("unary")
    refused = errors.from_rpc_error(failed.value)
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "STARTING")
    service.go.set()
    server = await starting
    assert await health(echo, SERVICE) == SERVING
    assert await echo("unary") == ["a"]
    await server.stop()
    assert service.events == ["starting", "started", "stopped"]
    assert not port_file.exists()


async def test_a_failed_start_leaves_nothing_behind(serve: Any, tmp_path: Path) -> None:
    class Broken(Slow):
        async def start(self) -> None:
            raise ServerStartError("the model is missing: run `evenmesh fetch`")

    service, port_file = Broken(), tmp_path / "port"
    with pytest.raises(ServerStartError, match="the model is missing"):
        await serve(service=service, settings={"port_file": port_file})
    assert not port_file.exists()
    assert service.events == []


async def test_a_taken_port_is_reported_in_one_line(serve: Any) -> None:
    port = int((await serve()).address.rpartition(":")[2])
    with pytest.raises(ServerStartError) as failed:
        await serve(settings={"port": port})
    assert str(failed.value) == (
        f"port {port} is taken on 127.0.0.1: stop what listens there or set EVENMESH_ECHO_PORT"
    )


async def test_a_port_taken_by_something_else_is_reported_too(serve: Any) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ServerStartError, match=r"is taken on 127\.0\.0\.1"):
            await serve(settings={"port": other.getsockname()[1]})


@pytest.mark.parametrize("taken", ["127.0.0.1", "::1"])
async def test_a_port_that_is_taken_on_one_address_of_localhost_is_reported(serve: Any, taken: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in taken else socket.AF_INET) as other:
        try:
            other.bind((taken, 0))
        except OSError as error:
            pytest.skip(f"no {taken} here: {error.strerror}")
        other.listen()
        with pytest.raises(ServerStartError, match="is taken on localhost"):
            await serve(settings={"host": "localhost", "port": other.getsockname()[1]})


async def test_a_name_with_an_address_of_a_family_that_is_not_here_is_served(
    serve: Any, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(_: str, port: int, **__: object) -> list[Any]:
        # 192.0.2.1 is for documentation: no machine has it
        hosts = ("192.0.2.1", "127.0.0.1")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port)) for host in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    server = await serve(settings={"host": "localhost"})
    monkeypatch.undo()
    assert await call(server)("unary") == ["a"]


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
async def test_an_address_that_is_not_ours_is_reported(serve: Any, host: str) -> None:
    with pytest.raises(ServerStartError, match=rf"cannot listen on {host}: .*set EVENMESH_ECHO_HOST"):
        await serve(settings={"host": host, "allow_insecure": True})


async def test_a_successor_keeps_its_port_file_and_lets_go_of_all_where_it_cannot_start(
    serve: Any, call: Any, tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"port": port, "share_port": True, "port_file": tmp_path / "port"}
    before = await serve(settings=shared)
    after = await serve(settings=shared)
    await before.stop()
    assert (tmp_path / "port").read_text() == after.address
    assert await call(after)("unary") == ["a"]
    service = Slow()
    service.go.set()
    with pytest.raises(ServerStartError, match="cannot write"):
        await serve(service=service, settings=shared | {"port_file": tmp_path / "port" / "below"})
    assert service.events == ["starting", "started", "stopped"]
    await after.stop()
    assert not (tmp_path / "port").exists()


async def test_a_port_file_that_cannot_be_written_is_reported(serve: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ServerStartError, match=r"cannot write .*set EVENMESH_ECHO_PORT_FILE"):
        await serve(settings={"port_file": tmp_path / "file" / "port"})


@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_ipv6_addresses_are_bracketed(serve: Any, call: Any, host: str) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error.strerror}")
    server = await serve(settings={"host": host})
    assert server.address.startswith("[::1]:")
    assert await call(server)("unary") == ["a"]


async def test_a_drain_lets_running_calls_finish_and_refuses_new_ones(serve: Any, call: Any) -> None:
    go = asyncio.Event()

    async def stream(request: ItemError, context: Any) -> AsyncIterator[ItemError]:
        yield ItemError(message="first")
        await go.wait()
        yield ItemError(message="last")

    server = await serve(server_stream=stream, settings={"grace_s": 60})
    echo, other = call(server), call(server)
    running = echo.method("server_stream")(ItemError(), timeout=60)
    assert (await running.read()).message == "first"
    stopping = asyncio.create_task(server.stop())
    refused: errors.MeshError | None = None
    async with asyncio.timeout(10):
        while refused is None:  # the refusal begins once the listener is closed
            try:
                await other("unary", timeout=5)
            except grpc.RpcError as error:
                refused = errors.from_rpc_error(error)
    assert isinstance(refused, errors.Unavailable)
    assert not stopping.done()
    go.set()
    assert (await running.read()).message == "last"
    assert await running.code() == grpc.StatusCode.OK
    async with asyncio.timeout(10):
        await stopping


async def test_calls_that_arrive_as_the_drain_begins_are_refused_as_unavailable(
    serve: Any, call: Any
) -> None:
    go = asyncio.Event()

    async def held(request: ItemError, context: Any) -> ItemError:
        await go.wait()
        return request

    server = await serve(unary=held)
    echo = call(server)
    first = asyncio.create_task(echo("unary"))
    await until(lambda: server.in_flight)
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    late = await asyncio.gather(*(echo("unary") for _ in range(20)), return_exceptions=True)
    assert {errors.from_rpc_error(error).code for error in late if isinstance(error, grpc.RpcError)} == {
        grpc.StatusCode.UNAVAILABLE
    }
    assert len([error for error in late if isinstance(error, grpc.RpcError)]) == 20
    go.set()
    assert await first == ["a"]
    await stopping


async def test_after_the_grace_running_calls_are_ended(serve: Any, call: Any) -> None:
    ended = asyncio.Event()

    async def forever(request: ItemError, context: Any) -> ItemError:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return request

    service = Slow()
    service.go.set()
    server = await serve(unary=forever, service=service)
    running = asyncio.create_task(call(server)("unary", timeout=60))
    await until(lambda: server.in_flight)
    async with asyncio.timeout(10):
        await server.stop(0.05)
        assert ended.is_set()
        with pytest.raises(grpc.RpcError) as failed:
            await running
    refused = errors.from_rpc_error(failed.value)
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "CUT_SHORT")
    assert service.events[-1] == "stopped"


@pytest.mark.parametrize("times", [1, 2])
async def test_a_stop_without_grace_ends_everything_and_may_be_asked_for_twice(
    serve: Any, call: Any, times: int
) -> None:
    async def forever(request: ItemError, context: Any) -> ItemError:
        await asyncio.Event().wait()
        return request

    service = Slow()
    service.go.set()
    server = await serve(unary=forever, service=service)
    echo = call(server)
    watch = health_pb2_grpc.HealthStub(echo.channel).Watch(
        health_pb2.HealthCheckRequest(service=SERVICE), timeout=60
    )
    assert (await watch.read()).status == SERVING
    calls = [asyncio.create_task(echo("unary", timeout=60)) for _ in range(8)]
    await until(lambda: server.in_flight == 8)
    async with asyncio.timeout(10):
        await asyncio.gather(*(server.stop(0) for _ in range(times)))
        ended = await asyncio.gather(*calls, return_exceptions=True)
    assert {error.code() for error in ended if isinstance(error, grpc.RpcError)} == {
        grpc.StatusCode.UNAVAILABLE
    }
    assert server.in_flight == 0
    assert service.events == ["starting", "started", "stopped"]


async def test_less_time_asked_for_later_shortens_the_drain(serve: Any, call: Any) -> None:
    async def forever(request: ItemError, context: Any) -> ItemError:
        await asyncio.Event().wait()
        return request

    server = await serve(unary=forever)
    running = asyncio.create_task(call(server)("unary", timeout=60))
    await until(lambda: server.in_flight)
    patient = asyncio.create_task(server.stop(3600))
    done, _ = await asyncio.wait((patient,), timeout=0.2)
    assert not done
    async with asyncio.timeout(10):
        await server.stop(0)
        await patient
        with pytest.raises(grpc.RpcError):
            await running


async def test_watchers_of_health_do_not_hold_the_drain(serve: Any, call: Any) -> None:
    server = await serve(settings={"grace_s": 3600})
    watch = health_pb2_grpc.HealthStub(call(server).channel).Watch(
        health_pb2.HealthCheckRequest(service=SERVICE), timeout=60
    )
    assert (await watch.read()).status == SERVING
    stopping = asyncio.create_task(server.stop())
    assert (await watch.read()).status == NOT_SERVING
    async with asyncio.timeout(20):
        await stopping


SERVICE_MAIN = """
import asyncio, os, signal, sys, threading, time
import grpc
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.telemetry import logs
from evenmesh_kit.process.serving import run, serve
from evenmesh_kit.rpc.server import Registration, Service
from evenmesh_kit.settings import ServiceSettings, load
from evenmesh_kit.telemetry.setup import Telemetry


class Settings(ServiceSettings):
    model_config = {"env_prefix": "EVENMESH_ECHO_"}


async def wait(request, context):
    yield b"began"
    await asyncio.sleep(float(request))
    yield b"ended"


def add(servicer, server):
    handlers = {"wait": grpc.unary_stream_rpc_method_handler(wait)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.Wait", handlers),))


class Waiting(Service):
    registrations = [Registration(add, None, "t.Wait")]

    async def start(self):
        if os.environ.get("SLOW_START"):
            await asyncio.Event().wait()

    async def stop(self):
        if os.environ.get("STUCK_STOP"):
            pool = ComputePool(1, "stuck")
            began = threading.Event()
            pool.executor.submit(lambda: (began.set(), time.sleep(3600)))
            began.wait()  # close() drops what has not begun
            pool.close()
        sys.stdout.write("stopped")


async def main():
    settings = load(Settings)
    logs.configure("echo", settings)
    telemetry = Telemetry.from_settings("echo", settings)
    await serve("echo", settings, Waiting(), telemetry=telemetry)


sys.exit(run(main))
"""


class Process:
    """A service in a process of its own."""

    def __init__(self, tmp_path: Path) -> None:
        self.port_file = tmp_path / "port"
        self.main = tmp_path / "service.py"
        self.main.write_text(SERVICE_MAIN)
        self.home = tmp_path

    async def start(self, **env: str) -> asyncio.subprocess.Process:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(self.main),
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "EVENMESH_HOME": str(self.home),
                "EVENMESH_ECHO_PORT": "0",
                "EVENMESH_ECHO_PORT_FILE": str(self.port_file),
                **env,
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        return self.process

    async def address(self) -> str:
        await until(self.port_file.exists)
        return self.port_file.read_text()


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Process]:
    process = Process(tmp_path)
    yield process
    with contextlib.suppress(ProcessLookupError):
        process.process.kill()
    await process.process.wait()


async def begun(address: str, call: Any, seconds: float) -> Any:
    """A running call of the service at ``address``, once that has started."""
    wait = call(address).channel.unary_stream("/t.Wait/wait")
    async with asyncio.timeout(60):
        while True:
            running = wait(str(seconds).encode(), timeout=60)
            try:
                assert await running.read() == b"began"
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:  # still starting
                    raise
            else:
                return running


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_ends_cleanly(service: Process, call: Any, number: int) -> None:
    process = await service.start()
    running = await begun(await service.address(), call, 0.5)
    process.send_signal(number)
    assert await running.read() == b"ended"
    assert await running.code() == grpc.StatusCode.OK
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert (process.returncode, out) == (0, b"stopped")
    assert b"Traceback" not in err
    assert b'"message": "serving"' in err
    assert not service.port_file.exists()


async def test_what_a_service_writes_is_its_users_alone(service: Process) -> None:
    await service.start()
    await service.address()
    assert service.port_file.stat().st_mode & 0o077 == 0


async def test_a_second_signal_ends_running_calls_at_once(service: Process, call: Any) -> None:
    process = await service.start(EVENMESH_ECHO_GRACE_S="3600")
    running = await begun(await service.address(), call, 3600)
    process.send_signal(signal.SIGTERM)
    ended = asyncio.ensure_future(process.wait())
    done, _ = await asyncio.wait([ended], timeout=0.3)
    assert not done
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        assert await ended == 0
    assert await running.code() != grpc.StatusCode.OK


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_a_process_whose_threads_still_compute(
    service: Process, call: Any, number: int
) -> None:
    process = await service.start(STUCK_STOP="1")
    assert await (await begun(await service.address(), call, 0)).read() == b"ended"
    process.send_signal(signal.SIGTERM)
    await until(lambda: not service.port_file.exists())
    process.send_signal(number)
    async with asyncio.timeout(60):
        assert await process.wait() == 128 + number


async def test_a_signal_while_starting_ends_the_start(service: Process) -> None:
    process = await service.start(SLOW_START="1")
    await service.address()
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    assert (process.returncode, out) == (0, b"")
    assert not service.port_file.exists()


async def test_a_service_ends_when_another_process_is_its_parent(service: Process) -> None:
    process = await service.start(EVENMESH_ECHO_EXIT_WITH_PARENT="true", EVENMESH_ECHO_PARENT_PID="999999999")
    async with asyncio.timeout(60):
        assert await process.wait() == 0


async def test_a_service_ends_when_its_parent_is_killed(service: Process) -> None:
    launcher = service.home / "launcher.py"
    launcher.write_text(
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, {str(service.main)!r}])\n"
        "sys.stdout.write(f'{child.pid}\\n')\n"
        "sys.stdout.flush()\n"
        "time.sleep(3600)\n"
    )
    service.main, main = launcher, service.main
    launched = await service.start(EVENMESH_ECHO_EXIT_WITH_PARENT="true")
    service.main = main
    assert launched.stdout is not None
    child = int(await launched.stdout.readline())
    try:
        await service.address()
        launched.kill()
        await launched.wait()
        await until(lambda: not service.port_file.exists())  # removed by a clean stop
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_run_tells_what_the_user_can_mend_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    async def no_settings() -> None:
        raise SettingsError("EVENMESH_ECHO_PORT=x: must be a number")

    async def no_start() -> None:
        raise ServerStartError("port 1 is taken")

    async def fine() -> None:
        await asyncio.sleep(0)

    assert run(no_settings) == 2
    assert run(no_start) == 2
    assert capfd.readouterr().err == "EVENMESH_ECHO_PORT=x: must be a number\nport 1 is taken\n"
    assert run(fine) == 0


def test_threads_that_compute_let_others_in_after_a_millisecond() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)

    async def main() -> None:
        assert sys.getswitchinterval() == pytest.approx(0.001)

    try:
        assert run(main) == 0
    finally:
        sys.setswitchinterval(before)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's policies of scheduling")
def test_threads_of_a_service_do_not_preempt_each_other_when_they_wake() -> None:
    seen = []

    async def main() -> None:
        seen.append(await asyncio.to_thread(os.sched_getscheduler, 0))

    service = threading.Thread(
        target=lambda: run(main)
    )  # the policy is that of a thread, and of those it begins
    service.start()
    service.join()
    assert seen == [os.SCHED_BATCH]


async def test_telemetry_that_is_off_installs_nothing() -> None:
    assert Telemetry.disabled().server_interceptors() == ()
    assert Telemetry.disabled().client_interceptors() == ()
    assert not Telemetry.from_settings("echo", ServiceSettings()).enabled


async def test_a_server_that_never_started_can_be_stopped(tmp_path: Path) -> None:
    service = Slow()
    server = MeshServer("echo", ServiceSettings(home=tmp_path), service, telemetry=Telemetry.disabled())
    async with asyncio.timeout(10):
        await server.stop()
    assert service.events == []


async def test_a_start_looks_for_no_cycles_and_a_running_service_does(tmp_path: Path) -> None:
    collecting: list[bool] = []

    class Watched(Service):
        async def start(self) -> None:
            collecting.append(gc.isenabled())
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)

        async def stop(self) -> None:
            collecting.append(gc.isenabled())

    settings = ServiceSettings(home=tmp_path, port=0)
    await run_service("echo", settings, Watched(), telemetry=Telemetry.disabled())
    assert collecting == [False, True]


async def test_memory_is_given_back_after_the_start_and_between_calls(
    serve: Any, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    monkeypatch.setattr(serving.idle_memory, "give_back", lambda: given.append(0))
    monkeypatch.setattr(serving, "GIVE_BACK_S", 0.01)

    class Watched(Service):
        async def start(self) -> None:
            await asyncio.sleep(0.05)
            assert not given, "it is not idle while it starts"

        async def stop(self) -> None:
            pass

    settings = ServiceSettings(home=tmp_path, port=0)
    running = asyncio.create_task(run_service("echo", settings, Watched(), telemetry=Telemetry.disabled()))
    await until(lambda: len(given) > 2)
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    stopped = len(given)
    await asyncio.sleep(0.05)
    assert len(given) == stopped
