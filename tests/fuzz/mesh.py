"""The five services in this process, each behind a gRPC server of its own, on models of a few thousand weights."""

from __future__ import annotations

import asyncio
import gc
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import grpc
import psutil
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from google.protobuf.descriptor import Descriptor, MethodDescriptor

from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2
from evenmesh.generator.v1 import generator_service_pb2
from evenmesh.orchestrator.v1 import orchestrator_service_pb2
from evenmesh.reranker.v1 import feedback_service_pb2, reranker_service_pb2
from evenmesh.retriever.v1 import collection_service_pb2, retriever_service_pb2
from evenmesh_evaluator.__main__ import EvaluatorService
from evenmesh_evaluator.settings import EvaluatorSettings
from evenmesh_generator.__main__ import GeneratorService
from evenmesh_generator.settings import GeneratorSettings, ModelSource
from evenmesh_kit.rpc.server import MeshServer
from evenmesh_kit.settings import ServiceSettings
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_orchestrator.__main__ import Orchestrator
from evenmesh_orchestrator.ensembles.definitions import EnsembleDefinition
from evenmesh_orchestrator.expressions.sources import SourceDefinition
from evenmesh_orchestrator.settings import OrchestratorSettings
from evenmesh_reranker.__main__ import RerankerService
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models.store import ModelStore
from evenmesh_reranker.settings import RerankerSettings
from evenmesh_retriever.__main__ import RetrieverService
from evenmesh_retriever.settings import RetrieverSettings
from tests.support import tiny_encoders, tiny_models

COLLECTION: Final = "demo"
"""A collection that is there."""

_MODULES: Final = {
    "retriever": (retriever_service_pb2, collection_service_pb2),
    "reranker": (reranker_service_pb2, feedback_service_pb2),
    "generator": (generator_service_pb2,),
    "evaluator": (evaluator_service_pb2,),
    "orchestrator": (orchestrator_service_pb2,),
}


@dataclass(frozen=True, slots=True)
class Rpc:
    """A method of the contract, as its descriptor has it."""

    server: str
    """Which of the five has it."""
    method: MethodDescriptor

    @property
    def name(self) -> str:
        """``Service.Method``."""
        return f"{self.method.containing_service.name}.{self.method.name}"

    @property
    def path(self) -> str:
        """``/package.Service/Method``."""
        return f"/{self.method.containing_service.full_name}/{self.method.name}"

    @property
    def request(self) -> Descriptor:
        """What it takes."""
        return self.method.input_type

    @property
    def takes_many(self) -> bool:
        """Whether requests are a stream."""
        return bool(self.method.client_streaming)


RPCS: Final = tuple(
    Rpc(server, method)
    for server, modules in _MODULES.items()
    for module in modules
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
)
"""Every method of every service."""


def passages(count: int = 12) -> list[common_pb2.Passage]:
    """Passages of the collection that is there."""
    return [
        common_pb2.Passage(
            id=f"p{place}",
            title=f"River {place}" if place % 3 else "",
            text=f"{tiny_models.SENTENCES[place % len(tiny_models.SENTENCES)]} {place}",
            attributes={
                "provider": "AB"[place % 2],
                "year": str(1990 + place),
                "date": f"2020-01-{place + 1:02}",
            },
        )
        for place in range(count)
    ]


def _signing_key(folder: Path) -> Path:
    """Writes a key for statements."""
    file = folder / "statements.pem"
    form = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    file.write_bytes(Ed25519PrivateKey.generate().private_bytes(*form))
    return file


class FuzzMesh:
    """Starts the services in an event loop of its own, which runs while :meth:`run` does.

    Args:
        folder: for models, databases and collections.
        telemetry: of all services.
    """

    def __init__(self, folder: Path, telemetry: Telemetry | None = None) -> None:
        self._folder = folder
        self._telemetry = telemetry or Telemetry.disabled()
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self.versions: tuple[str, ...] = ()
        self.servers: dict[str, MeshServer] = {}
        self.channels: dict[str, grpc.aio.Channel] = {}

    def __enter__(self) -> Self:
        self._runner.__enter__()
        self._runner.run(self._start())
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._runner.run(self._stack.aclose())
        finally:
            self._runner.__exit__(None, None, None)

    def run(self, work: Any) -> Any:
        """Runs a coroutine next to the servers."""
        return self._runner.run(work)

    @property
    def in_flight(self) -> int:
        """Calls that some server still works on."""
        return sum(server.in_flight for server in self.servers.values())

    async def settled(self, within_s: float) -> int:
        """Waits until no call runs; how many still do after that time."""
        try:
            async with asyncio.timeout(within_s):
                for server in self.servers.values():
                    await server.idle()
        except TimeoutError:
            pass
        return self.in_flight

    def address(self, server: str) -> str:
        """Where a service listens."""
        return self.servers[server].address

    async def _start(self) -> None:
        home = self._folder / "home"
        models = self._folder / "models"
        writer = tiny_models.t5(models / "t5")
        judge = tiny_models.llama(models / "llama", chat=True)
        pairs = tiny_models.cross_encoder(models / "pairs")
        shared: dict[str, Any] = {"home": home, "port": 0, "default_deadline_s": 20.0}
        generator = GeneratorSettings(
            **shared,
            bundled=False,
            models=(
                ModelSource(name="tiny", path=str(writer)),
                ModelSource(name="judge", path=str(judge), template="rankrag-answer", instruction=True),
            ),
            device="cpu",
            dtype="float32",
            workers=1,
            threads=1,
        )
        await self._serve("generator", generator, GeneratorService(generator, self._telemetry))
        retriever = RetrieverSettings(
            **shared, encoder=str(pairs), cpu_engine="torch", threads=1, max_ingest_bytes=2**24
        )
        await self._serve("retriever", retriever, RetrieverService(retriever))
        store = ModelStore(home / "reranker" / "models")
        self.versions = (
            tiny_encoders.keep(store, pairs, "by hand"),
            tiny_encoders.keep(store, pairs, "by hand, for an agent", Agent("qa", "t5")),
        )
        reranker = RerankerSettings(
            **shared,
            cross_encoder=str(pairs),
            cpu_engine="torch",
            device="cpu",
            dtype="float32",
            threads=1,
            default_reranker="cross-encoder",
            generator_target=f"dns:///{self.address('generator')}",
            rankrag_model="judge",
            feedback_per_day=1_000_000_000,
            feedback_total=1_000_000_000,
            feedback_agents=1_000_000,
        )
        await self._serve("reranker", reranker, RerankerService(reranker, self._telemetry))
        evaluator = EvaluatorSettings(
            **shared, embedding_model="nowhere/to-be-found", statement_key=_signing_key(self._folder)
        )
        await self._serve("evaluator", evaluator, EvaluatorService(evaluator))
        orchestrator = OrchestratorSettings(
            **shared,
            **{f"{name}_target": f"dns:///{self.address(name)}" for name in self.servers},
            default_collection=COLLECTION,
            default_reranker="none",
            sources={
                "Lexical": SourceDefinition(collection=COLLECTION, depth=4),
                "Other": SourceDefinition(collection=COLLECTION, retriever="bm25", depth=3),
                "Nowhere": SourceDefinition(collection="nowhere"),
                "Both": SourceDefinition(all=("Lexical@2", "Other", "PK")),
            },
            ensembles={"pair": EnsembleDefinition(members=("Lexical@1", "Other@1", "ReFree"))},
            turn_timeout_s=20.0,
        )
        service = Orchestrator(orchestrator, self._telemetry)
        await self._serve("orchestrator", orchestrator, service)
        for name, server in self.servers.items():
            self.channels[name] = grpc.aio.insecure_channel(
                server.address,
                options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)],
            )
            self._stack.push_async_callback(self.channels[name].close)
        ingest = self.channels["retriever"].stream_unary("/evenmesh.retriever.v1.CollectionService/Ingest")
        part = collection_service_pb2.IngestRequest(
            collection=COLLECTION, passages=passages(), create_if_missing=True, last=True
        )
        await ingest(iter([part.SerializeToString()]), timeout=60)

    async def _serve(self, name: str, settings: ServiceSettings, service: Any) -> None:
        server = MeshServer(name, settings, service, telemetry=self._telemetry)
        await self._stack.enter_async_context(server)
        self.servers[name] = server


@dataclass(frozen=True, slots=True)
class Held:
    """What this process holds."""

    descriptors: int
    tasks: int
    threads: int
    memory_mb: float

    @classmethod
    async def now(cls) -> Self:
        """After the garbage is gone."""
        gc.collect()
        process = psutil.Process(os.getpid())
        return cls(
            process.num_fds(),
            len(asyncio.all_tasks()),
            process.num_threads(),
            process.memory_info().rss / 2**20,
        )
