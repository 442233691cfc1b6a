"""The OpenAPI document says what the gateway serves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
from jsonschema import Draft202012Validator

from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb
from evenmesh.wire.errors import Overloaded
from evenmesh_gateway.methods import public_methods
from tests.support.scripted import ScriptedMesh


async def test_every_public_method_is_described_within_its_bounds(gateway: httpx.AsyncClient) -> None:
    reply = await gateway.get("/openapi.json")
    document = reply.json()
    assert document["openapi"] == "3.1.0"
    assert {f"/v1{path}" for path in public_methods()} <= set(document["paths"])
    paths = {f"/v1/{one}" for one in ("chat/completions", "embeddings", "models", "rerank", "responses")}
    assert paths <= set(document["paths"])
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    ask = schemas["evenmesh.orchestrator.v1.AskRequest"]["properties"]
    assert ask["question"] == {
        "type": "string",
        "maxLength": 8192,
        "description": "The question; 1 to 8,192 bytes, not only white space.",
    }
    assert ask["turns"]["maxItems"] == 100
    ids = schemas["evenmesh.retriever.v1.DeletePassagesRequest"]["properties"]["passageIds"]
    assert ids["items"] == {"type": "string", "maxLength": 256}
    assert ids["maxItems"] == 10_000


async def test_the_comments_of_the_contract_are_its_descriptions(gateway: httpx.AsyncClient) -> None:
    document = (await gateway.get("/openapi.json")).json()
    asking = document["paths"]["/v1/evenmesh.retriever.v1.RetrieverService/Embed"]["post"]
    assert asking["summary"].startswith("Encodes texts with the encoder of the `dense` retriever")
    assert "Needs one of the roles ask, ingest" in asking["description"]
    schemas = document["components"]["schemas"]
    found = schemas["evenmesh.retriever.v1.RetrieveResponse"]["properties"]["inclusionProbabilities"]
    assert "Range: [0, 1]." in found["description"]
    kind = schemas["evenmesh.retriever.v1.TextKind"]
    assert "`TEXT_KIND_QUERY`: A text that is searched by." in kind["description"]
    assert {one["name"] for one in document["tags"]} >= {
        method.service for method in public_methods().values()
    }


def test_the_committed_comments_are_those_of_the_protos() -> None:
    script = Path(__file__).parents[3] / "services" / "gateway" / "generate_descriptions.py"
    subprocess.run([sys.executable, script, "--check"], check=True, timeout=120)


async def test_every_reference_is_resolved(gateway: httpx.AsyncClient) -> None:
    text = (await gateway.get("/openapi.json")).text
    schemas = json.loads(text)["components"]["schemas"]
    wanted = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert wanted
    assert wanted <= set(schemas)


async def test_a_reply_is_as_it_is_described(gateway: httpx.AsyncClient) -> None:
    document = (await gateway.get("/openapi.json")).json()
    path = "/v1/evenmesh.retriever.v1.RetrieverService/Retrieve"
    body = {"query": "oil", "sampling": {"numRankings": 2, "seed": "7", "alpha": "Infinity"}}
    operation = document["paths"][path]["post"]
    request = operation["requestBody"]["content"]["application/json"]["schema"]
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
    for schema, value in ((request, body), (answer, (await gateway.post(path, json=body)).json())):
        Draft202012Validator({**schema, "components": document["components"]}).validate(value)


async def test_events_are_as_they_are_described(gateway: httpx.AsyncClient, scripted: ScriptedMesh) -> None:
    document = (await gateway.get("/openapi.json")).json()
    path = "/v1/evenmesh.orchestrator.v1.OrchestratorService/Ask"
    answer = document["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    described = Draft202012Validator(
        {**answer["properties"]["data"]["contentSchema"], "components": document["components"]}
    )
    scripted.orchestrator.events = [orchestrator_pb.AskResponse(delta={"text": one}) for one in "ab"]
    scripted.orchestrator.error = Overloaded("too much", 2.0)
    text = (await gateway.post(path, json={"question": "q"})).text
    data = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data")]
    assert ["delta" in one for one in data] == [True, False]
    for one in data:
        described.validate(one)
    assert not described.is_valid({"delta": {"text": "a"}, "unheard_of": 1})
