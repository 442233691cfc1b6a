"""OpenAI's API by its own client, before the scripted mesh."""

from __future__ import annotations

import asyncio
import json
import re
import threading

import httpx
import openai
import pytest

from evenmesh.common.v1 import common_pb2
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField, Overloaded
from evenmesh_gateway.http import events
from evenmesh_gateway.openai import requests, routes
from tests.support.scripted import Ask, ScriptedMesh

SAID = [{"role": "user", "content": "How often?"}]


def client_of(gateway: httpx.AsyncClient) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.base_url}/v1", api_key="k", max_retries=0)


async def test_a_chat_completion_has_the_answer_its_citations_and_who_was_shown(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    client = client_of(gateway)
    done = await client.chat.completions.create(
        model="evenmesh/demo", messages=SAID, extra_body={"evenmesh": {"k": 2}}
    )
    (choice,) = done.choices
    assert (choice.message.content, choice.finish_reason) == ("every 200 kilometres", "stop")
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (180, 8, 188)
    assert choice.message.annotations is not None
    (cited,) = choice.message.annotations
    assert (cited.url_citation.url, cited.url_citation.title) == ("evenmesh://demo/p1", "Oil it")
    assert (cited.url_citation.start_index, cited.url_citation.end_index) == (0, 20)
    extension = done.evenmesh  # type: ignore[attr-defined]
    assert [(one["passage_id"], one["provider"], one["exposure"]) for one in extension["shown"]] == [
        ("p1", "Co-op", 1.0),
        ("p2", "Club", 0.5),
    ]
    assert [one["name"] for one in extension["providers"]] == ["Co-op", "Club"]
    assert extension["report"]["ee_d_norm"] == 0.25
    assert extension["degradations"][0]["reason"] == "UPSTREAM_UNAVAILABLE"
    assert (extension["ask_id"], extension["stage_ms"]) == ("a1", {"retrieve": 12.5})
    assert len(extension["answers"]) == 2
    assert scripted.orchestrator.requests == [pb.AskRequest(question="How often?", collection="demo", k=2)]


async def test_a_stream_says_the_same_piece_by_piece(gateway: httpx.AsyncClient) -> None:
    client = client_of(gateway)
    whole = await client.chat.completions.create(model="evenmesh", messages=SAID)
    stream = await client.chat.completions.create(
        model="evenmesh", messages=SAID, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert pieces == ["", "every ", "200 kilometres", ""]
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1
    last = chunks[-2]
    assert last.choices[0].finish_reason == "stop"
    assert last.evenmesh == whole.evenmesh  # type: ignore[attr-defined]
    assert last.choices[0].delta.annotations[0]["url_citation"]["title"] == "Oil it"  # type: ignore[attr-defined]


async def test_a_response_and_its_stream(gateway: httpx.AsyncClient) -> None:
    client = client_of(gateway)
    whole = await client.responses.create(model="evenmesh", input="How often?")
    assert (whole.output_text, whole.status) == ("every 200 kilometres", "completed")
    assert whole.usage is not None
    assert whole.usage.total_tokens == 188
    assert whole.output[0].content[0].annotations[0].title == "Oil it"  # type: ignore[union-attr, index]
    events = [one async for one in await client.responses.create(model="evenmesh", input=SAID, stream=True)]
    assert [one.type for one in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.annotation.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [one.sequence_number for one in events] == list(range(len(events)))
    assert events[-1].response.output_text == "every 200 kilometres"  # type: ignore[union-attr]
    assert events[-1].response.evenmesh == whole.evenmesh  # type: ignore[union-attr, attr-defined]


async def test_an_ensemble_says_its_winner_alone(gateway: httpx.AsyncClient, scripted: ScriptedMesh) -> None:
    vote = Ask(vote=pb.VoteEvent(answer="often", member="B", final=True))
    for at, member in ((4, "A"), (5, "B")):
        scripted.orchestrator.events[at].answer.member = member
    scripted.orchestrator.events.insert(6, vote)
    body = {"messages": SAID, "stream": True, "evenmesh": {"ensemble": {"expressions": ["A", "B"]}}}
    reply = await gateway.post("/v1/chat/completions", json=body)
    assert "every 200" not in "".join(
        choice["delta"].get("content", "")
        for line in reply.text.splitlines()
        if line.startswith("data: {")
        for choice in json.loads(line[6:])["choices"]
    )
    done = await client_of(gateway).chat.completions.create(
        model="evenmesh", messages=SAID, extra_body={"evenmesh": body["evenmesh"]}
    )
    assert done.choices[0].message.content == "often"


async def test_a_stream_whose_answer_broke_off_does_not_end_well(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    """Another ranking has an answer, but what the client shows is a piece of the first one's."""
    retrieved, ranked, delta, _, first, second, *rest = scripted.orchestrator.events
    why = common_pb2.ItemError(
        code="UNAVAILABLE", reason="UPSTREAM_UNAVAILABLE", message="the generator left"
    )
    broken = Ask(failed=pb.AnswerFailed(samples=[0], error=why))
    client = client_of(gateway)
    said = ""
    scripted.orchestrator.events = [retrieved, ranked, delta, broken, second, *rest]
    with pytest.raises(openai.APIError, match="the generator left"):
        async for one in await client.chat.completions.create(model="evenmesh", messages=SAID, stream=True):
            said += one.choices[0].delta.content or ""
    assert said == "every "
    whole = await client.chat.completions.create(model="evenmesh", messages=SAID)
    assert whole.choices[0].message.content == "often"
    broken.failed.samples[:] = [1]
    scripted.orchestrator.events = [retrieved, ranked, delta, first, broken, *rest]
    stream = await client.chat.completions.create(model="evenmesh", messages=SAID, stream=True)
    assert [one async for one in stream][-1].choices[0].finish_reason == "stop"


async def test_an_ask_without_an_answer_is_an_error(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    why = common_pb2.Degradation(
        stage=common_pb2.STAGE_GENERATE, reason="UPSTREAM_UNAVAILABLE", message="the generator is away"
    )
    kept = [one for one in scripted.orchestrator.events if one.WhichOneof("event") not in ("answer", "delta")]
    scripted.orchestrator.events = [*kept[:2], Ask(degraded=why), *kept[2:]]
    client = client_of(gateway)
    with pytest.raises(openai.InternalServerError) as failed:
        await client.chat.completions.create(model="evenmesh", messages=SAID)
    assert (failed.value.status_code, failed.value.code) == (503, "UPSTREAM_UNAVAILABLE")
    with pytest.raises(openai.APIError, match="the generator is away"):
        [
            one
            async for one in await client.chat.completions.create(
                model="evenmesh", messages=SAID, stream=True
            )
        ]


async def test_errors_are_those_of_the_client(gateway: httpx.AsyncClient, scripted: ScriptedMesh) -> None:
    client = client_of(gateway)
    with pytest.raises(openai.NotFoundError) as lost:
        await client.chat.completions.create(model="gpt-4o", messages=SAID)
    assert (lost.value.param, lost.value.code) == ("model", "NOT_FOUND")
    with pytest.raises(openai.BadRequestError) as wrong:
        await client.chat.completions.create(model="evenmesh", messages=SAID, n=3)
    assert wrong.value.param == "n"
    scripted.orchestrator.events, scripted.orchestrator.error = [], Overloaded("too much work", 2.5)
    with pytest.raises(openai.RateLimitError) as busy:
        await client.chat.completions.create(model="evenmesh", messages=SAID)
    assert busy.value.response.headers["retry-after"] == "3"
    for field, given, param in (
        ("k", {}, "evenmesh.k"),
        ("question", {}, "input"),
        ("turns[1].question", {}, "input"),
        ("collection", {"model": "evenmesh/nope"}, "model"),
        ("collection", {"extra_body": {"evenmesh": {"collection": "nope"}}}, "evenmesh.collection"),
        ("decoding.max_new_tokens", {"max_output_tokens": 9}, "max_output_tokens"),
        ("decoding.temperature", {"temperature": 9}, "temperature"),
        ("decoding.num_beams", {}, "evenmesh.decoding.num_beams"),
    ):
        scripted.orchestrator.error = InvalidField(field, "must be another")
        with pytest.raises(openai.BadRequestError, match=re.escape(f"- {param}: must be another")) as refused:
            await client.responses.create(**{"model": "evenmesh", "input": "q", **given})  # type: ignore[call-overload]
        assert refused.value.param == param
    half = {"messages": [{"role": "user", "content": "\ud83d chain"}]}
    cut = await gateway.post("/v1/chat/completions", content=json.dumps(half).encode())
    assert (cut.status_code, "half of a character" in cut.json()["detail"]) == (400, True)
    whole = {"messages": [{"role": "user", "content": "\U0001f6b2 chain"}]}
    scripted.orchestrator.error = None
    assert (await gateway.post("/v1/chat/completions", content=json.dumps(whole).encode())).status_code != 400


async def test_paths_of_other_apis_say_what_to_use(gateway: httpx.AsyncClient) -> None:
    client = client_of(gateway)
    for call, said in (
        (client.completions.create(model="evenmesh", prompt="q"), "use /v1/chat/completions"),
        (client.responses.retrieve("resp_1"), "no response is stored here"),
        (client.responses.delete("resp_1"), "no response is stored here"),
        (client.conversations.create(), "no response is stored here"),
    ):
        with pytest.raises(openai.NotFoundError, match=said) as lost:
            await call
        assert lost.value.code == "NO_ROUTE"
    without = openai.AsyncOpenAI(base_url=str(gateway.base_url), api_key="k", max_retries=0)
    with pytest.raises(openai.NotFoundError, match="must end with /v1: this path is /v1/chat/completions"):
        await without.chat.completions.create(model="evenmesh", messages=SAID)
    for path in ("/v1/messages", "/v2/chat", "/v2/embed"):
        reply = await gateway.post(path, json={})
        assert (reply.status_code, "use /v1/" in reply.json()["error"]["message"]) == (404, True)


async def test_the_longest_answer_is_at_most_the_models(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    client = client_of(gateway)
    for model, given in (("evenmesh", 1024), ("evenmesh", 100), ("evenmesh/-/-/-/large", 9_999)):
        await client.chat.completions.create(model=model, messages=SAID, max_tokens=given)
    named = {"decoding": {"max_new_tokens": 1000}}
    await client.chat.completions.create(model="evenmesh", messages=SAID, extra_body={"evenmesh": named})
    asked = [one.decoding.max_new_tokens for one in scripted.orchestrator.requests]
    assert asked == [511, 100, 4096, 1000]


async def test_every_name_that_can_be_asked_can_be_looked_up(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    scripted.collections.kept["zoo"] = []
    client = client_of(gateway)
    for name in ("evenmesh", "evenmesh/zoo", "evenmesh/zoo/-/none", "evenmesh/-/-/-/large"):
        assert (await client.models.retrieve(name)).id == name
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("evenmesh/nope")


async def test_an_error_after_the_first_chunk_ends_the_stream(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    scripted.orchestrator.error = Overloaded("too much work", 2.5)
    client = client_of(gateway)
    with pytest.raises(openai.APIError, match="too much work"):
        [
            one
            async for one in await client.chat.completions.create(
                model="evenmesh", messages=SAID, stream=True
            )
        ]
    with pytest.raises(openai.APIError, match="too much work"):
        [one async for one in await client.responses.create(model="evenmesh", input="q", stream=True)]


async def test_an_error_before_the_first_text_of_a_stream_is_the_response(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    """Clients wait and ask again by the status, and by nothing in a stream."""
    scripted.orchestrator.events = scripted.orchestrator.events[:2]
    scripted.orchestrator.error = Overloaded("too much work", 2.5)
    client = client_of(gateway)
    with pytest.raises(openai.RateLimitError, match="too much work") as refused:
        await client.chat.completions.create(model="evenmesh", messages=SAID, stream=True)
    assert refused.value.response.headers["retry-after"] == "3"
    with pytest.raises(openai.RateLimitError, match="too much work"):
        await client.responses.create(model="evenmesh", input="q", stream=True)


async def test_a_stream_begins_in_a_long_silence_and_then_its_error_is_an_event(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_SILENCE_S", 0.001)
    scripted.orchestrator.hang, scripted.orchestrator.events = True, scripted.orchestrator.events[:2]
    body = {"messages": SAID, "stream": True}
    async with gateway.stream(
        "POST", "/v1/chat/completions", json=body, headers={"X-Request-Timeout": "2"}
    ) as reply:
        assert reply.status_code == 200
        lines = [line async for line in reply.aiter_lines() if line.startswith("data: ")]
    assert (json.loads(lines[0][6:])["error"]["code"], lines[1:]) == ("DEADLINE_EXCEEDED", ["data: [DONE]"])


async def test_a_path_that_is_not_here_is_an_error_that_clients_read(gateway: httpx.AsyncClient) -> None:
    """OpenAI's client for Node shows the member ``error`` alone."""
    with pytest.raises(openai.NotFoundError, match="there is nothing here") as lost:
        await client_of(gateway).images.generate(prompt="a bike", model="evenmesh")
    assert lost.value.code == "NO_ROUTE"
    far = await gateway.get("/v1/models", headers={"x-long": "x" * 70_000})
    assert (far.status_code, far.json()["error"]["code"]) == (431, "HEADERS_TOO_LARGE")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank"])
async def test_another_method_is_an_error_that_clients_read(gateway: httpx.AsyncClient, path: str) -> None:
    reply = await gateway.get(path)
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    assert reply.json()["error"] == {
        "message": reply.json()["detail"],
        "type": "invalid_request_error",
        "param": None,
        "code": "NO_METHOD",
    }


async def test_a_client_that_leaves_its_stream_frees_the_model(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    scripted.orchestrator.hang = True
    stream = await client_of(gateway).chat.completions.create(model="evenmesh", messages=SAID, stream=True)
    async for _ in stream:
        break
    await stream.close()
    assert await asyncio.to_thread(scripted.orchestrator.cancelled.wait, 30)


async def test_a_client_that_leaves_before_its_answer_frees_the_model(
    gateway: httpx.AsyncClient, scripted: ScriptedMesh
) -> None:
    scripted.orchestrator.hang = True
    asking = asyncio.create_task(client_of(gateway).chat.completions.create(model="evenmesh", messages=SAID))
    while not scripted.orchestrator.requests:
        await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert await asyncio.to_thread(scripted.orchestrator.cancelled.wait, 30)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": SAID}),
        ("/v1/responses", {"input": "How often?"}),
        ("/v1/rerank", {"query": "q", "documents": ["a"]}),
        ("/v1/embeddings", {"input": "a"}),
    ],
)
async def test_large_bodies_are_converted_in_threads(
    gateway: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, object]
) -> None:
    """A conversion takes as long as its client wants, and all others would wait for it."""
    converted: list[tuple[str, bool]] = []

    def watch(where: object, name: str) -> None:
        convert = getattr(where, name)

        def watched(*args: object) -> object:
            converted.append((name, threading.current_thread() is threading.main_thread()))
            return convert(*args)

        monkeypatch.setattr(where, name, watched)

    for where, name in ((requests, "read"), (requests, "ask_of"), (routes, "message_of")):
        watch(where, name)
    for spaces, on_loop in ((0, True), (20_000, False)):
        converted.clear()
        content = json.dumps(body) + " " * spaces
        await gateway.post(path, content=content, headers={"content-type": "application/json"})
        further = {"/v1/rerank": ["message_of"], "/v1/embeddings": []}.get(path, ["ask_of"])
        assert converted == [(name, on_loop) for name in ("read", *further)]
