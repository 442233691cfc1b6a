"""Read the facts about methods that the protos state as options."""

from __future__ import annotations

from functools import cache

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, MethodDescriptor

from evenmesh.common.v1.method_options_pb2 import MethodFacts, facts


def facts_of(method: str) -> MethodFacts:
    """Return the facts about ``/package.Service/Method``; empty for a method of no imported proto."""
    service, _, name = method.lstrip("/").partition("/")
    return _facts_by_name(service).get(name, MethodFacts())


@cache
def method_taking(request: Descriptor) -> MethodDescriptor:
    """Return the method whose requests are these; every method has a request of its own.

    Raises:
        LookupError: they are no requests.
    """
    for service in request.file.services_by_name.values():
        for method in service.methods:
            if method.input_type.full_name == request.full_name:
                return method
    raise LookupError(f"no method takes {request.full_name}")


def largest_request_bytes(service: str) -> int:
    """Return the largest request of any method of a service; 0 if one of them states none. Bytes.

    Args:
        service: full name, such as ``evenmesh.retriever.v1.RetrieverService``.
    """
    stated = [of_method.max_request_bytes for of_method in _facts_by_name(service).values()]
    return max(stated) if stated and all(stated) else 0


def retryable_methods(service: str) -> list[str]:
    """Return the names of a service's retryable methods; none for a service of no imported proto.

    Args:
        service: full name, such as ``evenmesh.retriever.v1.RetrieverService``.
    """
    return [name for name, of_method in _facts_by_name(service).items() if of_method.retryable]


def _facts_by_name(service: str) -> dict[str, MethodFacts]:
    try:
        descriptor = descriptor_pool.Default().FindServiceByName(service)
    except KeyError:
        return {}
    return {method.name: method.GetOptions().Extensions[facts] for method in descriptor.methods}
