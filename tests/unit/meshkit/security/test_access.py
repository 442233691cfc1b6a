"""Every method of the contract has its roles, and a server lets in exactly whom the table says."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor

from meshkit.channel import connect
from meshkit.errors import from_rpc_error
from meshkit.security.access import ROLES, roles_of
from meshkit.security.caller import Role
from meshkit.security.channel_security import ChannelSecurity
from meshkit.security.outgoing import Credential
from meshkit.server import MeshServer, Registration
from meshkit.settings import ServiceSettings
from meshkit.telemetry import Telemetry
from ragmesh.evaluator.v1 import evaluator_service_pb2_grpc as evaluator
from ragmesh.generator.v1 import generator_service_pb2_grpc as generator
from ragmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as orchestrator
from ragmesh.reranker.v1 import feedback_service_pb2_grpc as feedback
from ragmesh.reranker.v1 import reranker_service_pb2_grpc as reranker
from ragmesh.retriever.v1 import collection_service_pb2_grpc as collection
from ragmesh.retriever.v1 import retriever_service_pb2_grpc as retriever

SERVICES = {
    "ragmesh.orchestrator.v1.OrchestratorService": (orchestrator, "Orchestrator"),
    "ragmesh.retriever.v1.RetrieverService": (retriever, "Retriever"),
    "ragmesh.retriever.v1.CollectionService": (collection, "Collection"),
    "ragmesh.reranker.v1.RerankerService": (reranker, "Reranker"),
    "ragmesh.reranker.v1.FeedbackService": (feedback, "Feedback"),
    "ragmesh.generator.v1.GeneratorService": (generator, "Generator"),
    "ragmesh.evaluator.v1.EvaluatorService": (evaluator, "Evaluator"),
}


def methods() -> dict[str, MethodDescriptor]:
    """The methods of the contract by full name."""
    pool = descriptor_pool.Default()
    return {
        f"/{service}/{method.name}": method
        for service in SERVICES
        for method in pool.FindServiceByName(service).methods
    }


class Quiet:
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def test_every_method_of_the_protos_is_listed_here() -> None:
    root = Path(__file__).parents[4] / "protos"
    declared = {
        word.split()[1].split("(")[0]
        for path in root.rglob("*.proto")
        for word in path.read_text().splitlines()
        if word.strip().startswith("service ")
    }
    assert declared == {name.rsplit(".", 1)[1] for name in SERVICES}


def test_every_method_has_roles_and_every_role_a_method() -> None:
    assert ROLES.keys() == methods().keys()
    assert all(ROLES.values())
    opened = {role for roles in ROLES.values() for role in roles}
    assert opened == set(Role) - {Role.ADMIN, Role.SERVICE}


def test_what_nobody_decided_is_open_to_nobody() -> None:
    assert roles_of("/ragmesh.orchestrator.v1.OrchestratorService/New") == frozenset()


@pytest.fixture
async def mesh(tmp_path: Path) -> Any:
    """A server with every service, none of whose methods is written, and a key for each role."""
    keys = tmp_path / "keys.toml"
    keys.write_text(
        "".join(
            f'[[key]]\nname = "{role}"\nsha256 = "{hashlib.sha256(f"rmk_{role}".encode()).hexdigest()}"\n'
            f'roles = ["{role}"]\n'
            for role in Role
        )
    )
    registrations = [
        Registration(
            getattr(module, f"add_{name}ServiceServicer_to_server"),
            getattr(module, f"{name}ServiceServicer")(),
            service,
        )
        for service, (module, name) in SERVICES.items()
    ]
    settings = ServiceSettings(api_keys=keys, grace_s=0)
    telemetry = Telemetry.from_settings("all", settings)
    async with MeshServer("all", settings, registrations, Quiet(), telemetry=telemetry) as server:
        yield server.address


async def reached(channel: grpc.aio.Channel, name: str, method: MethodDescriptor) -> str:
    """The reason with which a call ends: UNIMPLEMENTED if it got as far as the servicer."""
    try:
        match method.client_streaming, method.server_streaming:
            case False, False:
                await channel.unary_unary(name)(b"", timeout=20)
            case False, True:
                async for _ in channel.unary_stream(name)(b"", timeout=20):
                    pass
            case True, False:
                await channel.stream_unary(name)(iter([b""]), timeout=20)
            case _:
                async for _ in channel.stream_stream(name)(iter([b""]), timeout=20):
                    pass
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error).reason
    return "OK"


@pytest.mark.parametrize("role", list(Role))
async def test_exactly_the_allowed_cells_are_let_in(mesh: str, role: Role) -> None:
    security = ChannelSecurity(credential=Credential(f"rmk_{role}"))
    async with connect(mesh, service="any", security=security) as channel:
        found = {name: await reached(channel, name, method) for name, method in methods().items()}
    everything = role in (Role.ADMIN, Role.SERVICE)
    assert found == {
        name: "UNIMPLEMENTED" if everything or role in ROLES[name] else "PERMISSION_DENIED" for name in found
    }


@pytest.mark.parametrize(("credential", "reason"), [("", "NO_CREDENTIAL"), ("rmk_wrong", "UNKNOWN_KEY")])
async def test_without_a_credential_that_is_known_nothing_opens(
    mesh: str, credential: str, reason: str
) -> None:
    security = ChannelSecurity(credential=Credential(credential))
    async with connect(mesh, service="any", security=security) as channel:
        found = {await reached(channel, name, method) for name, method in methods().items()}
    assert found == {reason}
