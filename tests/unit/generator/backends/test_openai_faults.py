"""What callers get when an OpenAI-compatible server fails: the table of docs/guides/openai-servers.md, a test a row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from evenmesh.wire.deadline import NEVER, Deadline
from evenmesh.wire.errors import DeadlineExceeded, InvalidField, MeshError, Overloaded
from evenmesh_generator.backends.openai.model import OpenAiModel
from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    Decoding,
    FinishReason,
    GenerationRequest,
    Passage,
    RelevanceRequest,
)
from evenmesh_generator.ports import Cancellation, Cancelled
from tests.support import scripted_openai
from tests.support.scripted_http import HttpReply, HttpRequest, Script, ScriptedHttp, hang, replying, serving

LONG = 60.0
"""More than any of these tests takes: passes only where something hangs. Seconds."""
PASSAGES = tuple(Passage(str(at), f"title {at}", f"text {at}") for at in range(3))
REQUEST = GenerationRequest(
    "a question", PASSAGES, augmentation=Augmentation.IN_PROMPT, decoding=Decoding(max_new_tokens=8)
)


@asynccontextmanager
async def opened(fault: Script | None, **fields: Any) -> AsyncIterator[tuple[OpenAiModel, ScriptedHttp]]:
    """A model whose server begins to fail once it is open; the list of models stays."""
    sound = scripted_openai.made_up()
    async with serving(sound) as server, scripted_openai.opened(server.url, **fields) as (model,):

        async def script(request: HttpRequest, reply: HttpReply) -> None:
            await (sound if fault is None or request.path == "/v1/models" else fault)(request, reply)

        server.script = script
        server.requests.clear()
        yield model, server


async def streamed(model: OpenAiModel, deadline: Deadline = NEVER) -> Answer:
    """The answer of a stream."""
    parts = []
    async with aclosing(model.generate_stream(REQUEST, Cancellation(deadline))) as stream:
        parts = [part async for part in stream]
    assert isinstance(parts[-1], Answer)
    return parts[-1]


async def whole(model: OpenAiModel, deadline: Deadline = NEVER) -> None:
    await model.generate(REQUEST, Cancellation(deadline))


async def judged(model: OpenAiModel, deadline: Deadline = NEVER) -> None:
    """Judge three passages."""
    await model.score_relevance(RelevanceRequest("a question", PASSAGES), Cancellation(deadline))


CALLS: dict[str, Callable[..., Any]] = {"stream": streamed, "batch": whole, "judgement": judged}


async def _kill(_: HttpRequest, reply: HttpReply) -> None:
    reply.kill()


async def _large(_: HttpRequest, reply: HttpReply) -> None:
    await reply.head(200)
    while True:
        await reply.raw(b"data: " + b" " * 65_536 + b"\n")


@dataclass(frozen=True)
class Fault:
    """What a server does, and what callers get of it."""

    script: Script
    code: grpc.StatusCode
    reason: str
    retry_after_s: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)


C = grpc.StatusCode
FAULTS = {
    "429": Fault(replying(429, {}, retry_after="7"), C.RESOURCE_EXHAUSTED, "OVERLOADED", 7.0),
    "503": Fault(replying(503, "", retry_after="3"), C.UNAVAILABLE, "REMOTE_UNAVAILABLE", 3.0),
    "500": Fault(replying(500, {"error": {"message": "no"}}), C.UNAVAILABLE, "REMOTE_UNAVAILABLE", 1.0),
    "kill": Fault(_kill, C.UNAVAILABLE, "REMOTE_UNAVAILABLE", 1.0),
    "silence": Fault(hang, C.UNAVAILABLE, "REMOTE_SILENT", 1.0, {"remote_idle_s": 0.2}),
    "wrong JSON": Fault(replying(200, "data: {\n\ndata: {\n\n"), C.UNAVAILABLE, "REMOTE_MALFORMED_REPLY"),
    "wrong shape": Fault(replying(200, 'data: {"choices": 3}\n\n'), C.UNAVAILABLE, "REMOTE_MALFORMED_REPLY"),
    "oversized": Fault(
        _large, C.UNAVAILABLE, "REMOTE_REPLY_TOO_LARGE", None, {"remote_reply_bytes": 100_000}
    ),
    "redirect": Fault(replying(308, "", location="/v2"), C.FAILED_PRECONDITION, "REMOTE_REDIRECTED"),
    "wrong key": Fault(replying(401, {}), C.FAILED_PRECONDITION, "REMOTE_KEY_REFUSED"),
    "forbidden": Fault(replying(403, {}), C.FAILED_PRECONDITION, "REMOTE_KEY_REFUSED"),
    "no model": Fault(replying(404, {}), C.FAILED_PRECONDITION, "REMOTE_NOT_FOUND"),
    "rejected": Fault(replying(400, {"error": {"message": "bad"}}), C.INVALID_ARGUMENT, "REMOTE_REJECTED"),
    "quota": Fault(replying(402, {"error": {"message": "pay"}}), C.FAILED_PRECONDITION, "REMOTE_REFUSED"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_a_failure_has_its_status(fault: Fault, call: Callable[..., Any]) -> None:
    async with opened(fault.script, **fault.settings) as (model, _):
        with pytest.raises(MeshError) as caught:
            await call(model)
    assert (caught.value.code, caught.value.reason) == (fault.code, fault.reason)
    assert caught.value.retry_after_s == fault.retry_after_s
    assert "127.0.0.1" not in str(caught.value), "no addresses leave the service"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_hang_ends_at_the_callers_deadline(call: Callable[..., Any]) -> None:
    async with opened(hang, remote_idle_s=LONG) as (model, _):
        with pytest.raises(DeadlineExceeded):
            await call(model, Deadline.after(0.3))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_prompt_that_no_server_takes_is_the_questions_fault(call: Callable[..., Any]) -> None:
    refusal = {"error": {"message": "This model's maximum context length is 16 tokens.", "code": 400}}
    async with opened(replying(400, refusal)) as (model, server):
        with pytest.raises(InvalidField) as caught:
            await call(model)
        assert len([one for one in server.requests if one.method == "POST"]) <= 3 * 8
    assert caught.value.field == "question"


TOO_LONG = (
    "This model's maximum context length is 4096 tokens. However, you requested 5000 output tokens",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000",
    "Input validation error: `inputs` must have less than 1024 tokens. Given: 1087",
    "the request exceeds the available context size, try increasing it",
    "prompt is too long: 210000 tokens > 200000",
)


@pytest.mark.parametrize("message", TOO_LONG)
async def test_words_for_too_long_are_known(message: str) -> None:
    async with opened(replying(422, {"error": message})) as (model, _):
        with pytest.raises(InvalidField) as caught:
            await streamed(model)
    assert caught.value.field == "question"


@pytest.mark.parametrize("message", TOO_LONG)
@pytest.mark.parametrize("kind", [{"error_type": "validation"}, {}])
async def test_words_for_too_long_are_known_within_a_stream(message: str, kind: dict[str, str]) -> None:
    """So text-generation-inference rejects a stream: with status 200, and an event that has a type alone."""

    async def script(_: HttpRequest, reply: HttpReply) -> None:
        await _events(reply, {"error": message, **kind})
        await reply.end()

    async with opened(script) as (model, _):
        with pytest.raises(InvalidField) as caught:
            await streamed(model)
    assert caught.value.field == "question"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ({"error": "Input validation error: no", "error_type": "validation"}, "REMOTE_REJECTED"),
        ({"error": "Model is overloaded", "error_type": "overloaded"}, "OVERLOADED"),
        ({"error": "Request failed during generation: no", "error_type": "generation"}, "REMOTE_UNAVAILABLE"),
        ({"error": "no", "error_type": ["validation"]}, "REMOTE_UNAVAILABLE"),
    ],
)
async def test_an_error_within_a_stream_is_known_by_its_type(error: dict[str, Any], reason: str) -> None:
    async def script(_: HttpRequest, reply: HttpReply) -> None:
        await _events(reply, error)
        await reply.end()

    async with opened(script) as (model, _):
        with pytest.raises(MeshError) as caught:
            await streamed(model)
    assert caught.value.reason == reason


async def test_no_text_is_written_twice_whatever_a_stream_says_of_its_prompt() -> None:
    async def script(_: HttpRequest, reply: HttpReply) -> None:
        await _events(reply, _piece("a"), {"error": {"message": TOO_LONG[0], "code": 400}})
        await reply.end()

    async with opened(script) as (model, server):
        with pytest.raises(MeshError) as caught:
            await streamed(model)
        assert len([one for one in server.requests if one.method == "POST"]) == 1
    assert caught.value.reason == "REMOTE_REJECTED"


async def test_passages_that_do_not_fit_after_all_are_left_out() -> None:
    passages = tuple(Passage(str(at), "", "a b c d e f g h i j") for at in range(20))
    request = GenerationRequest(
        "q", passages, augmentation=Augmentation.IN_PROMPT, decoding=Decoding(max_new_tokens=8)
    )
    script = scripted_openai.made_up(context_tokens=120)
    async with serving(script) as server, scripted_openai.opened(server.url) as (model,):
        answer = await model.generate(request, Cancellation())
        assert 0 < answer.dropped_passages < 20
        (score,) = await model.score_relevance(
            RelevanceRequest("q", (Passage("long", "", "word " * 500),)), Cancellation()
        )
        assert 0 < score < 1


async def _events(reply: HttpReply, *events: dict[str, Any] | str) -> None:
    await reply.open_events()
    for event in events:
        await reply.event(event)


def _piece(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "made-up", "choices": [{"index": 0, "delta": {"content": text}, **fields}]}


CUTS: dict[str, tuple[list[dict[str, Any] | str], bool, str]] = {
    "broken off": ([_piece("a")], False, "REMOTE_CUT_STREAM"),
    "no reason to finish": ([_piece("a")], True, "REMOTE_CUT_STREAM"),
    "done without a reason": ([_piece("a"), "[DONE]"], True, "REMOTE_CUT_STREAM"),
    "aborted": ([_piece("a", finish_reason="abort")], True, "REMOTE_CUT_STREAM"),
    "filtered": ([_piece("a", finish_reason="content_filter")], True, "REMOTE_WITHHELD"),
    "unknown reason": ([_piece("a", finish_reason="tool_calls")], True, "REMOTE_MALFORMED_REPLY"),
    "error": ([_piece("a"), {"error": {"message": "CUDA error", "code": 500}}], True, "REMOTE_UNAVAILABLE"),
    "error in words": ([_piece("a"), {"error": "it broke"}], True, "REMOTE_UNAVAILABLE"),
    "text after the end": ([_piece("a", finish_reason="stop"), _piece("b")], True, "REMOTE_MALFORMED_REPLY"),
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
async def test_a_stream_that_is_not_whole_is_no_short_answer(
    cut: tuple[list[dict[str, Any] | str], bool, str],
) -> None:
    events, ends, reason = cut

    async def script(_: HttpRequest, reply: HttpReply) -> None:
        await _events(reply, *events)
        if ends:
            await reply.end()

    async with opened(script) as (model, server):
        received = []
        with pytest.raises(MeshError) as caught:
            async with aclosing(model.generate_stream(REQUEST, Cancellation())) as parts:
                async for part in parts:
                    received.append(part)
        assert caught.value.reason == reason
        assert "".join(part for part in received if isinstance(part, str)) in ("", "a")
        assert not any(isinstance(part, Answer) for part in received)
        assert len([one for one in server.requests if one.method == "POST"]) == 1


async def test_a_slow_first_byte_is_waited_for() -> None:
    async def late(_: HttpRequest, reply: HttpReply) -> None:
        await asyncio.sleep(0.2)
        await _events(reply, _piece("late", finish_reason="stop"), "[DONE]")
        await reply.end()

    async with opened(late, remote_idle_s=LONG) as (model, _):
        answer = await streamed(model)
    assert (answer.text, answer.finish_reason) == ("late", FinishReason.STOP)
    assert (answer.prompt_tokens > 1, answer.completion_tokens) == (True, 1), (
        "estimates, where none are counted"
    )


class _Endless:
    """Writes a piece for each permit, and counts them."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(1)
        self.written = 0

    async def script(self, _: HttpRequest, reply: HttpReply) -> None:
        await reply.open_events()
        while True:
            await self.permits.acquire()
            await reply.event(_piece("word "))
            self.written += 1


async def test_a_server_sees_within_one_piece_that_a_stream_is_left() -> None:
    endless = _Endless()
    async with opened(endless.script) as (model, server):
        async with aclosing(model.generate_stream(REQUEST, Cancellation())) as parts:
            assert await anext(parts) == "word "
        await asyncio.wait_for(server.left.wait(), LONG)
        assert endless.written == 1
        assert model.statistics().cancelled == 1
        assert model.statistics().active_requests == 0


async def test_a_server_sees_that_who_waits_for_a_whole_answer_has_gone() -> None:
    endless = _Endless()
    cancel = Cancellation()
    async with opened(endless.script) as (model, server):
        call = asyncio.create_task(model.generate(REQUEST, cancel))
        while not endless.written:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(cancel.cancel)  # from any thread
        with pytest.raises(Cancelled):
            await call
        await asyncio.wait_for(server.left.wait(), LONG)


async def test_another_server_answers_where_one_fails() -> None:
    sound = scripted_openai.made_up()

    async def broken(request: HttpRequest, reply: HttpReply) -> None:
        await (sound if request.path == "/v1/models" or not failing else replying(503, ""))(request, reply)

    failing = False
    async with (
        serving(broken) as one,
        serving(sound) as other,
        scripted_openai.opened([one.url, other.url], remote_rest_s=LONG) as (model,),
    ):
        failing = True
        answers = [await streamed(model) for _ in range(4)]
        assert len({answer.text for answer in answers}) == 1
        assert model.up


async def test_a_key_reaches_the_server_and_no_error(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-hush")
    async with opened(None, remote_api_key=key) as (model, server):
        await streamed(model)
        assert server.requests[-1].headers["authorization"] == "Bearer sk-hush"
        server.script = replying(401, {"error": {"message": "Incorrect API key provided: sk-hush"}})
        with pytest.raises(MeshError) as caught:
            await streamed(model)
    assert "EVENMESH_GENERATOR_REMOTE_API_KEY" in caught.value.message
    assert "sk-hush" not in str(caught.value)


async def test_too_many_requests_leave_the_model_up() -> None:
    async with opened(replying(429, {})) as (model, _):
        for _ in range(3):
            with pytest.raises(Overloaded):
                await streamed(model)
        assert model.up
