"""Calls of both clients while a service is killed and starts again on its port."""

# ruff: noqa: N802 - gRPC names methods as the contract does

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from evenmesh import Addresses, AsyncClient, Client, MeshError
from evenmesh import resending as resending_module
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as evaluator_grpc
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as pb_grpc
from evenmesh.wire.errors import Overloaded, Unavailable
from evenmesh_kit.rpc.statuses import abort
from tests.support import ports
from tests.support.restarted_server import RestartedServer
from tests.support.waiting import until


@pytest.fixture
def process() -> Iterator[RestartedServer]:
    """A server that runs."""
    process = RestartedServer()
    try:
        yield process
    finally:
        process.kill()


async def test_calls_of_a_client_that_reached_a_service_wait_for_its_restart(
    process: RestartedServer,
) -> None:
    async with AsyncClient(process.addresses, timeout=240) as mesh:
        with Client(process.addresses, timeout=240) as sync:

            async def runs() -> str:
                return (await mesh.runs(1))[0].run_id

            async def measured() -> str:
                (measured,) = [one.observation_id async for one in mesh.measurements("r")]
                return measured

            async def asked(question: str) -> str:
                found = await mesh.answer(question)
                assert found.done is not None
                assert [one.reason for one in found.degradations] == [found.done.ask_id]
                return found.done.ask_id

            def asked_in_a_thread() -> str:
                done = sync.answer("q").done
                assert done is not None
                return done.ask_id

            def all_calls() -> list[Any]:
                threads = (lambda: sync.runs(1)[0].run_id, asked_in_a_thread)
                return [runs(), measured(), asked("q"), *(asyncio.to_thread(one) for one in threads)]

            first = str(process.running.pid)
            assert await asyncio.gather(*all_calls()) == [first] * 5
            broken = asyncio.create_task(asked("long"))
            await asyncio.to_thread(process.says, "long")
            process.kill()
            waiting = [broken, *map(asyncio.ensure_future, all_calls())]
            # Longer than gRPC sends a call again, and than the SDK does to a service that it never reached.
            done, _ = await asyncio.wait(waiting, timeout=4)
            assert not done, [one.exception() for one in done]
            await asyncio.to_thread(process.start, "second")
            assert await asyncio.gather(*waiting) == [str(process.running.pid)] * 6


async def test_a_service_that_stays_away_is_unreachable_once_no_time_is_left(
    process: RestartedServer,
) -> None:
    async with AsyncClient(process.addresses) as mesh:
        with Client(process.addresses) as sync:
            await mesh.runs(1)
            await asyncio.to_thread(sync.runs, 1)
            process.kill()
            calls = [mesh.runs(1, timeout=6), asyncio.to_thread(sync.runs, 1, timeout=6)]
            for error in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(error, MeshError)
                assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "UNREACHABLE")


async def test_who_closes_a_client_ends_what_waits(process: RestartedServer) -> None:
    mesh, sync = AsyncClient(process.addresses, timeout=3_600), Client(process.addresses, timeout=3_600)
    await mesh.runs(1)
    await asyncio.to_thread(sync.runs, 1)
    process.kill()
    waiting = [asyncio.ensure_future(mesh.runs(1)), asyncio.ensure_future(asyncio.to_thread(sync.runs, 1))]
    done, _ = await asyncio.wait(waiting, timeout=3)
    assert not done
    await mesh.close()
    sync.close()
    for error in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(error, MeshError)
        assert error.reason == "UNREACHABLE"


async def test_who_closes_a_client_ends_what_is_under_way() -> None:
    server, servicer = grpc.aio.server(), Starting([])
    evaluator_grpc.add_EvaluatorServiceServicer_to_server(servicer, server)
    pb_grpc.add_OrchestratorServiceServicer_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    addresses = Addresses(*[address] * 5)
    sync, mesh = Client(addresses, timeout=3_600), AsyncClient(addresses, timeout=3_600)
    await asyncio.to_thread(sync.runs, 1)
    servicer.hangs = True
    talk = mesh.converse()
    calls = [asyncio.to_thread(sync.runs, 1), mesh.runs(1), mesh.answer("q"), talk.answer("q")]
    under_way = [asyncio.ensure_future(one) for one in calls]
    await until(lambda: servicer.calls == 5)
    sync.close()
    await mesh.close()
    for error in await asyncio.gather(*under_way, return_exceptions=True):
        assert isinstance(error, MeshError)
    await server.stop(0)


async def test_a_service_that_was_never_there_is_not_waited_for() -> None:
    owner = RestartedServer.__new__(RestartedServer)
    address = f"127.0.0.1:{ports.reserve(owner)}"
    async with AsyncClient(Addresses(*[address] * 5), timeout=3_600) as mesh:
        for call in (mesh.runs(1), mesh.answer("q")):
            with pytest.raises(Unavailable, match="answers at"):
                await call


class Starting(evaluator_grpc.EvaluatorServiceServicer, pb_grpc.OrchestratorServiceServicer):
    """Rejects calls before it answers, or holds them."""

    def __init__(self, rejections: list[MeshError]) -> None:
        self.rejections = rejections
        self.calls = 0
        self.hangs = False

    async def _reject(self, context: Any) -> None:
        self.calls += 1
        if self.rejections:
            await abort(context, self.rejections.pop())
        if self.hangs:
            await asyncio.Event().wait()

    async def ListRuns(self, request: Any, context: Any) -> evaluator_pb.ListRunsResponse:
        await self._reject(context)
        return evaluator_pb.ListRunsResponse(runs=[evaluator_pb.Run(run_id="r")])

    async def Ask(self, request: Any, context: Any) -> Any:
        await self._reject(context)
        yield pb.AskResponse(done=pb.Done())

    async def Converse(self, requests: Any, context: Any) -> Any:
        async for _ in requests:
            await self._reject(context)
            yield pb.ConverseResponse()


@pytest.mark.parametrize("method", ["runs", "answer"])
async def test_a_service_that_starts_is_waited_for_and_one_with_too_much_work_is_not(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resending_module, "_LONGEST_PAUSE_S", 0.05)
    starting = Unavailable("STARTING", "the service is still starting")
    server, servicer = grpc.aio.server(), Starting([starting] * 20)
    evaluator_grpc.add_EvaluatorServiceServicer_to_server(servicer, server)
    pb_grpc.add_OrchestratorServiceServicer_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    argument: Any = "q" if method == "answer" else 1
    async with AsyncClient(Addresses(*[address] * 5), timeout=240) as mesh:
        assert await getattr(mesh, method)(argument)
        assert servicer.calls == 21
        servicer.rejections = [Overloaded("too much work", 0.001)]
        with pytest.raises(Overloaded):
            await getattr(mesh, method)(argument)
        assert servicer.calls == 22
    await server.stop(0)
