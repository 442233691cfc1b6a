"""The TypeScript client in Node without a mesh: ids of feedback, and errors of calls that nobody answers."""

from __future__ import annotations

import json
import random
import re
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from evenmesh import Agent, Feedback
from tests.support.node_tools import CLIENT, node_with_client

CANCELLED: Final = 1
INVALID_ARGUMENT: Final = 3
UNAVAILABLE: Final = 14
HTTP2_SETTINGS: Final = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""A server's first frame: its settings, of which it states none."""
HTTP2_SETTINGS_READ: Final = bytes((0, 0, 0, 4, 1, 0, 0, 0, 0))
"""The frame by which a server acknowledges the settings of a client."""
CONTENTS: Final = {
    "5a999f65afc0d93f610f9e0f5f9ef96a": Feedback("q", "p", 1, Agent("t", "m")),
    "cb6aa4802c3e390618307790636c5695": Feedback(
        "How often should I oil my chain?",
        "bike-0001",
        0.5,
        Agent("qa", ""),
        "v3",
        "demo",
        ["bike-0001", "bike-0002"],
    ),
    "7c6debc6897f6e4f199b38926fe2191e": Feedback(
        "Wie öle ich „die Kette“?\n\t🚲\x7f", "سلسلة/1", 1e-7, Agent("", "模型")
    ),
    "026626374ee034aaa4b5c1ea74237a0e": Feedback("q", "p", 0, Agent("t", ""), ranking=["p"]),
    "0e7146b08a63f6c3e15a3b52e2ef5719": Feedback("q", "p", 0.30000000000000004, Agent("t", ""), "", "demo"),
}
"""Feedback by the id that the Python client gave it."""

IDS: Final = """
import { Mesh } from "evenmesh";
import { createRouterTransport } from "@connectrpc/connect";
import { FeedbackService } from "evenmesh/gen/evenmesh/reranker/v1/feedback_service_pb";

if (process.argv[1] === "insecure") Object.defineProperty(globalThis.crypto, "subtle", { value: undefined });
const sent = [];
const transport = createRouterTransport(({ service }) => {
  service(FeedbackService, { recordFeedback: ({ feedback }) => (sent.push(...feedback.map((one) => one.id)), {}) });
});
let text = "";
for await (const part of process.stdin.setEncoding("utf8")) text += part;
await new Mesh(() => transport).giveFeedback(JSON.parse(text));
console.log(JSON.stringify(sent));
"""

CALLS: Final = """
import { Mesh } from "evenmesh";
import { createRouterTransport } from "@connectrpc/connect";
import { FeedbackService } from "evenmesh/gen/evenmesh/reranker/v1/feedback_service_pb";

const [count, length, ranked] = process.argv.slice(1).map(Number);
const calls = [];
const recordFeedback = ({ feedback }) => (calls.push(feedback.length), { results: feedback.map(({ id }) => ({ id })) });
const transport = createRouterTransport(({ service }) => void service(FeedbackService, { recordFeedback }));
const [query, ranking] = ["q".repeat(length), Array(ranked).fill("p")];
const items = Array.from({ length: count }, (_, at) => ({ id: `${at}`, query, passageId: "p", ranking }));
const results = await new Mesh(() => transport).giveFeedback(items);
console.log(JSON.stringify([calls, results.length === count && results.every(({ id }, at) => id === `${at}`)]));
"""

ERROR: Final = """
import { connectMesh, MeshError } from "evenmesh";
import { grpcMesh } from "evenmesh/node";

const [by, address, call, endsAfter] = process.argv.slice(1);
const addresses = { orchestrator: address, retriever: address };
const mesh = by === "grpc" ? grpcMesh({ addresses }) : connectMesh({ baseUrl: address });
const caller = new AbortController();
const { signal } = caller;
if (endsAfter !== undefined) setTimeout(() => caller.abort(), Number(endsAfter));
try {
  if (call === "unary") await mesh.collections.listCollections({}, { signal });
  for await (const _ of mesh.ask("q", {}, { signal }));
} catch (error) {
  const { code, reason, rawMessage, cancelled } = error;
  console.log(JSON.stringify({ code, reason, message: rawMessage, cancelled, typed: error instanceof MeshError }));
}
process.exit(0);
"""

PATH: Final = """
import { createServer } from "node:http";
import { connectMesh } from "evenmesh";

let answer = { status: 415, type: "application/problem+json", body: "{}" };
const server = createServer((_, reply) => {
  reply.writeHead(answer.status, { "content-type": answer.type });
  reply.end(answer.body);
});
await new Promise((done) => server.listen(0, "127.0.0.1", done));
const address = `http://127.0.0.1:${server.address().port}`;
const asking = (baseUrl) => connectMesh({ baseUrl }).ask("q").next();
const listing = (baseUrl) => connectMesh({ baseUrl }).collections.listCollections({});
const of = (call) => call.then(() => "answered", (error) => error);
const bare = await of(asking(`${address}/`));
const ask = await of(asking(`${address}/v1`));
const unary = await of(listing(`${address}/v1`));
answer = { status: 404, type: "application/json", body: '{"code": "not_found", "message": "none"}' };
const lost = await of(listing(`${address}/mesh`));
console.log(
  JSON.stringify([
    [
      `no path: ${bare.message}`,
      `ask: ${ask.reason} ${ask.code}`,
      `unary: ${unary.reason} ${unary.code}`,
      `not found: ${lost.code}`,
    ],
    ask.rawMessage,
  ]),
);
process.exit(0);
"""

WRONG: Final = """
import { Mesh, MeshError } from "evenmesh";
import { createRouterTransport } from "@connectrpc/connect";
import { OrchestratorService } from "evenmesh/gen/evenmesh/orchestrator/v1/orchestrator_service_pb";
import { FeedbackService } from "evenmesh/gen/evenmesh/reranker/v1/feedback_service_pb";
import { CollectionService } from "evenmesh/gen/evenmesh/retriever/v1/collection_service_pb";

let reached = 0;
const transport = createRouterTransport(({ service }) => {
  service(OrchestratorService, { async *ask() { reached += 1; yield { event: { case: "delta", value: {} } }; } });
  service(FeedbackService, { recordFeedback: () => ((reached += 1), {}), listAgents: () => ((reached += 1), {}) });
  service(CollectionService, { async ingest(requests) { for await (const _ of requests) reached += 1; return {}; } });
});
const mesh = new Mesh(() => transport);
const ask = (options, call) => mesh.ask("q", options, call).next();
const give = (...items) => mesh.giveFeedback(items.map((one) => ({ query: "q", passageId: "p", usefulness: 1, ...one })));
async function* ingested() { yield { collection: "c" }; yield { passages: [{ id: 1 }] }; }
const calls = {
  k: () => ask({ k: -1 }),
  "ask.k": () => mesh.turn("q", { ask: { k: 1.5 } }).next(),
  page_size: () => mesh.feedback.listAgents({ pageSize: 2 ** 32 }),
  question: () => mesh.ask(7).next(),
  "sampling.alpha": () => ask({ sampling: { alpha: "2" } }),
  "sampling.seed": () => ask({ sampling: { seed: -1n } }),
  "labels.useful_passage_ids[1]": () => ask({ labels: { usefulPassageIds: ["a", 2] } }),
  "labels.useful_passage_ids": () => ask({ labels: { usefulPassageIds: "a" } }),
  'candidates.passages[0].attributes["year"]': () =>
    ask({ source: { case: "candidates", value: { passages: [{ attributes: { year: 2020 } }] } } }),
  skip_observation: () => ask({ skipObservation: "no" }),
  colection: () => ask({ colection: "demo" }),
  collection: () => ask({ collection: "demo" }),
  source: () => ask({ source: "demo" }),
  sampling: () => ask({ sampling: 2 }),
  "feedback[1].usefulness": () => give({}, { usefulness: "high" }),
  feedback: () => mesh.giveFeedback({ query: "q", passageId: "p" }),
  timeoutMs: () => ask({}, { timeoutMs: NaN }),
  "passages[0].id": () => mesh.collections.ingest(ingested()),
};
const found = {};
for (const [field, call] of Object.entries(calls)) {
  try {
    await call();
  } catch (error) {
    found[field] = [error instanceof MeshError, error.code, error.reason, error.field, error.rawMessage];
  }
}
const before = reached;
const source = { case: "collection", value: "demo" };
await ask({ k: undefined, source, sampling: { alpha: 2, seed: 7, numRankings: 4 }, labels: { hasUseful: true } });
await ask({ source: { case: undefined } }, { timeoutMs: Infinity });
console.log(JSON.stringify([found, Object.keys(calls), before, reached - before]));
process.exit(0);
"""

TIMEOUT: Final = """
import { createServer } from "node:http";
import { createServer as createHttp2Server } from "node:http2";
import { connectMesh } from "evenmesh";
import { grpcMesh } from "evenmesh/node";

const [by, ...given] = process.argv.slice(1);
const asked = [];
const read = ({ headers }, reply) => (asked.push(headers["grpc-timeout"] ?? headers["connect-timeout-ms"]), reply.end());
const server = by === "grpc" ? createHttp2Server(read) : createServer(read);
await new Promise((done) => server.listen(0, "127.0.0.1", done));
const address = `http://127.0.0.1:${server.address().port}`;
const addresses = { orchestrator: address, retriever: address };
const mesh = by === "grpc" ? grpcMesh({ addresses }) : connectMesh({ baseUrl: address });
const call = given.length ? { timeoutMs: Number(given[0]) } : {};
await mesh.collections.listCollections({}, call).catch(() => undefined);
await mesh.ask("q", {}, call).next().catch(() => undefined);
console.log(JSON.stringify(asked));
process.exit(0);
"""

LEAVING: Final = """
import { create, toBinary } from "@bufbuild/protobuf";
import { createServer } from "node:http";
import { createServer as createHttp2Server } from "node:http2";
import { connectMesh } from "evenmesh";
import { grpcMesh } from "evenmesh/node";
import { AskResponseSchema, ConverseResponseSchema } from "evenmesh/gen/evenmesh/orchestrator/v1/orchestrator_service_pb";

const [by, call] = process.argv.slice(1);
const delta = { event: { case: "delta", value: { text: "one" } } };
const [schema, event] = call === "ask" ? [AskResponseSchema, delta] : [ConverseResponseSchema, { conversationId: "c" }];
const message = toBinary(schema, create(schema, event));
const head = Buffer.alloc(5);
head.writeUInt32BE(message.length, 1);
let ended;
const end = new Promise((done) => (ended = done));
const answer = (_, reply) => {
  reply.on("close", () => ended("ended"));
  reply.writeHead(200, { "content-type": by === "grpc" ? "application/grpc+proto" : "application/connect+proto" });
  reply.write(Buffer.concat([head, message])); // and it goes on
};
const server = by === "grpc" ? createHttp2Server(answer) : createServer(answer);
await new Promise((done) => server.listen(0, "127.0.0.1", done));
const address = `http://127.0.0.1:${server.address().port}`;
const mesh = by === "grpc" ? grpcMesh({ addresses: { orchestrator: address } }) : connectMesh({ baseUrl: address });
for await (const _ of mesh[call]("q")) break;
setTimeout(() => ended("goes on"), 20_000);
console.log(JSON.stringify(await end));
process.exit(0);
"""


def ran(script: str, *arguments: str, given: str = "") -> Any:
    """Run a script in Node and return what it printed, as JSON."""
    command = [node_with_client(), "--input-type=module", "-e", script, *arguments]
    done = subprocess.run(
        command, cwd=CLIENT, input=given, capture_output=True, encoding="utf-8", timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def as_typescript(one: Feedback) -> dict[str, object]:
    """Return feedback as TypeScript gives it, in JSON."""
    return {
        "id": one.id,
        "query": one.query,
        "passageId": one.passage_id,
        "usefulness": one.usefulness,
        "agent": {"taskId": one.agent.task_id, "modelId": one.agent.model_id},
        "modelVersion": one.model_version,
        "collection": one.collection,
        "ranking": list(one.ranking),
    }


def many() -> list[Feedback]:
    """Return feedback with texts of every plane of Unicode, of many lengths, and numbers of every size."""
    chance = random.Random(5)
    signs = [
        *map(chr, range(0x20)),
        *map(chr, (0x7F, 0x80, 0x2028, 0xD7FF, 0xE000, 0xFFFF, 0x1F6B2, 0x10FFFF)),
        *'"\\/ abcäß€車شع',
    ]
    numbers = [
        0.0,
        -0.0,
        1.0,
        0.1 + 0.2,
        1e-4,
        9.999e-5,
        1e-5,
        1e-7,
        5e-324,
        1e15,
        1e16,
        1.5e16,
        1e21,
        1e22,
        -1e-7,
    ]
    numbers += [chance.random() * 10.0 ** chance.randint(-12, 25) for _ in range(300)]
    words = lambda: "".join(chance.choices(signs, k=chance.randint(0, 80)))  # noqa: E731
    return [
        Feedback(
            words(),
            words(),
            number,
            Agent(words(), words()),
            words(),
            words(),
            [words() for _ in range(at % 4)],
        )
        for at, number in enumerate(numbers)
    ]


def test_feedback_has_the_id_that_python_gives_it() -> None:
    assert [one.key for one in CONTENTS.values()] == list(CONTENTS)
    items = [*CONTENTS.values(), *many()]
    ids = ran(IDS, "secure", given=json.dumps([as_typescript(one) for one in items]))
    assert ids == [one.key for one in items]
    assert len(set(ids)) == len(items)


def test_a_page_without_digests_draws_ids() -> None:
    ids = ran(IDS, "insecure", given=json.dumps([as_typescript(one) for one in CONTENTS.values()] * 2))
    assert len(set(ids)) == 2 * len(CONTENTS)
    assert {len(one) for one in ids} == {32}


@pytest.mark.parametrize(
    ("count", "length", "ranked", "calls"),
    [
        (0, 1, 0, []),
        (2001, 1, 0, [1000, 1000, 1]),
        (401, 1, 1000, [200, 200, 1]),
        (3, 3_000_000, 0, [2, 1]),
        (1, 9_000_000, 0, [1]),
    ],
)
def test_feedback_is_sent_in_calls_as_large_as_a_call_may_be(
    count: int, length: int, ranked: int, calls: list[int]
) -> None:
    assert ran(CALLS, str(count), str(length), str(ranked)) == [calls, True]


def test_an_id_that_is_given_stays_and_what_is_left_out_is_empty() -> None:
    given = [
        {"id": "mine", "query": "q", "passageId": "p", "usefulness": 1, "agent": {"taskId": "t"}},
        {"query": "q", "passageId": "p", "usefulness": 1, "agent": {"taskId": "t"}},
    ]
    assert ran(IDS, "secure", given=json.dumps(given)) == ["mine", Feedback("q", "p", 1, Agent("t", "")).key]


def test_a_wrong_value_or_name_is_refused_before_anything_is_sent() -> None:
    found, fields, before, after = ran(WRONG)
    assert list(found) == fields
    for field, (typed, code, reason, named, message) in found.items():
        assert (typed, code, reason, named) == (True, INVALID_ARGUMENT, "INVALID_FIELD", field)
        assert message.startswith(f"{field}: ")
    assert "-1 out of range" in found["k"][4]
    assert "there are: question, source," in found["colection"][4]
    assert 'write source: { case: "collection"' in found["collection"][4]
    assert before == 1, "of a stream of requests what came before the wrong one was sent"
    assert after == 2


def test_an_address_with_the_path_of_another_api_is_named() -> None:
    status, message = ran(PATH)
    assert status == ["no path: [unknown] HTTP 415", "ask: NO_ROUTE 12", "unary: NO_ROUTE 12", "not found: 5"]
    assert re.fullmatch(
        r"nothing speaks Connect at (http://127.0.0.1:\d+)/v1 \(HTTP 415\);"
        r" give the gateway's address without a path: \1",
        message,
    )


@pytest.mark.parametrize(("by", "service"), [("connect", "gateway"), ("grpc", "orchestrator")])
def test_an_unreachable_mesh_names_its_address(by: str, service: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    error = ran(ERROR, by, address)
    assert error == {
        "code": UNAVAILABLE,
        "reason": "UNREACHABLE",
        "message": f"no {service} answers at {address}; start the mesh with: evenmesh up",
        "cancelled": False,
        "typed": True,
    }


@pytest.mark.parametrize(
    ("by", "minute", "second"), [("connect", "60000", "1000"), ("grpc", "60000m", "1000m")]
)
def test_a_call_ends_after_a_minute_unless_it_says_otherwise(by: str, minute: str, second: str) -> None:
    assert ran(TIMEOUT, by) == [minute] * 2
    assert ran(TIMEOUT, by, "1000") == [second] * 2
    assert ran(TIMEOUT, by, "0") == [None] * 2


@pytest.mark.parametrize("by", ["connect", "grpc"])
@pytest.mark.parametrize("call", ["ask", "turn"])
def test_who_leaves_the_loop_ends_the_call(by: str, call: str) -> None:
    assert ran(LEAVING, by, call) == "ended"


@contextmanager
def breaking_off(*replies: bytes, reset: bool = False) -> Iterator[str]:
    """Give the address of a server that takes one connection, and ends it within its reply.

    Args:
        replies: what it sends, each once it has read something.
        reset: whether it resets the connection instead of closing it.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                for reply in replies:
                    connection.recv(65_536)
                    connection.sendall(reply)
                if reset:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(30)


def reply_in_part(status: str, type_: str) -> bytes:
    """Return the beginning of a reply over HTTP."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/{type_}\r\nContent-Length: 100\r\n\r\n"
    return head.encode() + b"\0\0"


@pytest.mark.parametrize(
    ("call", "reply"),
    [
        ("stream", reply_in_part("200 OK", "connect+proto")),
        ("unary", reply_in_part("200 OK", "proto")),
        ("unary", reply_in_part("503 Service Unavailable", "json")),
    ],
    ids=["stream", "unary", "error"],
)
def test_a_connection_that_breaks_within_a_reply_is_an_error_of_the_mesh(call: str, reply: bytes) -> None:
    with breaking_off(reply) as address:
        error = ran(ERROR, "connect", address, call)
    assert (error["code"], error["reason"]) == (UNAVAILABLE, "UNREACHABLE")
    assert address in error["message"]


@pytest.mark.parametrize("call", ["stream", "unary"])
@pytest.mark.parametrize("reset", [False, True])
def test_a_broken_connection_of_grpc_is_no_call_that_its_caller_ended(call: str, reset: bool) -> None:
    with breaking_off(HTTP2_SETTINGS, HTTP2_SETTINGS_READ, reset=reset) as address:
        error = ran(ERROR, "grpc", address, call)
    assert (error["code"], error["reason"], error["cancelled"]) == (UNAVAILABLE, "UNREACHABLE", False)
    assert address in error["message"]


@pytest.mark.parametrize("by", ["connect", "grpc"])
@pytest.mark.parametrize("call", ["stream", "unary"])
def test_a_call_that_its_caller_ended_says_so(by: str, call: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = ran(ERROR, by, f"http://127.0.0.1:{silent.getsockname()[1]}", call, "50")
    assert (error["code"], error["reason"], error["cancelled"]) == (CANCELLED, "", True)
