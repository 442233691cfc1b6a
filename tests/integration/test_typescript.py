"""The TypeScript client in Node before the real mesh: over gRPC, and over Connect through the gateway."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from evenmesh import Client, GroupTarget
from tests.integration.conftest import DEMO, RunningMesh
from tests.support.gateway_process import GatewayProcess
from tests.support.node_tools import CLIENT, node_with_client

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(900)]

QUESTION = "How often should I oil my chain?"
NOT_FOUND = 5


@pytest.fixture(scope="module", params=["connect", "grpc"])
def address(
    request: pytest.FixtureRequest, mesh: RunningMesh, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[str]]:
    """The arguments that say where the mesh is, by each protocol."""
    node_with_client()
    if request.param == "grpc":
        yield ["grpc", f"http://{mesh.addresses.orchestrator}"]
        return
    with GatewayProcess(tmp_path_factory.mktemp("gateway"), mesh.addresses) as served:
        yield [served.url]


def said(address: list[str], collection: str) -> list[dict[str, Any]]:
    script = [node_with_client(), "examples/ask.mjs", *address, collection, QUESTION]
    done = subprocess.run(script, cwd=CLIENT, capture_output=True, text=True, timeout=240, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_an_ask_of_node_streams_the_answer_and_the_shares_of_grpc(address: list[str], client: Client) -> None:
    shown, answered = said(address, DEMO)
    asked = client.answer(QUESTION, alpha=2, samples=4, seed=11, collection=DEMO, observe=False)
    assert answered["text"] == asked.text
    assert answered["seen"][:3] == ["retrieved", "ranked", "delta"]
    assert answered["seen"][-1] == "done"
    assert asked.report is not None
    assert shown["disparity"] == asked.report.ee_d_norm
    assert shown["shares"] == [[one.name, one.share] for one in asked.report.providers]


def test_an_error_has_its_reason_and_its_field(address: list[str]) -> None:
    (error,) = said(address, "nothing")
    assert (error["code"], error["reason"], error["field"]) == (NOT_FOUND, "NOT_FOUND", "collection")
    assert "nothing" in error["message"]


def test_a_conversation_of_node_is_measured_as_over_grpc(address: list[str], client: Client) -> None:
    turns = [QUESTION, "And how do I clean it?"]
    script = [node_with_client(), "examples/talk.mjs", *address, DEMO, *turns]
    done = subprocess.run(script, cwd=CLIENT, capture_output=True, text=True, timeout=240, check=True)
    target = GroupTarget("provider", ("Quillgate Cycles Handbook", "Small Saddles Library"))
    with client.converse(collection=DEMO, conversation={"targets": [target]}) as talk:
        for line, words in zip(done.stdout.splitlines(), turns, strict=True):
            turn = talk.answer(words)
            assert turn.report is not None
            wanted = {"relevance": turn.report.relevance, "fairness": turn.report.group_fairness}
            assert json.loads(line) == {"text": turn.text, **wanted}
