"""The audit log: who deleted what, from where, and which keys and limits changed; no texts, no secrets."""

# ruff: noqa: N802 - the names are those of the contract

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from evenmesh.common.v1.common_pb2 import Agent
from evenmesh.reranker.v1 import feedback_service_pb2 as feedback
from evenmesh.reranker.v1 import feedback_service_pb2_grpc as feedback_grpc
from evenmesh.retriever.v1 import collection_service_pb2 as collections
from evenmesh.retriever.v1 import collection_service_pb2_grpc as collections_grpc
from evenmesh.wire.channel import connect
from evenmesh.wire.errors import NotFound
from evenmesh.wire.file_watch import WatchedFiles
from evenmesh_kit.admission.limits import Limits, LimitsError, record_changes
from evenmesh_kit.rpc.server import MeshServer, Registration
from evenmesh_kit.security import audit, keys
from evenmesh_kit.security.caller import Caller, Role
from evenmesh_kit.security.keys import ApiKeys, KeyEntry
from evenmesh_kit.settings import ServiceSettings
from evenmesh_kit.telemetry.logs import configure
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support.lifecycle import Idle


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Start the logs of a service that logs errors only, and return what reads its audit log."""
    root, ours, audited = logging.getLogger(), logging.getLogger("evenmesh"), logging.getLogger(audit.LOGGER)
    before = (root.handlers[:], root.level, ours.level, audited.level)

    def read() -> list[dict[str, Any]]:
        written = capsys.readouterr().err.splitlines()
        found = [json.loads(line) for line in written if line.startswith("{")]  # gRPC may write others
        return [
            {
                name: line[name]
                for name in ("event", "outcome", "actor", "tenant", "method", "target", "reason")
            }
            | {"peer": line["peer"].rpartition(":")[0]}
            for line in found
            if line["logger"] == audit.LOGGER
        ]

    def start() -> Any:
        configure("echo", ServiceSettings(home=Path(), log_level="ERROR"))
        return read

    yield start
    logging.captureWarnings(capture=False)
    root.handlers[:], root.level = before[0], before[1]
    ours.setLevel(before[2])
    audited.setLevel(before[3])


def line(event: str, **fields: str) -> dict[str, str]:
    """A record, of which the fields are not empty that a test names."""
    empty = dict.fromkeys(("outcome", "actor", "tenant", "method", "target", "reason", "peer"), "")
    return {"event": event, **empty, **fields}


class Collections(collections_grpc.CollectionServiceServicer):
    """Deletes what is there."""

    async def DeletePassages(self, request: Any, context: Any) -> Any:
        return collections.DeletePassagesResponse()

    async def DeleteCollection(self, request: Any, context: Any) -> Any:
        if request.name == "boom":
            raise RuntimeError("a text of a user")
        raise NotFound("name", f"there is no collection {request.name}")

    async def GetCollection(self, request: Any, context: Any) -> Any:
        return collections.GetCollectionResponse()


class Feedback(feedback_grpc.FeedbackServiceServicer):
    """Promotes whatever is named."""

    async def PromoteModel(self, request: Any, context: Any) -> Any:
        return feedback.PromoteModelResponse()

    async def RollbackModel(self, request: Any, context: Any) -> Any:
        return feedback.RollbackModelResponse()


async def test_deletions_and_promotions_are_recorded(lines: Any, tmp_path: Path) -> None:
    read = lines()
    key, digest = keys.new_key()
    file = tmp_path / "keys.toml"
    roles = frozenset({Role.INGEST, Role.TRAIN})
    keys.add_entry(file, KeyEntry(name="ada", sha256=digest, tenant="acme", roles=roles))
    services = [
        Registration(
            collections_grpc.add_CollectionServiceServicer_to_server,
            Collections(),  # type: ignore[abstract]
            "evenmesh.retriever.v1.CollectionService",
        ),
        Registration(
            feedback_grpc.add_FeedbackServiceServicer_to_server,
            Feedback(),  # type: ignore[abstract]
            "evenmesh.reranker.v1.FeedbackService",
        ),
    ]
    settings = ServiceSettings(home=tmp_path, api_keys=file, grace_s=1)
    server = MeshServer("echo", settings, Idle(*services), telemetry=Telemetry.disabled())
    metadata = (("authorization", f"Bearer {key}"),)
    async with server, connect(server.address, service="any", retry=False) as channel:
        stub: Any = collections_grpc.CollectionServiceStub(channel)
        models: Any = feedback_grpc.FeedbackServiceStub(channel)
        await stub.GetCollection(collections.GetCollectionRequest(name="wiki"), metadata=metadata)
        await stub.DeletePassages(
            collections.DeletePassagesRequest(collection="wiki", passage_ids=["7"]), metadata=metadata
        )
        for name in ("nothing", "boom"):
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.DeleteCollection(collections.DeleteCollectionRequest(name=name), metadata=metadata)
        await models.PromoteModel(feedback.PromoteModelRequest(version="v7"), metadata=metadata)
        agent = Agent(task_id="qa", model_id="ann")
        await models.RollbackModel(feedback.RollbackModelRequest(agent=agent), metadata=metadata)
    who = {"actor": "ada", "tenant": "acme", "peer": "ipv4:127.0.0.1"}
    deleting = "/evenmesh.retriever.v1.CollectionService/Delete"
    service = "/evenmesh.reranker.v1.FeedbackService"
    assert read() == [
        line("call", outcome="done", target="wiki", method=f"{deleting}Passages", **who),
        line("call", outcome="failed", reason="NOT_FOUND", method=f"{deleting}Collection", **who),
        line("call", outcome="failed", reason="INTERNAL", method=f"{deleting}Collection", **who),
        line("call", outcome="done", target="v7", method=f"{service}/PromoteModel", **who),
        line("call", outcome="done", target="qa/ann", method=f"{service}/RollbackModel", **who),
    ]


def test_a_refusal_says_who_what_and_from_where(lines: Any) -> None:
    read = lines()
    audit.record("login_refused", None, "/a.B/C", "ipv6:%5B::1%5D:5000", "UNKNOWN_KEY")
    audit.record("denied", Caller("ada" * 999, "acme", frozenset()), "/a.B/C", "ipv4:1.2.3.4:5", "NO_ROLE")
    refused, denied = read()
    assert refused == line(
        "login_refused", outcome="refused", method="/a.B/C", peer="ipv6:[::1]", reason="UNKNOWN_KEY"
    )
    assert denied["actor"] == ("ada" * 999)[:256]
    assert (denied["tenant"], denied["peer"]) == ("acme", "ipv4:1.2.3.4")


def test_changed_keys_are_recorded_without_their_hashes(lines: Any, tmp_path: Path) -> None:
    read = lines()
    file, now = tmp_path / "keys.toml", 0.0
    entries = [
        KeyEntry(name=name, sha256=keys.new_key()[1], tenant="acme", roles=frozenset({Role.ASK}))
        for name in ("one", "two", "three")
    ]
    file.write_text("".join(map(keys.to_toml, entries[:2])))
    held = ApiKeys(file, clock=lambda: now)
    wider = entries[1].model_copy(update={"roles": frozenset({Role.ADMIN})})
    file.write_text("".join(map(keys.to_toml, [wider, entries[2]])))
    now = 5.0
    held.file.content()
    found = sorted(read(), key=lambda one: str(one["event"]))
    assert found == [
        line("key_added", outcome="done", target="three", tenant="acme"),
        line("key_changed", outcome="done", target="two", tenant="acme"),
        line("key_removed", outcome="done", target="one", tenant="acme"),
    ]
    held.file.content()
    assert read() == []


def test_changed_limits_are_recorded(lines: Any, tmp_path: Path) -> None:
    read = lines()
    path = tmp_path / "limits.toml"
    path.write_text("[default]\nconcurrent = 2\n[tenants.acme]\nburst = 3\n[tenants.gone]\n")
    file = WatchedFiles((path,), lambda: Limits.read(path), LimitsError, every_s=0, on_change=record_changes)
    path.write_text("[default]\nconcurrent = 2\n[tenants.acme]\nburst = 44\n[tenants.new]\nburst = 1\n")
    file.content()
    assert read() == [
        line("limits_changed", outcome="done", target="tenants.acme", tenant="acme"),
        line("limits_removed", outcome="done", target="tenants.gone", tenant="gone"),
        line("limits_added", outcome="done", target="tenants.new", tenant="new"),
    ]
    path.write_text("[default]\nconcurrent = 9\n[tenants.acme]\nburst = 44\nconcurrent = 2\n")
    file.content()
    assert [one["event"] for one in read()] == ["limits_changed", "limits_removed"]
