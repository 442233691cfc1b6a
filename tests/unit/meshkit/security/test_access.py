"""Every method of the contract has its roles; tests/integration/test_security_matrix.py tries all of them."""

from __future__ import annotations

from pathlib import Path

from google.protobuf import descriptor_pool

from meshkit.security.access import ROLES, roles_of
from meshkit.security.caller import Role
from ragmesh.evaluator.v1 import evaluator_service_pb2 as evaluator
from ragmesh.generator.v1 import generator_service_pb2 as generator
from ragmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator
from ragmesh.reranker.v1 import feedback_service_pb2 as feedback
from ragmesh.reranker.v1 import reranker_service_pb2 as reranker
from ragmesh.retriever.v1 import collection_service_pb2 as collection
from ragmesh.retriever.v1 import retriever_service_pb2 as retriever

MODULES = (evaluator, generator, orchestrator, feedback, reranker, collection, retriever)
SERVICES = [one.full_name for module in MODULES for one in module.DESCRIPTOR.services_by_name.values()]


def methods() -> set[str]:
    """The methods of the contract by full name."""
    pool = descriptor_pool.Default()
    return {
        f"/{service}/{method.name}"
        for service in SERVICES
        for method in pool.FindServiceByName(service).methods
    }


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
    assert ROLES.keys() == methods()
    assert all(ROLES.values())
    opened = {role for roles in ROLES.values() for role in roles}
    assert opened == set(Role) - {Role.ADMIN, Role.SERVICE}


def test_what_nobody_decided_is_open_to_nobody() -> None:
    assert roles_of("/ragmesh.orchestrator.v1.OrchestratorService/New") == frozenset()
