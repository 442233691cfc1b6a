"""The client of model servers against a scripted server: one test for each kind of failure."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from evenmesh.wire.deadline import NEVER, Deadline
from evenmesh.wire.errors import DeadlineExceeded, FailedPrecondition, MeshError, Overloaded, Unavailable
from evenmesh_kit.remote.client import RemoteClient
from evenmesh_kit.remote.errors import MalformedReply, Rejected, ServerUnavailable
from evenmesh_kit.remote.options import RemoteOptionError, RemoteOptions
from evenmesh_kit.security import caller as callers
from tests.support.ports import reserve
from tests.support.scripted_http import (
    HttpReply,
    HttpRequest,
    Script,
    ScriptedHttp,
    hang,
    replying,
    serving,
)
from tests.support.waiting import until

LONG = 60.0
"""More than any of these tests takes: passes only where something hangs. Seconds."""


@asynccontextmanager
async def opened(*urls: str, **options: Any) -> AsyncIterator[RemoteClient]:
    """A client of the base URLs, without proxies of the machine."""
    client = RemoteClient(
        RemoteOptions(urls, proxies=False, key_setting="KEY_SETTING", urls_setting="URLS_SETTING", **options)
    )
    try:
        yield client
    finally:
        await client.close()


async def posted(script: Script, deadline: Deadline = NEVER, **options: Any) -> Any:
    """What a post to one scripted server returns."""
    async with serving(script) as server, opened(server.url, **options) as client:
        return await client.post("/embeddings", {"input": ["a"]}, deadline=deadline)


async def failed(script: Script, **options: Any) -> MeshError:
    """The error of a post to one scripted server."""
    with pytest.raises(MeshError) as caught:
        await posted(script, **options)
    return caught.value


async def test_json_goes_out_and_comes_back(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-1\n")
    async with (
        serving(replying(200, {"data": [1, "é"]})) as server,
        opened(server.url, api_key_file=key) as client,
    ):
        assert await client.post("/rerank", {"query": "ß"}, deadline=NEVER) == {"data": [1, "é"]}
        (checked,) = await client.check("/models", deadline=NEVER)
        assert checked.reply == {"data": [1, "é"]}
    post, get = server.requests
    assert (post.method, post.path, post.json) == ("POST", "/v1/rerank", {"query": "ß"})
    assert post.headers["authorization"] == "Bearer sk-1"
    assert post.headers["accept-encoding"] == "identity"
    assert (get.method, get.path, get.body) == ("GET", "/v1/models", b"")


async def test_the_key_is_read_again_when_its_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenmesh.wire.file_watch.CHECK_EVERY_S", 0.0)
    key = tmp_path / "key"
    key.write_text("sk-old")
    async with serving(replying(200, {})) as server, opened(server.url, api_key_file=key) as client:
        await client.post("/models", {}, deadline=NEVER)
        key.write_text("sk-the-new-one")
        await client.post("/models", {}, deadline=NEVER)
        key.write_text("")  # being written: the earlier key stays
        await client.post("/models", {}, deadline=NEVER)
    sent = [request.headers["authorization"] for request in server.requests]
    assert sent == ["Bearer sk-old", "Bearer sk-the-new-one", "Bearer sk-the-new-one"]


@pytest.mark.parametrize("content", ["", " \n", "two words", "zwei\nzeilen", "schlüssel", "x" * 9000])
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: str) -> None:
    key = tmp_path / "key"
    key.write_text(content)
    with pytest.raises(RemoteOptionError) as caught:
        RemoteClient(RemoteOptions(("http://127.0.0.1:1/v1",), api_key_file=key))
    assert caught.value.option == "api_key_file"
    assert str(key) in str(caught.value)
    assert not content.strip() or content.strip() not in str(caught.value)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_our_misconfiguration_and_is_shown_nowhere(
    status: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = tmp_path / "key"
    key.write_text("sk-secret")
    caplog.set_level(logging.DEBUG)
    error = await failed(
        replying(status, {"error": {"message": "Incorrect API key provided: sk-secret"}}), api_key_file=key
    )
    assert isinstance(error, FailedPrecondition)
    assert error.reason == "REMOTE_KEY_REFUSED"
    assert "KEY_SETTING" in error.message
    client = RemoteClient(RemoteOptions(("http://127.0.0.1:1/v1",), api_key_file=key))
    shown = [error.message, repr(client), repr(client._key), repr(client._key and client._key.key())]
    assert "sk-secret" not in " ".join([*shown, caplog.text])
    await client.close()


async def test_a_key_that_the_server_repeats_is_taken_out(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-secret")
    error = await failed(replying(400, {"error": {"message": "bad header sk-secret"}}), api_key_file=key)
    assert error.message.endswith("bad header …")


async def test_a_model_or_path_that_is_not_there() -> None:
    error = await failed(replying(404, {"error": {"message": "The model `x` does not exist."}}))
    assert isinstance(error, FailedPrecondition)
    assert error.reason == "REMOTE_NOT_FOUND"
    assert "The model `x` does not exist." in error.message
    assert "URLS_SETTING" in error.message


@pytest.mark.parametrize(
    ("status", "body", "said", "code"),
    [
        (
            400,
            {"error": {"message": "too\n long", "code": "context_length_exceeded"}},
            "too long",
            "context_length_exceeded",
        ),
        (
            413,
            {"error": "batch size 33 > 32", "error_type": "validation"},
            "batch size 33 > 32",
            "validation",
        ),
        (422, {"detail": [{"msg": "input required"}]}, '[{"msg": "input required"}]', ""),
        (400, {"object": "error", "message": "plain", "code": 400}, "plain", "400"),
        (400, "words", "words", ""),
        (400, "<html>proxy</html>", "", ""),
        (400, b"\xff", "\N{REPLACEMENT CHARACTER}", ""),
        (400, "[" * 9000, "[" * 299 + "…", ""),
    ],
)
async def test_what_a_server_says_of_the_request_is_passed_on_in_short(
    status: int, body: Any, said: str, code: str
) -> None:
    error = await failed(replying(status, body))
    assert isinstance(error, Rejected)
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert (error.status, error.said, error.said_code) == (status, said, code)


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": "0.5"}, 0.5),
        ({"retry_after": "1e12"}, 3600.0),
        ({"retry_after": "-1"}, 0.0),
        ({"retry_after": "nan"}, 1.0),
        ({"retry_after": "soon"}, 1.0),
        ({"retry_after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({}, 1.0),
    ],
)
async def test_too_many_requests_say_when_to_come_again(header: dict[str, str], wait_s: float) -> None:
    error = await failed(replying(429, {}, **header))
    assert isinstance(error, Overloaded)
    assert error.retry_after_s == wait_s


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_server_that_fails_is_unavailable(status: int) -> None:
    error = await failed(replying(status, "no", retry_after="3"))
    assert isinstance(error, Unavailable)
    assert error.reason == "REMOTE_UNAVAILABLE"
    assert error.retry_after_s == 3.0


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    async with opened(f"http://127.0.0.1:{reserve(opened)}/v1") as client:
        with pytest.raises(ServerUnavailable) as caught:
            await client.post("/x", {}, deadline=NEVER)
    assert caught.value.reason == "REMOTE_UNAVAILABLE"
    assert "127.0.0.1" not in caught.value.message


async def test_a_hang_ends_at_the_deadline() -> None:
    error = await failed(hang, deadline=Deadline.after(0.2), idle_s=LONG)
    assert isinstance(error, DeadlineExceeded)


async def test_a_hang_ends_at_the_idle_limit() -> None:
    error = await failed(hang, deadline=Deadline.after(LONG), idle_s=0.2)
    assert error.reason == "REMOTE_SILENT"
    assert isinstance(error, Unavailable)


async def test_a_deadline_that_passed_sends_nothing() -> None:
    async with serving(replying(200, {})) as server, opened(server.url) as client:
        with pytest.raises(DeadlineExceeded):
            await client.post("/x", {}, deadline=Deadline.after(0))
    assert not server.requests


async def test_a_slow_reply_within_its_limits_is_waited_for() -> None:
    async def slow(_: HttpRequest, reply: HttpReply) -> None:
        await reply.head(200, **{"content-length": "12"})
        for byte in b'{"slow": 33}':
            await asyncio.sleep(0.01)
            await reply.raw(bytes([byte]))

    assert await posted(slow, idle_s=LONG) == {"slow": 33}


async def test_a_killed_server_is_asked_once_more_and_is_unavailable() -> None:
    async def killed(_: HttpRequest, reply: HttpReply) -> None:
        reply.kill()

    async with serving(killed) as server, opened(server.url) as client:
        with pytest.raises(ServerUnavailable):
            await client.post("/x", {}, deadline=NEVER)
    assert len(server.requests) == 2, "a lone server on a new connection"


@pytest.mark.parametrize("body", ["{", "NaN", '{"a": Infinity}', "", b"\xff\xfe", "[" * 20_000])
async def test_a_reply_that_is_not_json(body: bytes | str) -> None:
    error = await failed(replying(200, body))
    assert isinstance(error, MalformedReply)
    assert error.reason == "REMOTE_MALFORMED_REPLY"
    assert error.code is grpc.StatusCode.UNAVAILABLE


async def test_a_reply_in_another_protocol() -> None:
    async def babble(_: HttpRequest, reply: HttpReply) -> None:
        await reply.raw(b"220 mail.example ESMTP\r\n\r\n")

    assert (await failed(babble)).reason == "REMOTE_MALFORMED_REPLY"


@pytest.mark.parametrize("announced", [True, False])
async def test_a_reply_over_its_size_is_not_read(announced: bool) -> None:
    sent = 0

    async def large(_: HttpRequest, reply: HttpReply) -> None:
        nonlocal sent
        await reply.head(200, **({"content-length": str(2**40)} if announced else {}))
        while True:
            await reply.raw(b" " * 65_536)
            sent += 65_536

    async with serving(large) as server, opened(server.url, reply_bytes=4096) as client:
        with pytest.raises(MalformedReply) as caught:
            await client.post("/x", {}, deadline=NEVER)
        await asyncio.wait_for(server.left.wait(), LONG)
    assert caught.value.reason == "REMOTE_REPLY_TOO_LARGE"
    assert sent < 2**26


async def test_a_compressed_reply_is_not_unpacked() -> None:
    error = await failed(replying(200, b"\x1f\x8b", content_encoding="gzip"))
    assert isinstance(error, MalformedReply)


async def test_redirects_are_not_followed() -> None:
    async with serving(replying(200, {})) as other:
        error = await failed(replying(307, "", location=other.url))
        assert not other.requests
    assert error.reason == "REMOTE_REDIRECTED"
    assert isinstance(error, FailedPrecondition)


async def _events(client: RemoteClient, **options: Any) -> list[str]:
    async with aclosing(client.stream("/completions", {}, deadline=NEVER, **options)) as events:
        return [event async for event in events]


async def test_events_come_one_by_one_until_the_end() -> None:
    async def stream(_: HttpRequest, reply: HttpReply) -> None:
        await reply.open_events()
        await reply.raw(b"7\r\n: hi\n\n\n\r\n")
        for word in ("a", "ü", "[DONE]"):
            await reply.event(word)
        await reply.end()

    async with serving(stream) as server, opened(server.url) as client:
        assert await _events(client) == ["a", "ü"]


@pytest.mark.parametrize("how", ["clean end", "broken chunk", "killed"])
async def test_a_cut_stream_is_no_short_answer(how: str) -> None:
    async def cut(_: HttpRequest, reply: HttpReply) -> None:
        await reply.open_events()
        await reply.event("a")
        if how == "clean end":
            await reply.end()
        elif how == "killed":
            await asyncio.sleep(0.05)
            reply.kill()

    async with serving(cut) as server, opened(server.url) as client:
        received = []
        with pytest.raises(ServerUnavailable) as caught:
            async with aclosing(client.stream("/c", {}, deadline=NEVER)) as events:
                async for event in events:
                    received.append(event)
        assert caught.value.reason == "REMOTE_CUT_STREAM"
        assert received == ["a"]
        assert len(server.requests) == 1, "what was streamed is not asked for again"


async def test_a_stream_that_stops_in_the_middle_ends_at_the_idle_limit() -> None:
    async def stops(_: HttpRequest, reply: HttpReply) -> None:
        await reply.open_events()
        await reply.event("a")
        await asyncio.Event().wait()

    async with serving(stops) as server, opened(server.url, idle_s=0.2) as client:
        with pytest.raises(ServerUnavailable) as caught:
            await _events(client)
        assert caught.value.reason == "REMOTE_SILENT"
        await asyncio.wait_for(server.left.wait(), LONG)


async def test_an_endless_event_is_refused() -> None:
    async def endless(_: HttpRequest, reply: HttpReply) -> None:
        await reply.head(200)
        while True:
            await reply.raw(b"data: " + b"x" * 65_536)

    async with serving(endless) as server, opened(server.url) as client:
        with pytest.raises(MalformedReply) as caught:
            await _events(client)
    assert caught.value.reason == "REMOTE_REPLY_TOO_LARGE"


async def _endless_events(_: HttpRequest, reply: HttpReply) -> None:
    await reply.open_events()
    await reply.event("a")
    await asyncio.Event().wait()


async def test_a_server_sees_that_a_stream_is_left_before_its_next_event() -> None:
    async with serving(_endless_events) as server, opened(server.url) as client:
        async with aclosing(client.stream("/c", {}, deadline=NEVER)) as events:
            assert await anext(events) == "a"
        await asyncio.wait_for(server.left.wait(), LONG)


@pytest.mark.parametrize("script", [hang, _endless_events], ids=["before the reply", "within it"])
async def test_a_server_sees_that_a_call_is_cancelled(script: Script) -> None:
    asked = asyncio.Event()

    async def counted(request: HttpRequest, reply: HttpReply) -> None:
        asked.set()
        await script(request, reply)

    async with serving(counted) as server, opened(server.url) as client:
        call = asyncio.create_task(client.post("/x", {}, deadline=NEVER))
        await asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(server.left.wait(), LONG)
        assert client.endpoints[0].healthy, "a caller that leaves says nothing of the server"


async def test_requests_beyond_the_places_wait_within_their_deadlines() -> None:
    first, go = asyncio.Event(), asyncio.Event()

    async def slow(_: HttpRequest, reply: HttpReply) -> None:
        first.set()
        await go.wait()
        await reply.send(200, {})

    async with serving(slow) as server, opened(server.url, in_flight=1) as client:
        running = asyncio.create_task(client.post("/x", {}, deadline=NEVER))
        await first.wait()
        with pytest.raises(DeadlineExceeded):
            await client.post("/x", {}, deadline=Deadline.after(0.1))
        waiting = asyncio.create_task(client.post("/x", {}, deadline=NEVER))
        go.set()
        assert await asyncio.gather(running, waiting) == [{}, {}]
    assert len(server.requests) == 2


async def test_a_tenant_that_asks_without_end_leaves_places_to_another() -> None:
    go = asyncio.Event()

    async def slow(request: HttpRequest, reply: HttpReply) -> None:
        if request.path == "/greedy":
            await go.wait()
        await reply.send(200, {})

    async def ask(client: RemoteClient, tenant: str) -> Any:
        callers.enter(callers.Caller(tenant, tenant, frozenset()))
        return await client.post(f"/{tenant}", {}, deadline=Deadline.after(LONG))

    async with serving(slow) as server, opened(server.url, in_flight=4, tenant_share=0.75) as client:
        greedy = [asyncio.create_task(ask(client, "greedy")) for _ in range(12)]
        assert await asyncio.create_task(ask(client, "polite")) == {}
        assert sum(request.path == "/greedy" for request in server.requests) <= 3
        go.set()
        assert await asyncio.gather(*greedy) == [{}] * 12


@asynccontextmanager
async def several(*scripts: Script, **options: Any) -> AsyncIterator[tuple[RemoteClient, list[ScriptedHttp]]]:
    """A client of several servers."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(script)) for script in scripts]
        yield await stack.enter_async_context(opened(*(one.url for one in servers), **options)), servers


async def test_a_server_that_fails_is_left_alone_while_another_answers() -> None:
    async with several(replying(503, ""), replying(200, {"from": 2}), rest_s=LONG) as (client, servers):
        for _ in range(5):
            assert await client.post("/x", {}, deadline=NEVER) == {"from": 2}
        assert [len(one.requests) for one in servers] == [1, 5]
        assert [one.healthy for one in client.endpoints] == [False, True]


async def test_a_server_that_has_rested_is_tried_again() -> None:
    answers = [503, 200]

    async def recovers(_: HttpRequest, reply: HttpReply) -> None:
        await reply.send(answers.pop(0) if answers else 200, {})

    async with several(recovers, replying(200, {}), rest_s=0.0) as (client, servers):
        for _ in range(4):
            await client.post("/x", {}, deadline=NEVER)
        assert all(one.healthy for one in client.endpoints)
        assert len(servers[0].requests) >= 2


async def test_two_servers_that_fail_are_asked_once_each() -> None:
    async with several(replying(503, ""), replying(503, ""), replying(503, "")) as (client, servers):
        with pytest.raises(ServerUnavailable):
            await client.post("/x", {}, deadline=NEVER)
        assert sorted(len(one.requests) for one in servers) == [0, 1, 1]


@pytest.mark.parametrize(("wait_s", "rest_s", "asked"), [(LONG, LONG, 3), (0, LONG, 6), (LONG, 0.0, 6)])
async def test_a_server_with_too_many_requests_gets_none_that_another_takes(
    wait_s: float, rest_s: float, asked: int
) -> None:
    """It refuses at once, so it has the fewest running requests while the other one computes."""
    computing = asyncio.Event()

    async def computes(_: HttpRequest, reply: HttpReply) -> None:
        await computing.wait()
        await reply.send(200, {"from": 2})

    full = replying(429, {}, retry_after=f"{wait_s:g}")
    async with several(full, computes, rest_s=rest_s) as (client, servers):
        calls = [asyncio.create_task(client.post("/x", {}, deadline=NEVER)) for _ in range(6)]
        await until(lambda: len(servers[1].requests) == len(calls))
        computing.set()
        assert await asyncio.gather(*calls) == [{"from": 2}] * len(calls)
        assert 1 <= len(servers[0].requests) <= asked


async def test_servers_that_all_have_too_many_requests_are_asked_once_each() -> None:
    full = replying(429, {}, retry_after="7")
    async with several(full, full, full, rest_s=LONG) as (client, servers):
        # The first finds two of them, the second the one that is left, and the third tries one all the same.
        for asked in (2, 3, 4):
            with pytest.raises(Overloaded) as caught:
                await client.post("/x", {}, deadline=NEVER)
            assert caught.value.retry_after_s == 7
            assert sum(len(one.requests) for one in servers) == asked


async def test_a_request_that_makes_a_server_fail_does_not_take_it_away_from_others() -> None:
    async with several(replying(500, ""), replying(500, "")) as (client, _):
        with pytest.raises(ServerUnavailable):
            await client.post("/x", {}, deadline=NEVER)
        assert all(one.healthy for one in client.endpoints)


async def test_a_stream_is_begun_elsewhere_only_before_its_first_event() -> None:
    async def whole(_: HttpRequest, reply: HttpReply) -> None:
        await reply.open_events()
        await reply.event("whole")
        await reply.event("[DONE]")
        await reply.end()

    async with several(replying(502, ""), whole) as (client, _):
        assert await _events(client) == ["whole"]


async def test_the_server_with_fewest_running_requests_is_chosen() -> None:
    started: asyncio.Queue[None] = asyncio.Queue()

    async def busy(_: HttpRequest, __: HttpReply) -> None:
        started.put_nowait(None)
        await asyncio.Event().wait()

    async with several(busy, busy) as (client, servers):
        calls = [asyncio.create_task(client.post("/x", {}, deadline=NEVER)) for _ in range(6)]
        for _ in calls:
            await started.get()
        assert [len(one.requests) for one in servers] == [3, 3]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert [one.outstanding for one in client.endpoints] == [0, 0]


async def test_a_check_asks_every_server_and_brings_one_back() -> None:
    down = True

    async def changing(_: HttpRequest, reply: HttpReply) -> None:
        await reply.send(503 if down else 200, {"data": []})

    async with several(changing, replying(200, {"data": []}), rest_s=LONG) as (client, _):
        first, second = await client.check("/models", deadline=Deadline.after(LONG))
        assert isinstance(first.error, ServerUnavailable)
        assert (second.reply, second.error) == ({"data": []}, None)
        assert not client.endpoints[0].healthy
        down = False
        await client.check("/models", deadline=Deadline.after(LONG))
        assert client.endpoints[0].healthy


async def test_a_server_of_no_use_rests_until_a_check_accepts_it() -> None:
    ready = False

    def accept(reply: Any) -> MeshError | None:
        return None if ready or reply == {"from": 2} else Unavailable("MISSING", "the model is missing")

    async with several(replying(200, {"from": 1}), replying(200, {"from": 2})) as (client, _):
        first, _ = await client.check("/m", deadline=Deadline.after(LONG), accept=accept, rest_s=LONG)
        assert first.error is not None
        assert first.error.reason == "MISSING"
        assert [await client.post("/x", {}, deadline=NEVER) for _ in range(3)] == [{"from": 2}] * 3
        ready = True
        await client.check("/m", deadline=Deadline.after(LONG), accept=accept, rest_s=LONG)
        assert {"from": 1} in [await client.post("/x", {}, deadline=NEVER) for _ in range(3)]


async def test_tls_trusts_the_named_authority_alone(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    ours, theirs = tmp_path / "ca.pem", tmp_path / "other.pem"
    authority.cert_pem.write_to_path(str(ours))
    other.cert_pem.write_to_path(str(theirs))
    async with serving(replying(200, {}), context) as server:
        async with opened(server.url, ca_file=ours) as client:
            assert await client.post("/models", {}, deadline=NEVER) == {}
        for ca_file in (theirs, None):
            async with opened(server.url, ca_file=ca_file) as client:
                with pytest.raises(ServerUnavailable):
                    await client.post("/models", {}, deadline=NEVER)
    assert len(server.requests) == 1


async def test_a_server_may_ask_for_a_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    issued = authority.issue_cert("evenmesh")
    ca, certificate, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(str(ca))
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    async with serving(replying(200, {}), context) as server:
        async with opened(server.url, ca_file=ca, certificate_file=certificate, key_file=key) as client:
            assert await client.post("/models", {}, deadline=NEVER) == {}
        async with opened(server.url, ca_file=ca) as client:
            with pytest.raises(ServerUnavailable):
                await client.post("/models", {}, deadline=NEVER)


async def test_proxies_of_the_environment_apply_unless_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        serving(replying(200, {"by": "proxy"})) as proxy,
        serving(replying(200, {"by": "me"})) as server,
    ):
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        for proxies, by in ((True, "proxy"), (False, "me")):
            client = RemoteClient(RemoteOptions((server.url,), proxies=proxies))
            assert await client.post("/models", {}, deadline=NEVER) == {"by": by}
            await client.close()


@pytest.mark.parametrize(
    ("option", "fields"),
    [
        ("urls", {"urls": ()}),
        ("urls", {"urls": ("http://a:1",) * 2}),
        ("urls", {"urls": ("ftp://a/v1",)}),
        ("urls", {"urls": ("a:8000",)}),
        ("urls", {"urls": ("http://a:99999",)}),
        ("urls", {"urls": ("http://a/v1?x=1",)}),
        ("urls", {"urls": ("http://a/ v1",)}),
        ("urls", {"urls": ("http://" + "a" * 3000,)}),
        ("urls", {"urls": tuple(f"http://a:{port}" for port in range(1, 66))}),
        ("key_file", {"key_file": Path("key.pem")}),
        ("in_flight", {"in_flight": 0}),
        ("connect_s", {"connect_s": 0.0}),
        ("idle_s", {"idle_s": float("nan")}),
        ("rest_s", {"rest_s": -1.0}),
        ("reply_bytes", {"reply_bytes": 2**31}),
    ],
)
def test_options_are_checked(option: str, fields: dict[str, Any]) -> None:
    with pytest.raises(RemoteOptionError) as caught:
        RemoteOptions(**{"urls": ("http://a:1",), **fields})
    assert caught.value.option == option


def test_a_password_in_a_base_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(RemoteOptionError) as caught:
        RemoteOptions(("http://me:hunter2@a:1/v1",))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "clear"),
    [
        ("http://llm:8000/v1", True),
        ("https://llm/v1", False),
        ("http://127.0.0.1:8000/v1", False),
        ("http://[::1]:8000/v1", False),
        ("http://localhost:8000/v1", False),
    ],
)
def test_a_key_without_tls_is_warned_about(
    url: str, clear: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = tmp_path / "key"
    key.write_text("sk-1")
    RemoteClient(RemoteOptions((url,), api_key_file=key))
    assert ("without TLS" in caplog.text) is clear


@pytest.mark.parametrize(("keep_alive_s", "connections"), [(0.0, 3), (30.0, 1)])
async def test_without_keeping_connections_each_request_opens_one(
    keep_alive_s: float, connections: int
) -> None:
    """Behind a Service of Kubernetes, connections are what is spread over pods."""
    opened_so_far = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened_so_far
        opened_so_far += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(line for line in head.lower().split(b"\r\n") if b"content-length" in line)
                await reader.readexactly(int(length.partition(b":")[2]))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, opened(f"http://{host}:{port}", keep_alive_s=keep_alive_s) as client:
        for _ in range(3):
            assert await client.post("/embeddings", {"input": ["a"]}, deadline=NEVER) == {}
        assert opened_so_far == connections


@pytest.mark.parametrize(("ends", "connections"), [(True, 1), (False, 3)])
async def test_a_stream_that_has_ended_leaves_its_connection_to_the_next(
    ends: bool, connections: int
) -> None:
    """A new one takes as long as its handshakes; a server that ends no reply gets one for each."""
    opened_so_far = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened_so_far
        opened_so_far += 1
        try:
            while await reader.readuntil(b"}"):
                head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
                events = b"data: whole\n\ndata: [DONE]\n\n"
                writer.write(head + b"%x\r\n%s\r\n" % (len(events), events) + b"0\r\n\r\n" * ends)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, opened(f"http://{host}:{port}", keep_alive_s=30.0) as client:
        for _ in range(3):
            assert await _events(client) == ["whole"]
        assert opened_so_far == connections
