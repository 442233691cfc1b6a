"""Every method of the contract is either sent again or not, and every client keeps to it."""

from __future__ import annotations

import importlib
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ragmesh
from meshkit import channel, retries
from meshkit.telemetry import Telemetry
from orchestrator.clients import EvaluatorClient, GeneratorClient, RerankerClient, RetrieverClient
from ragmesh import Addresses, AsyncClient, Client


def _methods() -> Iterator[tuple[str, set[str]]]:
    """Services of all protos and their methods."""
    root = Path(ragmesh.__file__).parent
    for stub in sorted(root.glob("*/v1/*_service_pb2.py")):
        module = importlib.import_module(f"ragmesh.{stub.parts[-3]}.v1.{stub.stem}")
        for service in module.DESCRIPTOR.services_by_name.values():
            yield service.full_name, set(service.methods_by_name)


def test_every_method_is_decided_on_once() -> None:
    contract = dict(_methods())
    assert set(retries.REPEATABLE) == set(retries.ONCE) == set(contract)
    for service, methods in contract.items():
        assert retries.REPEATABLE[service] | retries.ONCE[service] == methods, service
        assert not retries.REPEATABLE[service] & retries.ONCE[service], service


def test_what_writes_a_record_or_a_version_is_never_sent_again() -> None:
    once = {method for methods in retries.ONCE.values() for method in methods}
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


@pytest.mark.parametrize(
    ("service", "method"),
    [(service, method) for service in sorted(retries.ONCE) for method in sorted(retries.ONCE[service])],
)
def test_a_channel_refuses_to(service: str, method: str) -> None:
    with pytest.raises(ValueError, match=f"{method} must not be sent again"):
        channel.service_config(service, [method])


async def test_what_the_clients_send_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what gRPC is told when their channels open."""
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
    assert retried == {
        "ragmesh.retriever.v1.RetrieverService": {"Retrieve", "ListSources"},
        "ragmesh.retriever.v1.CollectionService": {"ListCollections", "GetCollection", "DeleteCollection"},
        "ragmesh.reranker.v1.RerankerService": {"Rerank"},
        "ragmesh.reranker.v1.FeedbackService": {
            "RecordFeedback",
            "RegisterAgent",
            "ListAgents",
            "ListModels",
            "GetTrainingStatus",
        },
        "ragmesh.generator.v1.GeneratorService": {"Generate", "GenerateBatch"},
        "ragmesh.evaluator.v1.EvaluatorService": {
            "ListRuns",
            "GetReport",
            "ListConfigurations",
            "ListMeasurements",
        },
    }
