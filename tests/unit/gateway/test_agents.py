"""MCP by its own client: over HTTP, and on standard input and output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.errors import Overloaded
from evenmesh_gateway.agents.http import AgentRoutes
from evenmesh_kit.security.keys import KeyEntry, add_entry, new_key
from tests.support.scripted import ScriptedMesh
from tests.unit.gateway.conftest import Open

if TYPE_CHECKING:
    from mcp import ClientSession  # every process of tests collects this file, and one runs it


ONE_PROVIDER = {"conditions": [{"attribute": "provider", "any_of": {"values": ["Co-op"]}}]}


def said(result: Any) -> Any:
    """What a tool says, as JSON."""
    assert not result.is_error, result.content
    return json.loads(result.content[0].text)


async def use(session: ClientSession) -> None:
    """Use every tool and resource that the scripted mesh answers."""
    await session.initialize()
    assert [one.uri_template for one in (await session.list_resource_templates()).resource_templates] == [
        "evenmesh://collections/{name}"
    ]
    tools = {tool.name: tool for tool in (await session.list_tools()).tools}
    assert set(tools) == {"ask", "retrieve", "report", "give_feedback", "collections"}
    assert tools["ask"].input_schema["required"] == ["question"]
    described = (tools["ask"].description or "").splitlines()
    assert described[0].startswith("Answer a question from passages")
    assert described == [line.strip() for line in described]
    reading = {name for name, tool in tools.items() if tool.annotations and tool.annotations.read_only_hint}
    assert reading == {"ask", "retrieve", "report", "collections"}
    answer = said(
        await session.call_tool("ask", {"question": "How often?", "collection": "demo", "alpha": 2.0})
    )
    assert answer["ignored"] == []
    assert answer["answer"] == "every 200 kilometres"
    assert answer["citations"][0]["url"] == "evenmesh://demo/p1"
    assert [one["passage_id"] for one in answer["shown"]] == ["p1", "p2"]
    wanted = {"query": "oil", "samples": 2, "task": "qa", "filter": ONE_PROVIDER}
    found = said(await session.call_tool("retrieve", wanted))
    assert found["rankings"] == [["p1", "p2"], ["p2", "p1"]]
    assert [(one["id"], one["score"]) for one in found["passages"]] == [("p1", 2.0), ("p2", 1.0)]
    assert [(one["passage_id"], one["exposure"]) for one in found["shown"]] == [("p1", 1.0), ("p2", 0.5)]
    assert (found["query"], found["collection"], found["run_id"]) == ("oil", "demo", "r1")
    assert [one["reason"] for one in found["degradations"]] == ["UPSTREAM_UNAVAILABLE"]
    asked = {"question": "How often?", "task": "qa", "model": "mine", "filter": ONE_PROVIDER}
    said(await session.call_tool("ask", asked))
    optional = ("collection", "k", "filter", "alpha", "samples", "task", "model")
    undrawn = said(await session.call_tool("ask", {"question": "q", "seed": 7, **dict.fromkeys(optional)}))
    assert undrawn["ignored"] == ["seed"]
    report = said(await session.call_tool("report", {}))
    assert (report["run_id"], report["num_observations"]) == ("r5", "3")
    wrong = await session.call_tool("report", {"run_id": "none"})
    assert wrong.is_error
    assert "NOT_FOUND" in wrong.content[0].text
    for arguments, message in (
        ({"query": "oil", "collection": "c", "num_rankings": 3}, "num_rankings: is no argument of retrieve"),
        ({"query": "oil", "collection": "c", "k": 0}, "k: Input should be greater than or equal to 1"),
        ({"query": " "}, "query: must not be empty"),
        (
            {"query": "oil", "filter": {"conditions": [{"name": "a"}]}},
            "filter.conditions[0].name: is no field of Condition; there are: attribute, any_of",
        ),
    ):
        refused = await session.call_tool("retrieve", arguments)
        assert refused.is_error
        assert message in refused.content[0].text
        assert "pydantic" not in refused.content[0].text
    listed = said(await session.call_tool("collections", {}))
    assert [one["name"] for one in listed["collections"]] == ["zoo"]
    one = await session.read_resource("evenmesh://collections/zoo")
    assert json.loads(one.contents[0].text)["name"] == "zoo"


async def test_an_agent_asks_over_http(gateway: httpx.AsyncClient, scripted: ScriptedMesh) -> None:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    scripted.collections.kept["zoo"] = []
    async with (
        streamable_http_client(f"{gateway.base_url}/mcp") as (read, write, *_),
        ClientSession(read, write) as session,
    ):
        await use(session)
        scripted.orchestrator.error = Overloaded("too much work", 1.5)
        busy = await session.call_tool("retrieve", {"query": "oil", "collection": "c"})
        assert busy.is_error
        assert "try again in 1.5 s" in busy.content[0].text  # type: ignore[union-attr]
    stranger, ranked, known, *_ = scripted.orchestrator.requests
    assert (stranger.sampling.alpha, stranger.collection) == (2.0, "demo")
    assert not stranger.HasField("agent")
    assert not stranger.HasField("filter")
    assert not stranger.HasField("num_answers")
    assert (ranked.question, ranked.WhichOneof("source"), ranked.num_answers) == ("oil", None, 0)
    assert ranked.HasField("num_answers")
    assert not ranked.skip_observation
    assert (ranked.sampling.num_rankings, ranked.agent.task_id) == (2, "qa")
    assert (known.agent.task_id, known.agent.model_id) == ("qa", "mine")
    nothing = scripted.orchestrator.requests[3]
    assert nothing == pb.AskRequest(question="q")
    for request in (ranked, known):
        (condition,) = request.filter.conditions
        assert (condition.attribute, list(condition.any_of.values)) == ("provider", ["Co-op"])


async def test_what_nothing_is_found_for_has_no_ranking(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    nothing = [pb.AskResponse(retrieved=pb.Retrieved()), pb.AskResponse(ranked=pb.Ranked())]
    scripted.orchestrator.events = [*nothing, *scripted.orchestrator.events[-2:]]
    async with (
        streamable_http_client(f"{gateway.base_url}/mcp") as (read, write, *_),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        found = said(await session.call_tool("retrieve", {"query": "oil"}))
    assert (found["rankings"], found["passages"], found["shown"]) == ([], [], [])


_STARTED = """
import asyncio, sys
from pathlib import Path
import httpx
import pytest
from evenmesh_gateway.app import Gateway
from evenmesh_gateway.settings import GatewaySettings
from evenmesh_kit.telemetry.setup import Telemetry

LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
HEADERS = {"accept": "application/json, text/event-stream"}

async def main():
    gateway = Gateway(GatewaySettings(home=Path(sys.argv[1])), Telemetry.disabled())
    await gateway.start()
    print(sorted({"mcp", "mcp_types"} & set(sys.modules)))
    transport = httpx.ASGITransport(app=gateway.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        first = [client.post("/mcp", json=LIST, headers=HEADERS) for _ in range(3)]
        print([reply.status_code for reply in await asyncio.gather(*first)])
    await gateway.close()

asyncio.run(main())
"""


def test_the_first_requests_of_agents_load_what_serves_them(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _STARTED, str(tmp_path)], capture_output=True, text=True, timeout=240
    )
    assert done.stdout.splitlines() == ["[]", "[200, 200, 200]"], done.stderr


async def test_the_request_after_a_load_that_failed_tries_again(
    gateway: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tries = AgentRoutes._manager, iter([True])

    def failing(routes: AgentRoutes) -> Any:
        if next(tries, False):
            raise MemoryError
        return real(routes)

    monkeypatch.setattr(AgentRoutes, "_manager", failing)
    headers = {"accept": "application/json, text/event-stream"}
    listed = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    replies = [await gateway.post("/mcp", json=listed, headers=headers) for _ in range(2)]
    assert [reply.status_code for reply in replies] == [500, 200]


async def test_strangers_are_refused(open_gateway: Open, tmp_path: Path, scripted: ScriptedMesh) -> None:
    key, digest = new_key()
    add_entry(tmp_path / "k.toml", KeyEntry(name="a", sha256=digest, tenant="acme", roles=["ask"]))
    gateway = await open_gateway(api_keys=tmp_path / "k.toml")
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "retrieve", "arguments": {}},
    }
    headers = {"accept": "application/json, text/event-stream"}
    assert (await gateway.post("/mcp", json=body, headers=headers)).status_code == 401
    call = {**body, "params": {"name": "retrieve", "arguments": {"query": "q", "collection": "c"}}}
    mine = {**headers, "authorization": f"Bearer {key}"}
    reply = await gateway.post("/mcp", json=call, headers=mine)
    assert reply.status_code == 200, reply.text
    (seen,) = scripted.orchestrator.metadata
    assert (seen["authorization"], seen["evenmesh-tenant"]) == (f"Bearer {key}", "acme")
    feedback = {"query": "q", "passage_id": "p", "usefulness": 1.0, "task": "t"}
    call = {**body, "params": {"name": "give_feedback", "arguments": feedback}}
    denied = await gateway.post("/mcp", json=call, headers=mine)
    assert "PERMISSION_DENIED" in denied.text


async def test_an_agent_asks_on_standard_input(scripted: ScriptedMesh, tmp_path: Path) -> None:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    scripted.collections.kept["zoo"] = []
    environment = {
        **os.environ,
        "EVENMESH_HOME": str(tmp_path),
        "EVENMESH_API_KEY": "emk_of_the_agent",
        **{f"EVENMESH_CLIENT_{name.upper()}_TARGET": address for name, address in scripted.addresses.items()},
    }
    command = "from evenmesh_gateway.agents.command import mcp; mcp()"
    server = StdioServerParameters(command=sys.executable, args=["-c", command], env=environment)
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await use(session)
    assert {one["authorization"] for one in scripted.orchestrator.metadata} == {"Bearer emk_of_the_agent"}


def test_the_command_is_there() -> None:
    from evenmesh_gateway.commands import commands

    assert [one.__name__ for one in commands()] == ["mcp"]  # type: ignore[union-attr]
