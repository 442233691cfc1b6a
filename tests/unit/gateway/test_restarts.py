"""Requests of HTTP and of agents while a service is killed and starts again on its port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import httpx
import pytest

from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import MeshError
from evenmesh_gateway.calls import Call
from evenmesh_gateway.forwarding import Forwarder
from evenmesh_gateway.methods import public_methods
from evenmesh_gateway.settings import GatewaySettings
from evenmesh_gateway.upstreams import Upstreams
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support.restarted_server import RestartedServer
from tests.support.waiting import until
from tests.unit.gateway.conftest import Open

RUNS = "evenmesh.evaluator.v1.EvaluatorService/ListRuns"
ASK = "evenmesh.orchestrator.v1.OrchestratorService/Ask"
PROMOTE = "evenmesh.reranker.v1.FeedbackService/PromoteModel"
SHORT_S = 4.0
"""Longer than gRPC sends a call again, and than the SDK does to a service that it never reached."""


@pytest.fixture
async def process() -> AsyncIterator[RestartedServer]:
    """A server that runs."""
    process = await asyncio.to_thread(RestartedServer)
    try:
        yield process
    finally:
        await asyncio.to_thread(process.kill)


@pytest.fixture
def targets(process: RestartedServer) -> dict[str, str]:
    """The settings of a gateway to that server."""
    return {f"{name}_target": address for name, address in process.addresses.items()}


class Requests:
    """Requests that say which process answered them, each by another way in."""

    def __init__(self, gateway: httpx.AsyncClient) -> None:
        self._gateway = gateway

    async def _post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        reply = await self._gateway.post(path, json=body, headers={"X-Request-Timeout": "240"}, timeout=240)
        assert reply.status_code == 200, reply.text
        return reply

    async def rest(self) -> str:
        """One reply as JSON."""
        return str((await self._post(f"/v1/{RUNS}", {"pageSize": 1})).json()["runs"][0]["runId"])

    async def events(self) -> str:
        """An ask as server-sent events."""
        lines = (await self._post(f"/v1/{ASK}", {"question": "q"})).text.splitlines()
        data = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        assert data[0]["degraded"]["reason"] == data[1]["done"]["askId"], "both are of one process"
        return str(data[1]["done"]["askId"])

    async def connect(self) -> str:
        """One reply to a client of Connect."""
        return str((await self._post(f"/{RUNS}", {})).json()["runs"][0]["runId"])

    async def openai(self, question: str = "q") -> str:
        """A whole answer to a client of OpenAI's API."""
        body = {
            "model": "evenmesh",
            "messages": [{"role": "user", "content": question}],
            "evenmesh": {"num_answers": 0},
        }
        found = (await self._post("/v1/chat/completions", body)).json()["evenmesh"]
        assert [one["reason"] for one in found["degradations"]] == [found["ask_id"]]
        return str(found["ask_id"])

    async def agent(self, question: str = "q") -> str:
        """What a tool tells an agent."""
        call = {"name": "retrieve", "arguments": {"query": question}}
        reply = await self._gateway.post(
            "/mcp",
            json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call},
            headers={"accept": "application/json, text/event-stream", "X-Request-Timeout": "240"},
            timeout=240,
        )
        assert reply.status_code == 200, reply.text
        (data,) = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
        result = json.loads(data)["result"]
        assert not result.get("isError"), result
        found = json.loads(result["content"][0]["text"])
        assert [one["reason"] for one in found["degradations"]] == [found["ask_id"]]
        return str(found["ask_id"])

    def all(self) -> list[Awaitable[str]]:
        """Each of them once."""
        return [self.rest(), self.events(), self.connect(), self.openai(), self.agent()]


def waiting(gateway: httpx.AsyncClient) -> int:
    """Return the calls that wait in a gateway."""
    return gateway.gateway._forwarder._waiting.in_flight  # type: ignore[attr-defined, no-any-return]


def reached(gateway: httpx.AsyncClient) -> set[str]:
    """Return the services that a gateway has reached."""
    return gateway.gateway._upstreams.restarts._reached  # type: ignore[attr-defined, no-any-return]


async def test_a_request_waits_for_a_service_that_nobody_has_called_before(
    process: RestartedServer, targets: dict[str, str], open_gateway: Open
) -> None:
    gateway = await open_gateway(**targets)
    await until(lambda: len(reached(gateway)) == 5)
    process.kill()
    waits = [asyncio.ensure_future(one) for one in Requests(gateway).all()]
    await until(lambda: waiting(gateway) == 5)
    await asyncio.to_thread(process.start, "second")
    assert await asyncio.gather(*waits) == [str(process.running.pid)] * 5


async def test_requests_wait_for_a_service_that_is_restarted(
    process: RestartedServer, targets: dict[str, str], open_gateway: Open
) -> None:
    gateway = await open_gateway(**targets)
    requests = Requests(gateway)
    first = str(process.running.pid)
    assert await asyncio.gather(*requests.all()) == [first] * 5
    broken = []
    for one in (requests.openai, requests.agent):  # whole results, which nobody has seen a part of
        broken.append(asyncio.ensure_future(one("long")))
        await asyncio.to_thread(process.says, "long")
    process.kill()
    waits = [*broken, *map(asyncio.ensure_future, requests.all())]
    done, _ = await asyncio.wait(waits, timeout=SHORT_S)
    assert not done, [one.exception() for one in done]
    assert waiting(gateway) == 7
    await asyncio.to_thread(process.start, "second")
    assert await asyncio.gather(*waits) == [str(process.running.pid)] * 7
    assert waiting(gateway) == 0


async def test_a_stream_that_has_begun_is_not_begun_again(
    process: RestartedServer, targets: dict[str, str], open_gateway: Open
) -> None:
    gateway = await open_gateway(**targets)
    async with gateway.stream("POST", f"/v1/{ASK}", json={"question": "long"}) as reply:
        lines = reply.aiter_lines()
        assert "degraded" in await anext(lines)  # what has not arrived may be asked for again
        process.kill()
        rest = [line async for line in lines if line]
    assert rest[0] == "event: error"
    assert json.loads(rest[1][6:])["reason"] == "UNREACHABLE"


async def test_a_request_waits_no_longer_than_it_has_time(
    process: RestartedServer, targets: dict[str, str], open_gateway: Open
) -> None:
    gateway = await open_gateway(**targets)
    requests = Requests(gateway)
    await requests.rest()
    await requests.events()
    process.kill()
    for path, body in ((RUNS, {}), (ASK, {"question": "q"})):
        reply = await gateway.post(f"/v1/{path}", json=body, headers={"X-Request-Timeout": "3"})
        assert (reply.status_code, reply.json()["reason"]) == (503, "UNREACHABLE")
    assert waiting(gateway) == 0


async def test_what_must_not_be_sent_twice_and_a_service_that_was_never_reached_fail_at_once(
    process: RestartedServer, targets: dict[str, str], open_gateway: Open
) -> None:
    gateway = await open_gateway(**{**targets, "orchestrator_target": "127.0.0.1:1"})
    await until(lambda: reached(gateway) == {"retriever", "reranker", "generator", "evaluator"})
    process.kill()
    for path, body in ((PROMOTE, {"version": "v1"}), (ASK, {"question": "q"})):
        reply = await gateway.post(f"/v1/{path}", json=body, headers={"X-Request-Timeout": "600"})
        assert (reply.status_code, reply.json()["reason"]) == (503, "UNREACHABLE")


async def test_who_hangs_up_waits_no_more(
    process: RestartedServer, targets: dict[str, str], open_gateway: Open
) -> None:
    gateway = await open_gateway(**targets)
    requests = Requests(gateway)
    await asyncio.gather(*requests.all())
    process.kill()
    running = [asyncio.ensure_future(one) for one in requests.all()]
    await until(lambda: waiting(gateway) == 5)
    for one in running:
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await until(lambda: waiting(gateway) == 0)


async def test_no_tenant_has_all_places_of_those_that_wait(
    process: RestartedServer, targets: dict[str, str], tmp_path: Path
) -> None:
    settings = GatewaySettings(home=tmp_path, max_connections=16, **targets)  # type: ignore[arg-type]
    upstreams = Upstreams(settings, Telemetry.disabled())
    forwarder, method = Forwarder(upstreams, settings), public_methods()[f"/{RUNS}"]

    async def answered(tenant: str) -> str:
        callers.enter(Caller(name=tenant, tenant=tenant, roles=frozenset()))
        reply = await forwarder.reply(method, b"", Call(Deadline.after(240), ()))
        return evaluator_pb.ListRunsResponse.FromString(reply).runs[0].run_id

    def waits(tenant: str) -> asyncio.Task[str]:
        return asyncio.create_task(answered(tenant))

    try:
        await waits("acme")
        process.kill()
        held = [waits("acme") for _ in range(3)]
        await until(lambda: forwarder._waiting.in_flight == 3)
        with pytest.raises(MeshError, match="does not answer"):
            await waits("acme")
        held.append(waits("other"))
        await until(lambda: forwarder._waiting.in_flight == 4)
        with pytest.raises(MeshError, match="does not answer"):
            await waits("third")
        await asyncio.to_thread(process.start, "second")
        assert await asyncio.gather(*held) == [str(process.running.pid)] * 4
    finally:
        await upstreams.close()
