"""Every public method as REST: JSON, events, NDJSON, and problems."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.trace import NoOpTracer
from prometheus_client import CollectorRegistry

from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb
from evenmesh.wire.errors import MeshError, Overloaded
from evenmesh_gateway.http.bodies import in_pieces, split_lines
from evenmesh_gateway.methods import public_methods
from evenmesh_kit.security.keys import KeyEntry, add_entry, new_key
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support.in_memory_telemetry import InMemoryTelemetry
from tests.support.methods import METHODS
from tests.support.scripted import ScriptedMesh
from tests.unit.gateway.conftest import Open

ASK = "/v1/evenmesh.orchestrator.v1.OrchestratorService/Ask"
RETRIEVE = "/v1/evenmesh.retriever.v1.RetrieverService/Retrieve"
LIST = "/v1/evenmesh.retriever.v1.CollectionService/ListCollections"
GET = "/v1/evenmesh.retriever.v1.CollectionService/GetCollection"
INGEST = "/v1/evenmesh.retriever.v1.CollectionService/Ingest"
NDJSON = {"content-type": "application/x-ndjson"}


def events_of(text: str) -> list[tuple[str, Any]]:
    """The events of a stream by name, without comments."""
    found = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            fields = dict(line.split(": ", 1) for line in lines)
            found.append((fields.get("event", ""), json.loads(fields["data"])))
    return found


def test_what_has_a_role_is_public() -> None:
    assert set(public_methods()) == set(METHODS)  # so far every method has one


async def test_a_call_is_json_in_and_out(gateway: httpx.AsyncClient, scripted: ScriptedMesh) -> None:
    body = {"query": "oil", "collection": "c", "sampling": {"num_rankings": 2, "seed": "7"}}
    reply = await gateway.post(RETRIEVE, json=body)
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
    found = reply.json()
    assert [one["id"] for one in found["passages"]] == ["p1", "p2", "p3"]
    assert found["rankings"]["logProbabilities"] == [-0.5, -1.5]
    (sent,) = scripted.retriever.requests
    assert (sent.query, sent.sampling.num_rankings, sent.sampling.seed) == ("oil", 2, 7)


async def test_an_empty_body_is_the_empty_message(gateway: httpx.AsyncClient) -> None:
    assert (await gateway.post(LIST)).json() == {}


async def test_replies_come_as_events(gateway: httpx.AsyncClient, scripted: ScriptedMesh) -> None:
    reply = await gateway.post(ASK, json={"question": "How often?"})
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = events_of(reply.text)
    assert found[-1] == ("end", {})
    script = [one for one in scripted.orchestrator.events if one.WhichOneof("event")]
    kinds = [next(iter(data)) for name, data in found if not name and data]
    assert kinds == [one.WhichOneof("event") for one in script]


async def test_requests_come_as_lines(gateway: httpx.AsyncClient, scripted: ScriptedMesh) -> None:
    lines = [
        {"collection": "zoo", "createIfMissing": True, "passages": [{"id": "p1", "text": "Otters"}]},
        {"passages": [{"id": "p2", "text": "Seals"}]},
        {"last": True},
    ]
    body = "\n".join(map(json.dumps, lines))
    reply = await gateway.post(INGEST, content=body, headers=NDJSON)
    assert (reply.status_code, reply.json()["added"]) == (200, "2")
    assert [one.id for one in scripted.collections.kept["zoo"]] == ["p1", "p2"]


async def test_a_bad_line_ends_the_call_and_is_named(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    body = '{"collection": "zoo"}\n\n{"passages": [{"id": 7}]}\n{"last": true}'
    reply = await gateway.post(INGEST, content=body, headers=NDJSON)
    assert reply.status_code == 400
    assert reply.json()["field"].startswith("line 2: passages")
    assert not scripted.collections.kept


async def test_an_ingest_that_its_service_refuses_gives_its_reason(gateway: httpx.AsyncClient) -> None:
    reply = await gateway.post(INGEST, content='{"collection": "Bad"}', headers=NDJSON)
    assert (reply.status_code, reply.json()["field"]) == (400, "collection")


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ("{", "body", "must be JSON"),
        ("[]", "body", "must be a JSON object"),
        ('{"nonsense": 1}', "nonsense", "is no field of RetrieveRequest; there are: query, collection"),
        ('{"sampling": {"alfa": 2}}', "sampling.alfa", "is no field of Sampling; there are: alpha, num_rank"),
        ('{"query": 7}', "query", "must be text, not 7"),
        ('{"sampling": {"alpha": "x"}}', "sampling.alpha", 'must be a number, not "x"'),
        ('{"depth": -1}', "depth", "must be a whole number from 0 to 2^32 - 1, not -1"),
        ('{"k": 1.5}', "k", "must be a whole number from 0 to 2^32 - 1, not 1.5"),
        ('{"sampling": {"seed": "-7"}}', "sampling.seed", 'from 0 to 2^64 - 1, not "-7"'),
        ('{"wholeCollection": "no"}', "wholeCollection", 'must be true or false, not "no"'),
        ('{"filter": {"conditions": [{}, {"attribute": 3}]}}', "filter.conditions.attribute", "must be text"),
        ('{"query": "\\ud800"}', "query", "holds half of a character"),
        pytest.param("[" * 100_000, "body", "less depth", id="deep"),
        pytest.param('{"query": ' + "9" * 5000 + "}", "body", "must be JSON", id="long number"),
    ],
)
async def test_what_is_no_request_is_refused_with_its_field(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh, body: str, field: str, words: str
) -> None:
    reply = await gateway.post(RETRIEVE, content=body, headers={"content-type": "application/json"})
    problem = reply.json()
    assert (reply.status_code, problem["reason"]) == (400, "INVALID_FIELD"), problem
    assert problem["field"] == field, problem
    assert words in problem["detail"]
    assert reply.headers["content-type"] == "application/problem+json"
    assert not scripted.retriever.requests


async def test_an_error_has_what_grpc_callers_get(gateway: httpx.AsyncClient) -> None:
    reply = await gateway.post(GET, json={"name": "nothing"})
    assert reply.status_code == 404
    assert reply.json() == {
        "title": "Not Found",
        "status": 404,
        "detail": "name: there is no collection 'nothing'",
        "reason": "NOT_FOUND",
        "code": "NOT_FOUND",
        "field": "name",
    }


async def test_who_asks_too_much_learns_when_to_come_again(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    scripted.retriever.error = Overloaded("too much work is in flight", 1.2)
    reply = await gateway.post(RETRIEVE, json={"query": "q"})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "2")
    assert reply.json()["retry_after_s"] == pytest.approx(1.2)


async def test_an_error_before_the_first_event_is_the_response_and_after_it_an_event(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    early = await gateway.post(ASK, json={"question": " "})
    assert (early.status_code, early.json()["field"]) == (400, "question")

    scripted.orchestrator.events = [orchestrator_pb.AskResponse(delta={"text": one}) for one in "ab"]
    scripted.orchestrator.error = Overloaded("too much", 2.0)
    late = await gateway.post(ASK, json={"question": "q"})
    (first, last) = events_of(late.text)
    assert (late.status_code, first) == (200, ("", {"delta": {"text": "a"}}))
    assert last[0] == "error"
    assert (last[1]["status"], last[1]["retry_after_s"]) == (429, 2.0)


async def test_a_body_is_bounded_before_it_is_read(open_gateway: Open) -> None:
    gateway = await open_gateway(max_body_bytes=2048)
    too_long = await gateway.post(RETRIEVE, content=b" " * 2049, headers={"content-type": "application/json"})
    assert (too_long.status_code, too_long.json()["reason"]) == (413, "TOO_LARGE")

    async def pieces() -> Any:
        for _ in range(3):
            yield b" " * 1024

    unstated = await gateway.post(RETRIEVE, content=pieces(), headers={"content-type": "application/json"})
    assert unstated.status_code == 413
    # A method's own bound is smaller: three times 4,096 bytes.
    named = await gateway.post(GET, content=b" " * 12_289, headers={"content-type": "application/json"})
    assert named.status_code == 413


async def test_a_line_is_bounded(open_gateway: Open) -> None:
    gateway = await open_gateway(max_body_bytes=1024)
    reply = await gateway.post(INGEST, content=b"{}\n" + b"1" * 1025, headers=NDJSON)
    assert (reply.status_code, reply.json()["reason"]) == (413, "TOO_LARGE")


async def test_headers_are_bounded(open_gateway: Open) -> None:
    gateway = await open_gateway(max_header_bytes=2048)
    reply = await gateway.get("/healthz", headers={"x-long": "x" * 70_000})
    assert (reply.status_code, reply.json()["reason"]) == (431, "HEADERS_TOO_LARGE")


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"content-type": "text/plain"}, "UNSUPPORTED_TYPE"),
        ({"content-type": "application/json", "content-encoding": "gzip"}, "UNSUPPORTED_ENCODING"),
    ],
)
async def test_what_is_not_read_here_is_refused(
    gateway: httpx.AsyncClient, headers: dict[str, str], reason: str
) -> None:
    reply = await gateway.post(LIST, content=b"{}", headers=headers)
    assert (reply.status_code, reply.json()["reason"]) == (415, reason)


async def test_paths_and_methods_that_are_not_here_are_problems(gateway: httpx.AsyncClient) -> None:
    lost = await gateway.get("/v2/nothing")
    assert (lost.status_code, lost.json()["reason"]) == (404, "NO_ROUTE")
    other = await gateway.get(LIST)
    assert (other.status_code, other.json()["reason"]) == (405, "NO_METHOD")
    assert "POST" in other.headers["allow"]
    assert "takes POST" in other.json()["detail"]


async def test_a_deadline_travels_on(gateway: httpx.AsyncClient, scripted: ScriptedMesh) -> None:
    scripted.orchestrator.hang, scripted.orchestrator.events = True, []
    # On a busy machine a short time may be over before the call has arrived.
    for timeout_s in ("0.2", "2", "20"):
        reply = await gateway.post(ASK, json={"question": "q"}, headers={"X-Request-Timeout": timeout_s})
        assert (reply.status_code, reply.json()["code"]) == (504, "DEADLINE_EXCEEDED")
        if scripted.orchestrator.requests:
            break
    assert await asyncio.to_thread(scripted.orchestrator.cancelled.wait, 30)


@pytest.mark.parametrize("header", ["0", "-1", "nan", "inf", "soon"])
async def test_a_time_is_seconds_above_zero(gateway: httpx.AsyncClient, header: str) -> None:
    reply = await gateway.post(LIST, headers={"X-Request-Timeout": header})
    assert (reply.status_code, reply.json()["field"]) == (400, "X-Request-Timeout")


async def test_a_client_that_hangs_up_ends_the_call(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    scripted.orchestrator.hang = True
    async with gateway.stream("POST", ASK, json={"question": "q"}) as reply:
        async for line in reply.aiter_lines():
            if "done" in line:
                break
    assert await asyncio.to_thread(scripted.orchestrator.cancelled.wait, 30)


async def test_a_client_that_hangs_up_before_the_first_event_ends_the_call(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    scripted.orchestrator.hang, scripted.orchestrator.events = True, []
    waiting = asyncio.create_task(gateway.post(ASK, json={"question": "q"}))
    while not scripted.orchestrator.requests:
        await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await asyncio.to_thread(scripted.orchestrator.cancelled.wait, 30)


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, str]:
    """A file of keys, and a key of someone who may ask."""
    key, digest = new_key()
    path = tmp_path / "keys.toml"
    add_entry(path, KeyEntry(name="asker", sha256=digest, tenant="acme", roles=["ask"]))
    return path, key


async def test_strangers_are_refused_before_their_bodies_are_read(
    open_gateway: Open, keys: tuple[Path, str], scripted: ScriptedMesh
) -> None:
    path, key = keys
    gateway = await open_gateway(api_keys=path)

    for header in ("", "authorization: Bearer emk_guessed\r\n"):
        reader, writer = await asyncio.open_connection(gateway.base_url.host, gateway.base_url.port)
        head = f"POST {RETRIEVE} HTTP/1.1\r\nhost: x\r\n{header}content-length: 1000\r\n\r\n"
        writer.write(head.encode())  # and no body
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"www-authenticate: Bearer" in answer
        writer.close()
    mine = {"authorization": f"Bearer {key}"}
    assert (await gateway.post(RETRIEVE, json={"query": "q"}, headers=mine)).status_code == 200
    denied = await gateway.post(INGEST, content="{}", headers={**mine, **NDJSON})
    assert (denied.status_code, denied.json()["reason"]) == (403, "PERMISSION_DENIED")
    twice = [("authorization", f"Bearer {key}"), ("authorization", "Bearer emk_other")]
    reply = await gateway.post(LIST, headers=twice)
    assert (reply.status_code, reply.json()["reason"]) == (401, "TWO_CREDENTIALS")


async def test_the_credential_and_the_trace_are_sent_on_and_nothing_else(
    open_gateway: Open, scripted: ScriptedMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENMESH_API_KEY", "emk_of_the_process")
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"authorization": "Bearer emk_mine", "traceparent": trace, "evenmesh-tenant": "other"}
    gateway = await open_gateway()
    for sent in (headers, {}):
        assert (await gateway.post(RETRIEVE, json={"query": "q"}, headers=sent)).status_code == 200
    mine, nobodys = scripted.retriever.metadata
    assert (mine["authorization"], mine["traceparent"]) == ("Bearer emk_mine", trace)
    assert not {"evenmesh-tenant", "authorization"} & set(nobodys)
    assert "evenmesh-tenant" not in mine


async def test_a_request_is_recorded_without_its_texts(
    open_gateway: Open, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = InMemoryTelemetry("gateway")
    gateway = await open_gateway(telemetry)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with caplog.at_level(logging.INFO, "evenmesh.gateway.access"):
        await gateway.post(RETRIEVE, json={"query": "a secret"}, headers={"traceparent": trace})
        await gateway.get("/another-secret?q=secret")
        await gateway.get("/v1/models/secret")
    records = [record for record in caplog.records if record.name == "evenmesh.gateway.access"]
    assert [(one.route, one.status) for one in records] == [  # type: ignore[attr-defined]
        (RETRIEVE, 200),
        ("unknown", 404),
        ("/v1/models/{name:path}", 404),
    ]
    assert not any("secret" in str(vars(one)) for one in records)
    spans = {span.name: span for span in telemetry.spans()}
    served, called = spans[f"POST {RETRIEVE}"], spans[RETRIEVE.removeprefix("/v1/")]
    assert f"{served.context.trace_id:032x}" == trace.split("-")[1]
    assert called.parent is not None
    assert called.parent.span_id == served.context.span_id
    points = telemetry.metrics()["http.server.request.duration"].data.data_points
    assert {point.attributes["http.route"] for point in points} >= {RETRIEVE, "unknown"}
    telemetry.shutdown()


async def test_what_bodies_and_uploads_take_is_reported(open_gateway: Open) -> None:
    telemetry = InMemoryTelemetry("gateway")
    gateway = await open_gateway(telemetry, max_decoded_bytes=2**24)
    refused = await gateway.post(RETRIEVE, json={"query": "a" * 2**24})
    assert refused.status_code == 413, refused.text
    measured = telemetry.metrics()
    units = {one.attributes["unit"] for one in measured["evenmesh.admission.capacity"].data.data_points}
    assert units == {"bytes of requests", "bytes of replies", "uploads", "bytes of uploads"}
    assert {
        tuple(one.attributes.values()): one.value
        for one in measured["evenmesh.admission.refused"].data.data_points
        if one.value
    } == {("bytes of requests", "OVER_CAPACITY"): 1}
    telemetry.shutdown()


async def test_methods_that_clients_make_up_are_one_label(
    open_gateway: Open, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = InMemoryTelemetry("gateway")
    gateway = await open_gateway(telemetry)
    with caplog.at_level(logging.INFO, "evenmesh.gateway.access"):
        for method in ("GET", "PATCH", "SECRET1", "SECRET2"):
            await gateway.request(method, "/nothing")
    points = telemetry.metrics()["http.server.request.duration"].data.data_points
    methods = {point.attributes["http.request.method"]: point.count for point in points}
    assert methods == {"GET": 1, "PATCH": 1, "_OTHER": 2}
    spans = [span for span in telemetry.spans() if "http.request.method" in span.attributes]
    assert [span.name for span in spans[-2:]] == ["_OTHER unknown"] * 2
    assert not any("SECRET" in f"{span.name} {span.attributes}" for span in spans)
    assert not any("SECRET" in str(vars(one)) for one in caplog.records if one.name.endswith(".access"))
    telemetry.shutdown()


async def test_requests_are_counted_as_alerts_ask_for_them(open_gateway: Open) -> None:
    reader = PrometheusMetricReader()
    meters = MeterProvider([reader])
    gateway = await open_gateway(Telemetry(NoOpTracer(), meters.get_meter("t"), enabled=True))
    await gateway.get("/healthz")
    registry = CollectorRegistry()
    registry.register(reader._collector)
    (counted,) = (
        sample
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "http_server_request_duration_seconds_count"
    )
    meters.shutdown()
    assert counted.labels.items() >= {
        "http_route": "/healthz", "http_request_method": "GET", "http_response_status_code": "200"
    }.items()  # fmt: skip


async def test_pages_of_other_origins_may_call_only_where_it_is_configured(open_gateway: Open) -> None:
    origin = {"origin": "https://app.example.com"}
    asks = {**origin, "access-control-request-method": "POST"}
    closed = await open_gateway()
    assert "access-control-allow-origin" not in (await closed.get("/healthz", headers=origin)).headers
    opened = await open_gateway(cors_origins="https://app.example.com")
    reply = await opened.options(LIST, headers=asks)
    assert reply.headers["access-control-allow-origin"] == "https://app.example.com"
    other = await opened.options(LIST, headers={**asks, "origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    "sent",
    [
        "content-type,x-grpc-web,x-user-agent",
        "authorization,content-type,x-stainless-lang,x-stainless-retry-count",
        "connect-protocol-version,connect-timeout-ms,content-type,traceparent,x-request-timeout",
    ],
    ids=["gRPC-Web", "OpenAI's client", "Connect"],
)
async def test_pages_may_send_the_headers_of_their_clients(open_gateway: Open, sent: str) -> None:
    opened = await open_gateway(cors_origins="https://app.example.com")
    asks = {"access-control-request-method": "POST", "access-control-request-headers": sent}
    reply = await opened.options(LIST, headers={"origin": "https://app.example.com", **asks})
    assert reply.status_code == 200, reply.text
    assert reply.headers["access-control-allow-headers"] == sent
    other = await opened.options(LIST, headers={"origin": "https://evil.example", **asks})
    assert other.status_code == 400


async def test_a_page_gets_in_under_no_other_name(open_gateway: Open) -> None:
    """A name that a page's owner points at this machine makes the gateway the page's own origin (DNS rebinding)."""
    gateway = await open_gateway()
    for name, status in (("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("evil.example", 421)):
        assert (await gateway.get("/openapi.json", headers={"host": name})).status_code == status, name
    named = await open_gateway(hosts="Mesh.example")
    for name, status in (("mesh.example:443", 200), ("localhost", 421)):
        assert (await named.get("/openapi.json", headers={"host": name})).status_code == status, name


async def test_health_answers_under_any_name(open_gateway: Open) -> None:
    """A kubelet asks a pod by its address, which is none of the names by which clients call."""
    gateway = await open_gateway(hosts="mesh.example")
    for path in ("/healthz", "/readyz"):
        assert (await gateway.get(path, headers={"host": "10.1.2.3:7080"})).status_code == 200


async def test_health_answers_although_too_many_connections_are_open(open_gateway: Open) -> None:
    """Else idle connections alone would have Kubernetes take a pod out of its Service, and then end it."""
    gateway = await open_gateway(max_connections=16)
    host, port = gateway.base_url.host, gateway.base_url.port
    held = [await asyncio.open_connection(host, port) for _ in range(16)]
    for reader, writer in held:  # each has been answered, and rests
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
    for path in ("/healthz", "/readyz"):
        assert (await gateway.get(path)).status_code == 200
    refused = await gateway.get("/openapi.json")
    assert (refused.status_code, refused.json()["reason"]) == (503, "TOO_MANY_CONNECTIONS")
    assert refused.headers["connection"] == "close"
    for _, writer in held:
        writer.close()
    while (await gateway.get("/openapi.json")).status_code != 200:  # until the server has noticed
        await asyncio.sleep(0.01)


async def test_a_head_that_does_not_come_closes_its_connection(open_gateway: Open) -> None:
    gateway = await open_gateway(head_s=0.2)
    host, port = gateway.base_url.host, gateway.base_url.port
    for sent in (b"", b"GET /healthz HTTP/1.1\r\nx-slow: "):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()


async def test_a_drain_lets_streams_end_and_takes_nothing_new(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    scripted.orchestrator.events = [orchestrator_pb.AskResponse(delta={"text": one}) for one in "ab"]
    scripted.orchestrator.release = threading.Event()
    asking = asyncio.create_task(gateway.post(ASK, json={"question": "q"}))
    while not scripted.orchestrator.requests:
        await asyncio.sleep(0.01)
    stopping = asyncio.create_task(gateway.server.stop())  # type: ignore[attr-defined]
    refused = False
    while not refused:
        async with httpx.AsyncClient(base_url=gateway.base_url) as other:
            try:
                await other.get("/healthz")
            except httpx.TransportError:  # refused, or accepted by the system and then closed
                refused = True
    scripted.orchestrator.release.set()
    said = [data for _, data in events_of((await asking).text)]
    assert said == [{"delta": {"text": "a"}}, {"delta": {"text": "b"}}, {}]
    await stopping


async def test_a_service_that_is_away_is_unavailable_without_its_address(
    open_gateway: Open, scripted: ScriptedMesh
) -> None:
    gateway = await open_gateway(retriever_target="127.0.0.1:1")
    reply = await gateway.post(LIST)
    assert (reply.status_code, reply.json()["reason"]) == (503, "UNREACHABLE")
    assert "127.0.0.1" not in reply.text


def test_every_code_has_a_status() -> None:
    import grpc

    from evenmesh_gateway.http.problems import STATUS, status_of

    assert set(STATUS) == set(grpc.StatusCode) - {grpc.StatusCode.OK}
    assert status_of(MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVER_CAPACITY", "too large")) == 413


@pytest.mark.parametrize(
    ("body", "field", "must"),
    [
        ({"question": "q", "sampling": ""}, "sampling", "be a JSON object"),
        ({"question": "q", "sampling": []}, "sampling", "be a JSON object"),
        ({"question": "q", "filter": []}, "filter", "be a JSON object"),
        ({"question": "q", "candidates": {"passages": [5]}}, "candidates.passages[0]", "be a JSON object"),
        ({"question": "q", "candidates": {"passages": {}}}, "candidates.passages", "be a JSON list"),
        ({"question": "q", "labels": {"references": "a"}}, "labels.references", "be a JSON list"),
        ([], "body", "be a JSON object"),
    ],
)
async def test_what_is_no_object_or_list_is_refused_by_the_name_of_its_field(
    gateway: httpx.AsyncClient, body: Any, field: str, must: str
) -> None:
    reply = await gateway.post(ASK, json=body)
    assert (reply.status_code, reply.json()["field"]) == (400, field)
    assert reply.json()["detail"] == f"{field}: must {must}"


async def test_an_error_repeats_little_of_a_request(gateway: httpx.AsyncClient) -> None:
    reply = await gateway.post(ASK, json={"Failed to parse x field: " * 60_000: 1})
    assert reply.status_code == 400
    assert len(reply.content) < 2_000


@given(
    st.lists(st.sampled_from([b"{}", b" ", b"", b"\r", b"ab", b"{}\r"]), max_size=12),
    st.lists(st.integers(1, 7), min_size=40, max_size=40),
)
def test_lines_are_those_of_the_whole_body_however_it_comes(lines: list[bytes], sizes: list[int]) -> None:
    body = b"\n".join(lines)

    async def pieces() -> AsyncIterator[bytes]:
        begin = 0
        for size in sizes:
            yield body[begin : begin + size]
            begin += size

    async def read(given: AsyncIterator[bytes]) -> list[bytes]:
        return [line.strip() async for line in split_lines(given, 100)]

    expected = [line.strip() for line in body.split(b"\n") if line.strip()]
    assert asyncio.run(read(pieces())) == expected
    assert asyncio.run(read(in_pieces(body))) == expected
