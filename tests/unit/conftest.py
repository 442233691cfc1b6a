"""A small real mesh: one gRPC server with scripted services, for clients and commands to call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from anyio.from_thread import start_blocking_portal

if TYPE_CHECKING:
    from tests.support.scripted import ScriptedMesh


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[ScriptedMesh]:
    """A running server with scripted services; its loop is in a thread of its own."""
    from evenmesh import Addresses
    from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as evaluator_grpc
    from evenmesh.generator.v1 import generator_service_pb2_grpc as generator_grpc
    from evenmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as orchestrator_grpc
    from evenmesh.retriever.v1 import collection_service_pb2_grpc as collection_grpc
    from evenmesh.retriever.v1 import retriever_service_pb2_grpc as retriever_grpc
    from evenmesh_kit.rpc.server import MeshServer, Registration
    from evenmesh_kit.settings import ServiceSettings
    from evenmesh_kit.telemetry.setup import Telemetry
    from tests.support.lifecycle import Idle
    from tests.support.scripted import (
        Collections,
        Evaluator,
        Generator,
        Orchestrator,
        Retriever,
        ScriptedMesh,
    )

    orchestrator, collections, evaluator = Orchestrator(), Collections(), Evaluator()
    retriever = Retriever()
    registrations = [
        Registration(
            orchestrator_grpc.add_OrchestratorServiceServicer_to_server,
            orchestrator,
            "evenmesh.orchestrator.v1.OrchestratorService",
        ),
        Registration(
            collection_grpc.add_CollectionServiceServicer_to_server,
            collections,
            "evenmesh.retriever.v1.CollectionService",
        ),
        Registration(
            retriever_grpc.add_RetrieverServiceServicer_to_server,
            retriever,
            "evenmesh.retriever.v1.RetrieverService",
        ),
        Registration(
            evaluator_grpc.add_EvaluatorServiceServicer_to_server,
            evaluator,
            "evenmesh.evaluator.v1.EvaluatorService",
        ),
        Registration(
            generator_grpc.add_GeneratorServiceServicer_to_server,
            Generator(),
            "evenmesh.generator.v1.GeneratorService",
        ),
    ]

    @asynccontextmanager
    async def served() -> AsyncIterator[str]:
        settings = ServiceSettings(home=tmp_path, port=0, grace_s=0)
        async with MeshServer(
            "scripted", settings, Idle(*registrations), telemetry=Telemetry.disabled()
        ) as server:
            yield server.address

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(served()) as address:
        yield ScriptedMesh(
            Addresses(address, address, address, address, address),
            orchestrator,
            collections,
            evaluator,
            retriever,
        )


@pytest.fixture
def at_home(scripted: ScriptedMesh, monkeypatch: pytest.MonkeyPatch) -> ScriptedMesh:
    """The same, where the commands of this machine look for a mesh."""
    from evenmesh.addresses import VARIABLES

    for service, address in scripted.addresses.items():
        monkeypatch.setenv(VARIABLES[service], address)
    return scripted


@pytest.fixture
def nobodys_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable says how wide or how coloured a terminal is, and no mesh runs at home."""
    monkeypatch.setenv("EVENMESH_HOME", str(tmp_path / "home"))
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
