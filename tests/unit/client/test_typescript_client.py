"""The TypeScript client in Node without a mesh: ids of feedback, and errors of calls that nobody answers."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from evenmesh import Agent, Feedback
from tests.support.node_tools import CLIENT, node_with_client

UNAVAILABLE: Final = 14
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

ERROR: Final = """
import { connectMesh, MeshError } from "evenmesh";
import { grpcMesh } from "evenmesh/node";

const [by, address] = process.argv.slice(1);
const mesh = by === "grpc" ? grpcMesh({ addresses: { orchestrator: address } }) : connectMesh({ baseUrl: address });
try {
  for await (const _ of mesh.ask("q"));
} catch (error) {
  const { code, reason, rawMessage } = error;
  console.log(JSON.stringify({ code, reason, message: rawMessage, typed: error instanceof MeshError }));
}
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


def test_an_id_that_is_given_stays_and_what_is_left_out_is_empty() -> None:
    given = [
        {"id": "mine", "query": "q", "passageId": "p", "usefulness": 1, "agent": {"taskId": "t"}},
        {"query": "q", "passageId": "p", "usefulness": 1, "agent": {"taskId": "t"}},
    ]
    assert ran(IDS, "secure", given=json.dumps(given)) == ["mine", Feedback("q", "p", 1, Agent("t", "")).key]


@pytest.mark.parametrize(("by", "service"), [("connect", "gateway"), ("grpc", "orchestrator")])
def test_an_unreachable_mesh_names_its_address(by: str, service: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    error = ran(ERROR, by, address)
    assert error == {
        "code": UNAVAILABLE,
        "reason": "UNREACHABLE",
        "message": f"no {service} answers at {address}; start the mesh with: evenmesh up",
        "typed": True,
    }


@contextmanager
def breaking_off() -> Iterator[str]:
    """Give the address of a server that ends each connection within its reply."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                head = "HTTP/1.1 200 OK\r\nContent-Type: application/connect+proto\r\nTransfer-Encoding: chunked\r\n\r\n"
                connection.sendall(head.encode() + b"2\r\n\0\0\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(30)


def test_a_connection_that_breaks_within_an_ask_is_an_error_of_the_mesh() -> None:
    with breaking_off() as address:
        error = ran(ERROR, "connect", address)
    assert (error["code"], error["reason"]) == (UNAVAILABLE, "UNREACHABLE")
    assert address in error["message"]
