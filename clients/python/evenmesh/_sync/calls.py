# Generated from _async by generate_sync.py (make sdk). Do not edit.
"""What all calls share: connections, deadlines, errors."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NoReturn, Self, TypeVar

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenmesh._sync import adapter
from evenmesh._sync.restarts import Restarts
from evenmesh.addresses import Addresses
from evenmesh.codec import messages as codec
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as evaluator_grpc
from evenmesh.generator.v1 import generator_service_pb2_grpc as generator_grpc
from evenmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as orchestrator_grpc
from evenmesh.reranker.v1 import feedback_service_pb2_grpc as feedback_grpc
from evenmesh.reranker.v1 import reranker_service_pb2_grpc as reranker_grpc
from evenmesh.resending import Resending
from evenmesh.retriever.v1 import collection_service_pb2_grpc as collection_grpc
from evenmesh.retriever.v1 import retriever_service_pb2_grpc as retriever_grpc
from evenmesh.types.status import Health, ServiceStatus
from evenmesh.wire.errors import FailedPrecondition, InvalidField, MeshError, status_of
from evenmesh.wire.methods import facts_of, method_taking

TIMEOUT_S: Final = 60.0
STATUS_TIMEOUT_S: Final = 2.0
MAX_TIMEOUT_S: Final = 86_400.0
"""Longest a call may take: gRPC counts no more than about 9e9 seconds, and ends a longer one at once."""
PAGE_SIZE: Final = 1_000

T = TypeVar("T")


class Calls:
    """Connections to the services of a mesh; they open when first used.

    Args:
        addresses: where the services are, or only the orchestrator's ``host:port``; the others are then, and
            by default all, those of :meth:`evenmesh.Addresses.find`: the mesh that runs on this machine.
        timeout: seconds a call may take when it is not given its own, (0, inf); of more than a day, a day.
    """

    def __init__(self, addresses: Addresses | str | None = None, *, timeout: float = TIMEOUT_S) -> None:
        if isinstance(addresses, str):
            addresses = Addresses.find(orchestrator=addresses)
        self.addresses = addresses or Addresses.find()
        self._timeout = checked_timeout(timeout)
        self._channels: dict[str, adapter.Channel] = {}
        self._restarts = Restarts()
        self._orchestrator = orchestrator_grpc.OrchestratorServiceStub(
            self._connect("orchestrator", "Orchestrator")
        )
        self._retriever = retriever_grpc.RetrieverServiceStub(self._connect("retriever", "Retriever"))
        self._collections = collection_grpc.CollectionServiceStub(self._connect("retriever", "Collection"))
        self._reranker = reranker_grpc.RerankerServiceStub(self._connect("reranker", "Reranker"))
        self._feedback = feedback_grpc.FeedbackServiceStub(self._connect("reranker", "Feedback"))
        self._generator = generator_grpc.GeneratorServiceStub(self._connect("generator", "Generator"))
        self._evaluator = evaluator_grpc.EvaluatorServiceStub(self._connect("evaluator", "Evaluator"))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client cannot be copied or pickled: open one in each process")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; calls in progress fail, and so do later ones (``CLIENT_CLOSED``)."""
        self._restarts.close()
        for channel in self._channels.values():
            channel.close()

    def status(self, *, timeout: float = STATUS_TIMEOUT_S) -> list[ServiceStatus]:
        """Return the health of each service, the orchestrator first; never fail."""

        def check(place: tuple[str, str]) -> ServiceStatus:
            service, address = place
            with adapter.connect(address, service=health_pb2.DESCRIPTOR.package) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                try:
                    reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout)
                except grpc.RpcError:
                    return ServiceStatus(service, address, Health.UNREACHABLE)
            return ServiceStatus(service, address, codec.health(reply))

        return adapter.at_once(check, self.addresses.items())

    def _connect(self, service: str, name: str) -> adapter.Channel:
        address, of_protos = getattr(self.addresses, service), f"evenmesh.{service}.v1.{name}Service"
        channel = self._channels[of_protos] = adapter.connect(address, service=of_protos)
        return channel

    def _call(
        self, service: str, method: "adapter.UnaryCall[Any, T]", request: Message, timeout: float | None
    ) -> T:
        resending = Resending(self._seconds(timeout))
        while True:
            self._check_open()
            try:
                reply = method(request, timeout=resending.left_s)
            except adapter.INTERRUPTED:
                self._check_interrupted()
                raise
            except grpc.RpcError as exc:
                error = self._error(exc, service)
                if not self._again(resending, error, service, request):
                    raise error from exc
            else:
                self._restarts.reached(service)
                return reply

    def _list(
        self,
        service: str,
        method: "adapter.UnaryCall[Any, Any]",
        request: Callable[..., Message],
        items: str,
        *,
        limit: float = math.inf,
        timeout: float | None,
    ) -> list[Any]:
        """Return the first ``limit`` items of a list that comes page by page, as messages."""
        found: list[Any] = []
        token = ""
        while len(found) < limit:
            page_size = int(min(PAGE_SIZE, limit - len(found)))
            reply = self._call(service, method, request(page_size=page_size, page_token=token), timeout)
            found.extend(getattr(reply, items))
            token = reply.next_page_token
            if not token:
                break
        return found

    def _stream(
        self,
        service: str,
        method: Callable[..., Any],
        request: Message,
        read: Callable[[Any], Iterable[T]],
        timeout: float,
    ) -> Iterator[T]:
        """Yield what ``read`` finds in each message of a call; closing the iterator ends the call."""
        resending = Resending(self._seconds(timeout))
        while True:
            self._check_open()
            call = method(request, timeout=resending.left_s)
            try:
                for message in call:
                    resending.begun = True
                    self._restarts.reached(service)
                    yield from read(message)
                return
            except adapter.INTERRUPTED:
                self._check_interrupted()
                raise
            except grpc.RpcError as exc:
                error = self._error(exc, service)
                if not self._again(resending, error, service, request):
                    raise error from exc
            finally:
                call.cancel()

    def _again(
        self, resending: Resending, error: MeshError, service: str, request: Message, *, always: bool = False
    ) -> bool:
        """Return whether a failed call may be sent again; wait until it is time.

        Args:
            resending: the attempts so far.
            error: how the last one failed.
            service: short name of the service.
            request: the request.
            always: see :meth:`AsyncRestarts.allows`.
        """
        method = method_taking(request.DESCRIPTOR)
        of_protos = method.containing_service.full_name
        retryable = facts_of(f"/{of_protos}/{method.name}").retryable
        if not self._restarts.allows(resending, error, service, retryable=retryable, always=always):
            return False
        return self._restarts.wait(resending, error, service, self._channels[of_protos])

    def _check_open(self) -> None:
        """Check that the client is open, before each call.

        Raises:
            FailedPrecondition: it is closed.
        """
        if self._restarts.closed:
            raise FailedPrecondition("CLIENT_CLOSED", "this client is closed: open another one")

    def _check_interrupted(self) -> None:
        """Check that a call was interrupted by who waits for it, and did not end as the client was closed.

        Raises:
            FailedPrecondition: the client was closed.
        """
        if not adapter.is_interrupted():
            self._check_open()

    def _seconds(self, timeout: float | None) -> float:
        """Return how long a call may take: as it was given, or the client's default."""
        return self._timeout if timeout is None else checked_timeout(timeout)

    def _error(self, exc: grpc.RpcError, service: str) -> MeshError:
        if status_of(exc) is not None:
            self._restarts.reached(service)
        return codec.error(exc, service=service, address=getattr(self.addresses, service))


def checked_timeout(timeout: float) -> float:
    """Return a timeout that gRPC can count.

    Raises:
        InvalidField: it is no number, or not above 0.
    """
    try:
        positive = timeout > 0
    except TypeError:
        raise InvalidField("timeout", f"must be seconds, not {type(timeout).__name__}") from None
    if not positive:
        raise InvalidField("timeout", f"must be above 0 seconds, got {timeout:g}")
    return min(timeout, MAX_TIMEOUT_S)
