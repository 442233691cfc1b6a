"""Every method of the contract states its facts, and every client and service keeps to them."""

from __future__ import annotations

import importlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import evenmesh
from evenmesh import Addresses, AsyncClient, Client
from evenmesh.common.v1.method_options_pb2 import (
    METERING_CALLS,
    METERING_TOKENS,
    METERING_UNSPECIFIED,
    ROLE_UNSPECIFIED,
    facts,
)
from evenmesh.wire import channel
from evenmesh.wire.channel import DEFAULT_MAX_MESSAGE_BYTES
from evenmesh.wire.methods import facts_of, retryable_methods
from evenmesh_kit.security.access import roles_of
from evenmesh_kit.security.caller import Role
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_orchestrator.clients import EvaluatorClient, GeneratorClient, RerankerClient, RetrieverClient

PROTOS = Path(__file__).parents[2] / "protos"
SERVICES = {
    service.full_name: service
    for stub in sorted(Path(evenmesh.__file__).parent.glob("*/v1/*_service_pb2.py"))
    for service in importlib.import_module(
        f"evenmesh.{stub.parts[-3]}.v1.{stub.stem}"
    ).DESCRIPTOR.services_by_name.values()
}
METHODS = {
    f"/{name}/{method.name}": method for name, service in SERVICES.items() for method in service.methods
}


def test_every_method_of_the_protos_is_looked_at() -> None:
    declared = sum(
        line.strip().startswith("rpc ")
        for path in PROTOS.rglob("*.proto")
        for line in path.read_text().splitlines()
    )
    assert len(METHODS) == declared


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_states_each_fact(method: str) -> None:
    stated = METHODS[method].GetOptions().Extensions[facts]
    assert stated.HasField("retryable")
    assert stated.roles
    assert ROLE_UNSPECIFIED not in stated.roles
    assert stated.metering != METERING_UNSPECIFIED
    assert 1024 <= stated.max_request_bytes <= DEFAULT_MAX_MESSAGE_BYTES
    assert facts_of(method) == stated


def test_what_writes_a_record_or_a_version_is_never_sent_again() -> None:
    once = {method.name for name, method in METHODS.items() if not facts_of(name).retryable}
    assert once == {
        "Ask",
        "Audit",
        "Converse",
        "CreateCollection",
        "Ingest",
        "PromoteModel",
        "RollbackModel",
        "Observe",
        "VoteAnytime",
    }


def test_no_stream_of_requests_is_sent_again() -> None:
    assert not [name for name, one in METHODS.items() if one.client_streaming and facts_of(name).retryable]


def test_tokens_are_metered_where_models_read_or_write_for_the_caller() -> None:
    metered = {name.rpartition(".")[2] for name in METHODS if facts_of(name).metering == METERING_TOKENS}
    assert metered == {
        "OrchestratorService/Ask",
        "OrchestratorService/Audit",
        "OrchestratorService/Converse",
        "GeneratorService/Generate",
        "GeneratorService/GenerateBatch",
        "GeneratorService/ScoreRelevance",
    }
    assert facts_of("/evenmesh.retriever.v1.RetrieverService/Retrieve").metering == METERING_CALLS


def test_what_deletes_or_changes_the_served_model_is_audited() -> None:
    audited = {name.rpartition(".")[2] for name in METHODS if facts_of(name).audited}
    assert audited == {
        "CollectionService/DeletePassages",
        "CollectionService/DeleteCollection",
        "FeedbackService/DeleteAgent",
        "FeedbackService/PromoteModel",
        "FeedbackService/RollbackModel",
        "EvaluatorService/DeleteRun",
        "EvaluatorService/ResetExposureBalance",
    }
    # A new method that says so by its name must state it.
    words = ("Delete", "Remove", "Promote", "Rollback", "Purge", "Reset")
    named = {name.rpartition(".")[2] for name in METHODS if name.rpartition("/")[2].startswith(words)}
    assert named <= audited


@pytest.mark.parametrize(
    ("method", "roles"),
    [
        ("orchestrator.v1.OrchestratorService/Ask", {Role.ASK}),
        ("orchestrator.v1.OrchestratorService/ListEnsembles", {Role.ASK}),
        ("retriever.v1.RetrieverService/Embed", {Role.ASK, Role.INGEST}),
        ("retriever.v1.RetrieverService/ListSources", {Role.ASK, Role.INGEST}),
        ("retriever.v1.CollectionService/DeleteCollection", {Role.INGEST}),
        ("reranker.v1.FeedbackService/RecordFeedback", {Role.FEEDBACK}),
        ("reranker.v1.FeedbackService/ListModels", {Role.FEEDBACK, Role.TRAIN}),
        ("reranker.v1.FeedbackService/DeleteAgent", {Role.TRAIN}),
        ("reranker.v1.FeedbackService/PromoteModel", {Role.TRAIN}),
        ("generator.v1.GeneratorService/ListModels", {Role.ASK}),
        ("evaluator.v1.EvaluatorService/Observe", {Role.ASK}),
        ("evaluator.v1.EvaluatorService/GetExposureStatement", {Role.ASK, Role.PROVIDER}),
        ("evaluator.v1.EvaluatorService/DeleteRun", {Role.INGEST}),
        ("evaluator.v1.EvaluatorService/ResetExposureBalance", {Role.INGEST}),
    ],
)
def test_the_roles_of_a_method(method: str, roles: set[Role]) -> None:
    assert roles_of(f"/evenmesh.{method}") == roles


def test_every_role_has_a_method() -> None:
    opened = {role for name in METHODS for role in roles_of(name)}
    assert opened == set(Role) - {Role.ADMIN, Role.SERVICE}


def test_a_method_that_no_proto_has_is_open_to_no_role_and_sent_once() -> None:
    unknown = "/evenmesh.orchestrator.v1.OrchestratorService/New"
    assert roles_of(unknown) == frozenset()
    assert not facts_of(unknown).retryable
    assert retryable_methods("another.v1.Service") == []


async def test_what_the_clients_send_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what gRPC learns when their channels open."""
    retried: dict[str, set[str]] = defaultdict(set)
    config_of = channel.service_config

    def noted(*arguments: Any) -> str:
        config = config_of(*arguments)
        for entry in json.loads(config).get("methodConfig", []):
            assert entry["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]
            for name in entry["name"]:
                retried[name["service"]].add(name["method"])
        return config

    monkeypatch.setattr(channel, "service_config", noted)
    options = {"max_message_bytes": 2**20, "telemetry": Telemetry.disabled()}
    for client in (RetrieverClient, RerankerClient, GeneratorClient, EvaluatorClient):
        await client.channel_to("127.0.0.1:9", **options).close()
    addresses = Addresses("127.0.0.1:9")
    async with AsyncClient(addresses):
        pass
    with Client(addresses):
        pass
    assert retried == {name: set(retryable_methods(name)) for name in SERVICES if retryable_methods(name)}
