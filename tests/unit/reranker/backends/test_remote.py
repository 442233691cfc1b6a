"""The reranker on model servers, against a scripted one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from evenmesh.wire import deadline
from evenmesh.wire.errors import DeadlineExceeded, FailedPrecondition, MeshError, Unavailable
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.remote.client import RemoteClient
from evenmesh_kit.remote.options import RemoteOptions
from evenmesh_reranker.backends.remote import RemoteReranker
from evenmesh_reranker.domain import Agent, Best, FirstStage, Fusion, Passage
from evenmesh_reranker.engine import Reranking
from tests.support.remote_faults import FAULTS, IDLE_S, PATIENT_S, REPLY_BYTES, Fault
from tests.support.scripted_http import HttpReply, HttpRequest, Script, ScriptedHttp, hang, replying, serving

PASSAGES = [Passage(f"p{place}", "", str(place)) for place in range(7)]
Open = Callable[..., Any]


async def by_text(request: HttpRequest, reply: HttpReply) -> None:
    """Score text n by n / 10, the last first."""
    if request.path == "/v1/info":
        await reply.send(200, {"model_id": "org/model", "model_sha": "abc", "model_type": {"reranker": {}}})
        return
    body = request.json
    tei = "texts" in body
    name = "score" if tei else "relevance_score"
    texts = body["texts" if tei else "documents"]
    ranks = [{"index": place, name: int(text) / 10} for place, text in enumerate(texts)][::-1]
    await reply.send(200, ranks if tei else {"results": ranks, "model": "served"})


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """Opens a reranker on a scripted server."""
    async with AsyncExitStack() as stack:

        async def start(
            script: Script, *, others: tuple[str, ...] = (), idle_s: float = PATIENT_S, **options: Any
        ) -> Any:
            server = await stack.enter_async_context(serving(script))
            urls = (server.url, *others)
            client = RemoteClient(
                RemoteOptions(urls=urls, idle_s=idle_s, reply_bytes=REPLY_BYTES, rest_s=0.0)
            )
            reranker = RemoteReranker(client, **({"server": "cohere", "model": "m"} | options))
            stack.push_async_callback(reranker.close)
            return reranker, server

        yield start


def asked(server: ScriptedHttp) -> list[list[str]]:
    """The documents of each request."""
    return [one.json["documents"] for one in server.requests if one.path == "/v1/rerank"]


@pytest.mark.parametrize("server", ["cohere", "jina", "infinity", "vllm", "tei"])
async def test_scores_come_in_the_order_of_the_passages(opened: Open, server: str) -> None:
    reranker, _ = await opened(by_text, server=server)
    scores = await reranker.score("q", PASSAGES, Agent())
    assert scores.values == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)


async def test_batches_are_bounded_in_passages(opened: Open) -> None:
    reranker, server = await opened(by_text, batch_size=3)
    scores = await reranker.score("q", PASSAGES, Agent())
    assert sorted(asked(server)) == [["0", "1", "2"], ["3", "4", "5"], ["6"]]
    assert scores.values == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)


async def test_batches_are_bounded_in_characters(opened: Open) -> None:
    # With the query "qq", a passage of one character counts three; one of ten goes alone.
    passages = [*PASSAGES[:3], Passage("long", "", "0000000009"), *PASSAGES[3:5]]
    reranker, server = await opened(by_text, batch_characters=6)
    scores = await reranker.score("qq", passages, Agent())
    assert sorted(asked(server)) == [["0", "1"], ["0000000009"], ["2"], ["3", "4"]]
    assert scores.values == (0.0, 0.1, 0.2, 0.9, 0.3, 0.4)


async def test_title_and_text_are_read_together(opened: Open) -> None:
    reranker, server = await opened(replying(200, {"results": [{"index": 0, "relevance_score": 1}]}))
    await reranker.score("q", [Passage("p", "Title", "text")], Agent())
    assert asked(server) == [["Title text"]]


async def test_the_version_is_what_the_server_says_it_serves(opened: Open) -> None:
    reranker, _ = await opened(by_text)
    assert (await reranker.score("q", PASSAGES, Agent())).model_version == "served"
    tei, _ = await opened(by_text, server="tei", model="")
    assert (await tei.score("q", PASSAGES, Agent())).model_version == "tei"
    await tei.start()
    assert (await tei.score("q", PASSAGES, Agent())).model_version == "org/model@abc"


async def test_a_name_that_cannot_be_sent_is_cut_to_what_can(opened: Open) -> None:
    body = '{"results": [{"index": 0, "relevance_score": 1}], "model": "a\\ud800\\u0000b%s"}' % ("c" * 999)
    reranker, _ = await opened(replying(200, body))
    version = (await reranker.score("q", PASSAGES[:1], Agent())).model_version
    assert version == "ab" + "c" * 252


async def test_parts_scored_by_different_models_are_refused(opened: Open) -> None:
    async def alternating(request: HttpRequest, reply: HttpReply) -> None:
        text = request.json["documents"][0]
        results = [{"index": 0, "relevance_score": 0.5}]
        await reply.send(200, {"results": results, "model": "old" if text == "0" else "new"})

    reranker, _ = await opened(alternating, batch_size=1)
    with pytest.raises(Unavailable, match="different models"):
        await reranker.score("q", PASSAGES[:2], Agent())


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_a_fault_has_its_status(opened: Open, fault: Fault) -> None:
    reranker, _ = await opened(fault.script, idle_s=IDLE_S)
    with pytest.raises(MeshError) as raised:
        await reranker.score("q", PASSAGES, Agent())
    error = raised.value
    assert (error.code, error.reason, error.retry_after_s) == (fault.code, fault.reason, fault.retry_after_s)
    assert "127.0.0.1" not in error.message


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([(0, 0.5)], "1 results for 2 texts"),
        ([(0, 0.5), (0, 0.4)], "two results for index 0"),
        ([(0, 0.5), (2, 0.4)], "index 2 of 2"),
        ([(0, 0.5), (1, None)], "no finite number"),
    ],
)
async def test_a_reply_that_ranks_other_passages_is_an_error(
    opened: Open, results: list[tuple[int, Any]], message: str
) -> None:
    body = {"results": [{"index": index, "relevance_score": score} for index, score in results]}
    reranker, _ = await opened(replying(200, body))
    with pytest.raises(Unavailable, match=message) as raised:
        await reranker.score("q", PASSAGES[:2], Agent())
    assert raised.value.reason == "REMOTE_MALFORMED_REPLY"


async def test_logits_that_are_taken_for_probabilities_name_the_setting(opened: Open) -> None:
    logits = {"results": [{"index": 0, "relevance_score": 4.2}]}
    reranker, _ = await opened(replying(200, logits), scale_setting="SCORES")
    with pytest.raises(FailedPrecondition, match=r"a score of 4\.2.*set SCORES") as raised:
        await reranker.score("q", PASSAGES[:1], Agent())
    assert raised.value.reason == "REMOTE_WRONG_SCALE"
    right, _ = await opened(replying(200, logits), scale="logit")
    (value,) = (await right.score("q", PASSAGES[:1], Agent())).values
    assert value == pytest.approx(0.985226, abs=1e-6)  # 1 / (1 + e^-4.2)


async def test_one_failed_batch_ends_the_others(opened: Open) -> None:
    async def failing(request: HttpRequest, reply: HttpReply) -> None:
        if request.json["documents"] == ["0"]:
            await hang(request, reply)
        await reply.send(429, {}, retry_after="3")

    reranker, server = await opened(failing, batch_size=1)
    with pytest.raises(MeshError, match="too many requests"):
        await reranker.score("q", PASSAGES[:2], Agent())
    await asyncio.wait_for(server.left.wait(), 10)


async def test_a_caller_that_leaves_ends_the_request(opened: Open) -> None:
    began = asyncio.Event()

    async def computing(request: HttpRequest, reply: HttpReply) -> None:
        began.set()
        await hang(request, reply)

    reranker, server = await opened(computing)
    call = asyncio.create_task(reranker.score("q", PASSAGES, Agent()))
    await began.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(server.left.wait(), 10)


async def test_the_callers_deadline_ends_it(opened: Open) -> None:
    reranker, _ = await opened(hang)
    deadline.enter(deadline.Deadline.after(0.1))
    with pytest.raises(DeadlineExceeded):
        await reranker.score("q", PASSAGES, Agent())


async def test_another_server_answers_for_one_that_is_away(opened: Open) -> None:
    async with serving(by_text) as second:
        reranker, first = await opened(replying(503, {}), others=(second.url,))
        scores = await reranker.score("q", PASSAGES, Agent())
    assert scores.values[-1] == 0.6
    assert len(first.requests) == len(second.requests) == 1


async def test_whether_any_server_serves_is_reported(opened: Open) -> None:
    reports: list[bool] = []
    seen = asyncio.Event()
    status = [200]

    async def changing(_: HttpRequest, reply: HttpReply) -> None:
        await reply.send(status[0], {})

    def report(serving: bool) -> None:
        reports.append(serving)
        seen.set()

    reranker, server = await opened(changing, ready=report, check_s=0.02)
    await reranker.start()
    assert reports == [True]
    assert server.requests[0].path == "/v1/models"
    for answer, expected in ((503, False), (404, True), (401, False), (200, True)):
        status[0] = answer
        async with asyncio.timeout(10):
            while reports[-1] is not expected:
                seen.clear()
                await seen.wait()


async def test_scores_are_fused_with_a_first_stage(opened: Open) -> None:
    reranker, _ = await opened(by_text, fusion=Fusion(2.5))
    scores = await reranker.score("q", PASSAGES, Agent(), best=Best(1, 0.0))
    assert scores.fusion == Fusion(2.5)
    assert scores.unscored_at_most is None
    plain, _ = await opened(by_text)
    assert (await plain.score("q", PASSAGES, Agent())).fusion == Fusion(0.0)


async def test_fusion_changes_the_order_as_of_other_rerankers(opened: Open) -> None:
    reranker, _ = await opened(by_text)
    pool = ComputePool(1, "test")
    engine = Reranking({"remote": reranker}, "remote", pool)
    first = FirstStage((9.0, 0.0, 0.0), 3.0, 3.0)
    alone = await engine.rerank("q", PASSAGES[:3], Agent(), top_k=1, first=first)
    fused = await engine.rerank("q", PASSAGES[:3], Agent(), top_k=1, first=first, fusion=10.0)
    pool.close()
    assert (alone.order, alone.fusion, alone.reranker) == ((2,), 0.0, "remote")
    # z of the first passage is (9 - 3) / 3 = 2: 20 nats outweigh log-odds of ln(1e-6) = -13.8.
    assert (fused.order, fused.fusion) == ((0,), 10.0)
