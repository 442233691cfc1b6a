"""The public methods of the contract, read from its descriptors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Final

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from evenmesh.common.v1.method_options_pb2 import MethodFacts
from evenmesh.evaluator.v1 import evaluator_service_pb2
from evenmesh.generator.v1 import generator_service_pb2
from evenmesh.orchestrator.v1 import orchestrator_service_pb2
from evenmesh.reranker.v1 import feedback_service_pb2, reranker_service_pb2
from evenmesh.retriever.v1 import collection_service_pb2, retriever_service_pb2
from evenmesh.wire.methods import facts_of

_MODULES: Final[tuple[ModuleType, ...]] = (
    orchestrator_service_pb2,
    retriever_service_pb2,
    collection_service_pb2,
    reranker_service_pb2,
    feedback_service_pb2,
    generator_service_pb2,
    evaluator_service_pb2,
)


@dataclass(frozen=True, slots=True)
class PublicMethod:
    """A method that callers with a role may call.

    Attributes:
        path: ``/package.Service/Method``.
        upstream: short name of the service that answers it, such as ``retriever``.
        descriptor: its descriptor.
        request: class of a request.
        reply: class of a reply.
        facts: what the contract states about it.
    """

    path: str
    upstream: str
    descriptor: MethodDescriptor
    request: type[Message]
    reply: type[Message]
    facts: MethodFacts

    @property
    def service(self) -> str:
        """Return the full name of its service, such as ``evenmesh.retriever.v1.RetrieverService``."""
        return self.path.split("/")[1]

    @property
    def streams_requests(self) -> bool:
        """Return whether it takes a stream of requests."""
        return bool(self.descriptor.client_streaming)

    @property
    def streams_replies(self) -> bool:
        """Return whether it answers with a stream."""
        return bool(self.descriptor.server_streaming)

    @property
    def streams(self) -> bool:
        """Return whether it is a stream on either side."""
        return self.streams_requests or self.streams_replies


@cache
def public_methods() -> Mapping[str, PublicMethod]:
    """Return the methods that the contract opens to some role, by path.

    A method without roles is for administrators and services of the mesh, and is not offered here.
    """
    found: dict[str, PublicMethod] = {}
    for module in _MODULES:
        for service in module.DESCRIPTOR.services_by_name.values():
            for one in service.methods:
                path = f"/{service.full_name}/{one.name}"
                facts = facts_of(path)
                if facts.roles:
                    found[path] = PublicMethod(
                        path=path,
                        upstream=service.full_name.split(".")[1],
                        descriptor=one,
                        request=GetMessageClass(one.input_type),
                        reply=GetMessageClass(one.output_type),
                        facts=facts,
                    )
    return found
