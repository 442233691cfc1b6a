"""Every method of the contract, from the descriptors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.descriptor import MethodDescriptor

from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb
from evenmesh.reranker.v1 import feedback_service_pb2 as feedback_pb
from evenmesh.reranker.v1 import reranker_service_pb2 as reranker_pb
from evenmesh.retriever.v1 import collection_service_pb2 as collection_pb
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb

LOST_STATUS: Final = "INTERNAL: Internal error from Core"
"""What a caller's grpc.aio makes of the status of a call that ended while it still wrote."""
_MODULES: Final = (
    evaluator_pb,
    generator_pb,
    orchestrator_pb,
    feedback_pb,
    reranker_pb,
    collection_pb,
    retriever_pb,
)
METHODS: Final[Mapping[str, MethodDescriptor]] = {
    f"/{service.full_name}/{method.name}": method
    for module in _MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
"""By path."""


def calls_of(channel: Any, method: MethodDescriptor) -> Any:
    """Return what makes a method's calls from its path: ``channel.unary_unary``, ``channel.stream_unary`` …"""
    asked, answered = (
        "stream" if many else "unary" for many in (method.client_streaming, method.server_streaming)
    )
    return getattr(channel, f"{asked}_{answered}")
