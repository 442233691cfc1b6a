"""OpenAI's embeddings by its own client, before the scripted mesh."""

from __future__ import annotations

import base64
import struct
from typing import Any

import httpx
import openai
import pytest

from evenmesh.retriever.v1 import retriever_service_pb2 as pb
from evenmesh.wire.errors import InvalidField, Overloaded
from evenmesh_gateway.openai.embeddings import MAX_INPUTS, EmbeddingRequest, calls_of
from tests.support.scripted import ScriptedMesh

PATH = "/v1/embeddings"


@pytest.mark.parametrize("form", ["float", "base64"])
async def test_texts_have_their_vectors_in_their_order(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh, form: Any
) -> None:
    client = openai.AsyncOpenAI(base_url=f"{gateway.base_url}/v1", api_key="k", max_retries=0)
    found = await client.embeddings.create(
        model="minilm",
        input=["one two", "one two three"],
        encoding_format=form,
        dimensions=2,
        extra_body={"input_type": "search_query"},
    )
    values = [one.embedding for one in found.data]
    if form == "base64":
        values = [list(struct.unpack("<2f", base64.b64decode(one))) for one in values]  # type: ignore[arg-type]
    assert values[0] == pytest.approx([0.6, 0.7])
    assert values[1] == pytest.approx([0.6, 1.3])
    assert [one.index for one in found.data] == [0, 1]
    assert (found.model, found.usage.prompt_tokens, found.usage.total_tokens) == ("minilm", 5, 5)
    assert found.evenmesh == {"fingerprint": "f1", "max_tokens": 256}  # type: ignore[attr-defined]
    assert scripted.retriever.embedded == [
        pb.EmbedRequest(
            texts=["one two", "one two three"], kind=pb.TEXT_KIND_QUERY, model="minilm", dimension=2
        )
    ]


async def test_one_text_is_a_list_of_one(gateway: httpx.AsyncClient, scripted: ScriptedMesh) -> None:
    found = (await gateway.post(PATH, json={"model": "evenmesh", "input": "one"})).json()
    assert [one["index"] for one in found["data"]] == [0]
    assert scripted.retriever.embedded == [pb.EmbedRequest(texts=["one"])]


async def test_many_texts_are_several_calls_one_after_the_other(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    texts = [str(at) * (1 + at % 3) for at in range(150)]
    found = (await gateway.post(PATH, json={"input": texts})).json()
    assert [one["embedding"][1] for one in found["data"]] == pytest.approx([len(one) / 10 for one in texts])
    assert [text for call in scripted.retriever.embedded for text in call.texts] == texts
    assert len(scripted.retriever.embedded) == 3


def test_calls_are_small_in_bytes_too() -> None:
    asked = EmbeddingRequest(input=["é" * 8_000, "a", "b" * 60_000, "c"])
    assert [[len(text) for text in call.texts] for call in calls_of(asked)] == [[8_000, 1], [60_000], [1]]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"input": [1, 2, 3]}, "input"),
        ({"input": [[1, 2], [3]]}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", "  "]}, "input[1]"),
        ({"input": "é" * 40_000}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "truncate": "NONE"}, "truncate"),
        ({}, "input"),
    ],
    ids=[
        "tokens",
        "lists of tokens",
        "none",
        "white space",
        "an empty one",
        "large",
        "many",
        "no numbers",
        "another form",
        "unknown",
        "nothing",
    ],
)
async def test_what_is_no_text_is_refused_before_a_call(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh, body: dict[str, Any], field: str | None
) -> None:
    reply = await gateway.post(PATH, json=body)
    assert reply.status_code == 400
    problem = reply.json()
    assert problem["error"]["param"] == field
    if "tokens" in problem["detail"]:
        assert "check_embedding_ctx_length=False" in problem["detail"]
    assert not scripted.retriever.embedded


async def test_an_error_of_the_encoder_is_the_reply(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    scripted.retriever.error = Overloaded("too much work", 2.5)
    reply = await gateway.post(PATH, json={"input": "one"})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "3")
    assert reply.json()["error"]["type"] == "rate_limit_error"


async def test_another_dimension_is_refused_by_the_name_that_clients_know(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    scripted.retriever.error = InvalidField("dimension", "must be 384")
    reply = await gateway.post(PATH, json={"input": "one", "dimensions": 8})
    assert (reply.status_code, reply.json()["detail"]) == (400, "dimensions: must be 384")
