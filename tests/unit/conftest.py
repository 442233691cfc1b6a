"""A small real mesh: one gRPC server with scripted services, for clients and commands to call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from evenmesh_kit.rpc.server import MeshServer
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
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> MeshServer:
        server = MeshServer(
            "scripted",
            ServiceSettings(home=tmp_path, port=0),
            registrations,
            Idle(),
            telemetry=Telemetry.disabled(),
        )
        await server.start()
        return server

    server = asyncio.run_coroutine_threadsafe(start(), loop).result()
    address = server.address
    try:
        yield ScriptedMesh(
            Addresses(address, address, address, address, address),
            orchestrator,
            collections,
            evaluator,
            retriever,
        )
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(0), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
