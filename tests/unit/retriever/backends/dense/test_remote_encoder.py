"""The encoder on model servers, against a scripted one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from evenmesh.wire import deadline
from evenmesh.wire.errors import DeadlineExceeded, MeshError, Unavailable
from evenmesh_kit.remote.client import RemoteClient
from evenmesh_kit.remote.options import RemoteOptions
from evenmesh_retriever.backends.dense.remote_encoder import RemoteEncoder
from evenmesh_retriever.domain import VectorArray
from evenmesh_retriever.ports import CannotStart
from tests.support.remote_faults import FAULTS, IDLE_S, PATIENT_S, REPLY_BYTES, Fault
from tests.support.scripted_http import (
    HttpReply,
    HttpRequest,
    Script,
    ScriptedHttp,
    hang,
    in_thread,
    replying,
)

INFO = {
    "model_id": "org/e5-small-v2",
    "model_sha": "abc",
    "model_dtype": "float16",
    "model_type": {"embedding": {"pooling": "mean"}},
    "max_input_length": 256,
    "max_client_batch_size": 2,
}
Open = Callable[..., tuple[RemoteEncoder, ScriptedHttp]]


def vector(text: str) -> list[float]:
    """Return a vector that follows from the text."""
    return [1.0 + len(text), 1.0 + sum(map(ord, text)) % 97, 3.0]


async def by_text(request: HttpRequest, reply: HttpReply) -> None:
    """Answer as TEI or OpenAI's server, the last text first."""
    if request.method == "GET":
        await reply.send(200, INFO)
        return
    body = request.json
    if "inputs" in body:
        await reply.send(200, [vector(text) for text in body["inputs"]])
        return
    data = [{"index": place, "embedding": vector(text)} for place, text in enumerate(body["input"])]
    await reply.send(200, {"data": data[::-1], "model": body["model"]})


class Changing:
    """Answers by text until a test sets another script."""

    def __init__(self) -> None:
        self.script: Script = by_text

    async def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        await self.script(request, reply)


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens an encoder on a scripted server."""
    with ExitStack() as stack:

        def start(
            script: Script = by_text,
            *,
            others: tuple[str, ...] = (),
            idle_s: float = PATIENT_S,
            **options: Any,
        ) -> tuple[RemoteEncoder, ScriptedHttp]:
            server = stack.enter_context(in_thread(script))
            urls = (server.url, *others)
            client = RemoteClient(
                RemoteOptions(urls=urls, idle_s=idle_s, reply_bytes=REPLY_BYTES, rest_s=0.0)
            )
            encoder = RemoteEncoder(client, **({"server": "openai", "model": "m"} | options))
            stack.callback(encoder.close)
            return encoder, server

        yield start


def asked(server: ScriptedHttp) -> list[list[str]]:
    """The texts of each request, without the one of the start."""
    return [one.json["input"] for one in server.requests if one.path == "/v1/embeddings"][1:]


def unit(text: str) -> VectorArray:
    direction: VectorArray = np.array(vector(text), dtype=np.float32)
    return direction / np.linalg.norm(direction)


@pytest.mark.parametrize("server", ["openai", "vllm", "tei"])
def test_vectors_are_those_of_the_texts(opened: Open, server: str) -> None:
    encoder, _ = opened(server=server, query_prefix="", passage_prefix="")
    texts = ["b", "a longer text", "b", "ü"]
    done: list[int] = []
    vectors = encoder.encode_passages(texts, done.append)
    assert vectors.dtype == np.float32
    assert vectors.shape == (4, encoder.dimension) == (4, 3)
    for row, text in zip(vectors, texts, strict=True):
        np.testing.assert_allclose(row, unit(text), atol=1e-6)
    np.testing.assert_allclose(encoder.encode_query("b"), unit("b"), atol=1e-6)
    assert done[-1] == 3  # distinct texts
    assert encoder.encode_passages([], done.append).shape == (0, 3)


def test_batches_are_bounded_in_texts_and_characters(opened: Open) -> None:
    encoder, server = opened(batch_size=2, batch_characters=6)
    encoder.encode_passages(["1", "22", "333", "4444", "999999999"], lambda _: None)
    # The longest first: nine alone, four alone (with three it were seven), three and two, one.
    assert sorted(asked(server)) == [["1"], ["333", "22"], ["4444"], ["999999999"]]


def test_progress_that_raises_ends_the_work(opened: Open) -> None:
    encoder, server = opened(batch_size=1)

    def stop(_: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        encoder.encode_passages([str(number) for number in range(50)], stop)
    assert len(asked(server)) <= 5


def test_tei_says_what_it_serves(opened: Open) -> None:
    encoder, server = opened(server="tei", model="", batch_size=32)
    assert (encoder.name, encoder.precision, encoder.max_tokens) == ("org/e5-small-v2", "float16", 256)
    assert encoder.device == f"tei://127.0.0.1:{server.port}"
    encoder.encode_passages(["1", "2", "3"], lambda _: None)
    sizes = [len(one.json["inputs"]) for one in server.requests if one.path == "/v1/embed"]
    # The server takes two at a time; these two calls are made at a time.
    assert (sizes[0], sorted(sizes[1:])) == (1, [1, 2])


def test_prefixes_are_those_known_of_the_model_unless_set(opened: Open) -> None:
    known, server = opened(model="intfloat/multilingual-e5-small")
    known.encode_query("q")
    known.encode_passages(["p"], lambda _: None)
    assert asked(server) == [["query: q"], ["passage: p"]]
    own, other = opened(model="intfloat/multilingual-e5-small", query_prefix="Q ", passage_prefix="")
    own.encode_query("q")
    own.encode_passages(["p"], lambda _: None)
    assert asked(other) == [["Q q"], ["p"]]
    assert own.fingerprint != known.fingerprint


def test_the_fingerprint_follows_from_server_model_revision_and_dimension(opened: Open) -> None:
    def other(**changes: Any) -> Script:
        async def script(request: HttpRequest, reply: HttpReply) -> None:
            if request.method == "GET":
                await reply.send(200, INFO | changes)
            else:
                await by_text(request, reply)

        return script

    async def longer(request: HttpRequest, reply: HttpReply) -> None:
        data = [{"index": 0, "embedding": [1.0] * 4}]
        await reply.send(200, {"data": data, "model": "m"})

    made = [
        opened()[0],
        opened(model="n")[0],
        opened(server="vllm")[0],
        opened(longer)[0],
        opened(server="tei")[0],
        opened(other(model_sha="def"), server="tei")[0],
        opened(other(model_id="org/other"), server="tei")[0],
    ]
    assert len({encoder.fingerprint for encoder in made}) == len(made)
    assert made[0].fingerprint.startswith("openai-")
    # Where the server is does not matter.
    assert opened()[0].fingerprint == made[0].fingerprint


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_has_its_status(opened: Open, fault: Fault) -> None:
    changing = Changing()
    encoder, _ = opened(changing, idle_s=IDLE_S)
    changing.script = fault.script
    with pytest.raises(MeshError) as raised:
        encoder.encode_query("q")
    error = raised.value
    assert (error.code, error.reason, error.retry_after_s) == (fault.code, fault.reason, fault.retry_after_s)
    assert "127.0.0.1" not in error.message
    changing.script = by_text
    assert encoder.encode_query("q").shape == (3,)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_at_the_start_is_one_line(opened: Open, fault: Fault) -> None:
    with pytest.raises(CannotStart, match=r"^URLS=http://127\.0\.0\.1:\d+/v1: ") as raised:
        opened(fault.script, setting="URLS", idle_s=IDLE_S)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([(0, [1.0, 2.0, 3.0])], "1 vectors for 2 texts"),
        ([(0, [1.0, 2.0, 3.0]), (0, [1.0, 2.0, 3.0])], "two vectors for index 0"),
        ([(0, [1.0, 2.0, 3.0]), (1, [1.0])], "different length"),
        ([(0, [1.0, 2.0, 3.0]), (1, [0.0, 0.0, 0.0])], "no direction"),
        ([(0, [1.0, 2.0, 3.0]), (1, [1.0, 2.0, 1e999])], "not JSON"),
    ],
)
def test_a_reply_without_a_vector_for_each_text_is_an_error(
    opened: Open, data: list[tuple[int, Any]], message: str
) -> None:
    changing = Changing()
    encoder, _ = opened(changing)
    entries = [{"index": index, "embedding": values} for index, values in data]
    changing.script = replying(200, {"data": entries, "model": "m"})
    with pytest.raises(Unavailable, match=message) as raised:
        encoder.encode_passages(["1", "2"], lambda _: None)
    assert raised.value.reason == "REMOTE_MALFORMED_REPLY"


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (
            {"data": [{"index": 0, "embedding": [1.0, 2.0]}], "model": "m"},
            "vectors of 2 dimensions, not of 3",
        ),
        ({"data": [{"index": 0, "embedding": [1.0, 2.0, 3.0]}], "model": "n"}, "model 'n', not with 'm'"),
    ],
)
def test_another_model_than_at_the_start_is_named(opened: Open, reply: dict[str, Any], message: str) -> None:
    changing = Changing()
    encoder, _ = opened(changing)
    changing.script = replying(200, reply)
    with pytest.raises(Unavailable, match=message) as raised:
        encoder.encode_query("q")
    assert raised.value.reason == "ENCODER_CHANGED"


def test_other_weights_of_tei_are_noticed_and_make_it_not_ready(opened: Open) -> None:
    changing = Changing()
    reports: list[bool] = []
    seen = threading.Condition()

    def report(serving: bool) -> None:
        with seen:
            reports.append(serving)
            seen.notify_all()

    def reported(expected: bool) -> bool:
        with seen:
            return seen.wait_for(lambda: reports[-1:] == [expected], 10)

    encoder, _ = opened(changing, server="tei", ready=report, check_s=0.02)
    assert reported(True)
    changing.script = replying(200, INFO | {"model_sha": "def"})
    assert reported(False)
    with pytest.raises(Unavailable, match="serves org/e5-small-v2@def, not org/e5-small-v2@abc") as raised:
        encoder.encode_query("q")
    assert raised.value.reason == "ENCODER_CHANGED"
    changing.script = replying(503, {})
    assert reported(False)
    changing.script = by_text
    assert reported(True)
    assert encoder.encode_query("q").shape == (3,)


def test_servers_with_different_models_end_the_start(opened: Open) -> None:
    async def other(request: HttpRequest, reply: HttpReply) -> None:
        await reply.send(200, INFO | {"model_id": "org/other"})

    with in_thread(other) as second, pytest.raises(CannotStart, match="org/e5-small-v2@abc, org/other@abc"):
        opened(server="tei", others=(second.url,))


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": {"reranker": {}}},
        {"model_type": "embedding"},
        {"model_id": ""},
        {"model_id": "a\nb"},
        {"model_id": "m" * 257},
        {"model_id": 3},
    ],
)
def test_a_server_that_names_no_embedding_model_ends_the_start(opened: Open, changes: dict[str, Any]) -> None:
    with pytest.raises(CannotStart, match="names no embedding model"):
        opened(replying(200, INFO | changes), server="tei")


def test_a_query_waits_no_longer_than_its_caller(opened: Open) -> None:
    changing = Changing()
    encoder, server = opened(changing)
    changing.script = hang

    def ask() -> None:
        deadline.enter(deadline.Deadline.after(0.1))
        encoder.encode_query("q")

    with ThreadPoolExecutor(1) as thread, pytest.raises(DeadlineExceeded):
        thread.submit(ask).result()
    assert server.left.is_set() or len(server.requests) == 2


def test_closing_ends_what_waits(opened: Open) -> None:
    changing = Changing()
    encoder, _ = opened(changing)
    begun = threading.Event()

    async def computing(request: HttpRequest, reply: HttpReply) -> None:
        begun.set()
        await hang(request, reply)

    changing.script = computing
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(encoder.encode_query, "q")
        assert begun.wait(10)
        encoder.close()
        with pytest.raises(Unavailable, match="stops"):
            waiting.result(10)
    with pytest.raises(Unavailable, match="stops"):
        encoder.encode_query("q")


def test_threads_share_it(opened: Open) -> None:
    encoder, _ = opened()
    texts = [f"text {number}" for number in range(20)]
    with ThreadPoolExecutor(4) as threads:
        vectors = list(threads.map(encoder.encode_query, texts))
    for row, text in zip(vectors, texts, strict=True):
        np.testing.assert_allclose(row, unit(text), atol=1e-6)
