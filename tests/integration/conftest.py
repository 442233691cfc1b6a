"""The real mesh: five processes on free ports under a home of their own, as ``evenmesh up`` starts them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from evenmesh import Addresses, Client
from evenmesh.local_mesh import MeshState
from evenmesh_mesh import SERVICES, MeshSettings, stop
from evenmesh_studies import demo
from tests.support.detached_mesh import launch_for_tests
from tests.support.gateway_process import GatewayProcess
from tests.support.go_tools import compile_program
from tests.support.prometheus import reserved_ports

DEMO = "demo"
PASSAGES = demo.passages()[:79]
"""What that collection has: the passages of its first topics, since each is encoded."""
SOURCES = {
    "Lexical": {"collection": DEMO, "retriever": "bm25-lucene", "depth": 4},
    "Dense": {"collection": DEMO, "retriever": "dense", "depth": 4},
}
"""What expressions can name in that mesh."""


@dataclass(frozen=True)
class RunningMesh:
    """A mesh that runs, and where."""

    settings: MeshSettings
    state: MeshState
    addresses: Addresses
    metrics: Mapping[str, str]
    """``host:port`` of each service's metrics."""

    @property
    def home(self) -> Path:
        """Its home."""
        return self.settings.home


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """The mesh of this session, with passages of the demo in the collection ``demo``."""
    with reserved_ports(len(SERVICES)) as ports:
        metrics = {one.name: port for one, port in zip(SERVICES, ports, strict=True)}
        settings = MeshSettings(
            home=tmp_path_factory.mktemp("mesh"),
            port=0,
            start_s=600,
            environment={
                # In bfloat16 the company a request is computed in may change a token, and so what tests compare.
                "EVENMESH_GENERATOR_DTYPE": "float32",
                # Most asks read twenty passages: a fifth of each takes a fifth of the time.
                "EVENMESH_RERANKER_MAX_LENGTH": "32",
                "EVENMESH_ORCHESTRATOR_SOURCES": json.dumps(SOURCES),
                **{f"{one.prefix}METRICS_PORT": str(metrics[one.name]) for one in SERVICES},
            },
        )
        state = launch_for_tests(settings)
        try:
            addresses = Addresses(**state.addresses)
            with Client(addresses) as client:
                client.ingest(PASSAGES, DEMO)
                client.until_embedded(DEMO)  # until then dense retrieval finds more from call to call
            shown = {name: f"127.0.0.1:{port}" for name, port in metrics.items()}
            yield RunningMesh(settings, state, addresses, shown)
        finally:
            stop(settings.home)


@pytest.fixture(scope="module")
def served(mesh: RunningMesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway of one module before the mesh of the session."""
    with GatewayProcess(tmp_path_factory.mktemp("gateway"), mesh.addresses) as served:
        yield served


@pytest.fixture
def client(mesh: RunningMesh) -> Iterator[Client]:
    """A client of that mesh."""
    with Client(mesh.addresses, timeout=240) as client:
        yield client


@pytest.fixture(scope="session")
def go_ask(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of the Go client, compiled with what is generated from the protos of now."""
    return compile_program(tmp_path_factory.mktemp("go"))
