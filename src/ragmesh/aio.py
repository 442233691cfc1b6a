"""The client for programs with an event loop."""

# ruff: noqa: ASYNC109 - a timeout is gRPC's deadline here, sent along with the call

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from meshkit.channel import connect
from meshkit.errors import MeshError
from ragmesh import audit_codec, codec, learning
from ragmesh.addresses import Addresses
from ragmesh.audit import AuditEvent, audit_request
from ragmesh.client import (
    EMBEDDED_EVERY_S,
    IDEMPOTENT,
    INGEST_TIMEOUT_S,
    PAGE_SIZE,
    RETRIEVAL,
    STATUS_TIMEOUT_S,
    TIMEOUT_S,
    Client,
    OnCollection,
    OnEmbedded,
    lacks_vectors,
    not_embedded,
)
from ragmesh.collection import Collection, Ingested, Lexical
from ragmesh.conversation import ConversationOptions
from ragmesh.conversation_calls import AsyncConversation
from ragmesh.door import Door
from ragmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb2
from ragmesh.evaluator.v1 import evaluator_service_pb2_grpc as evaluator_grpc
from ragmesh.events import AskResult, Event
from ragmesh.ingest import OnProgress, Source
from ragmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as orchestrator_grpc
from ragmesh.passage import Passage
from ragmesh.reports import Configuration, ConfigurationSummary, Measurement, Run, RunReport, Window
from ragmesh.request import AskOptions, ask_request
from ragmesh.retrieval import Retrieval, RetrieveOptions, retrieve_request
from ragmesh.retrieval import Source as WebSource
from ragmesh.retriever.v1 import collection_service_pb2 as collection_pb2
from ragmesh.retriever.v1 import collection_service_pb2_grpc as collection_grpc
from ragmesh.retriever.v1 import retriever_service_pb2 as retriever_pb2
from ragmesh.retriever.v1 import retriever_service_pb2_grpc as retriever_grpc
from ragmesh.status import Health, ServiceStatus
from ragmesh.texts import text

E = TypeVar("E")


class AsyncClient(learning.AsyncLearningCalls):
    """:class:`ragmesh.Client` for an event loop: the same methods, awaited; make and use it in one loop.

    Args:
        addresses: where the services are, or only the orchestrator's ``host:port``. Default: the mesh that
            runs on this machine, see :meth:`ragmesh.Addresses.find`.
        timeout: seconds a call may take when it is not given its own.
    """

    def __init__(self, addresses: Addresses | str | None = None, *, timeout: float = TIMEOUT_S) -> None:
        self.addresses = Addresses(addresses) if isinstance(addresses, str) else addresses or Addresses.find()
        self._timeout = timeout
        self._channels = {
            service: connect(getattr(self.addresses, service), service=name, idempotent=methods)
            for service, (name, methods) in IDEMPOTENT.items()
        }
        name, methods = RETRIEVAL
        self._channels["retrieval"] = connect(self.addresses.retriever, service=name, idempotent=methods)
        self._orchestrator = orchestrator_grpc.OrchestratorServiceStub(self._channels["orchestrator"])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections; calls under way fail."""
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))

    def ask(
        self, question: str, *, timeout: float | None = None, **options: Unpack[AskOptions]
    ) -> AsyncIterator[Event]:
        """Asks one question and yields what happens as it happens; as :meth:`ragmesh.Client.ask`."""
        request = ask_request(question, options)
        return self._events(self._orchestrator.Ask, request, codec.event, timeout or self._timeout)

    async def answer(
        self, question: str, *, timeout: float | None = None, **options: Unpack[AskOptions]
    ) -> AskResult:
        """Asks one question and waits for the whole result; arguments and errors as :meth:`ask`."""
        return AskResult.of(
            question, [event async for event in self.ask(question, timeout=timeout, **options)]
        )

    def converse(
        self,
        *,
        conversation: ConversationOptions | None = None,
        conversation_id: str = "",
        timeout: float | None = None,
        **options: Unpack[AskOptions],
    ) -> AsyncConversation:
        """A conversation; as :meth:`ragmesh.Client.converse`."""
        return AsyncConversation(
            self._orchestrator,
            lambda exc: self._error(exc, "orchestrator"),
            options,
            conversation or {},
            timeout=timeout or self._timeout,
            conversation_id=text("conversation_id", conversation_id),
        )

    async def retrieve(
        self, query: str, *, timeout: float | None = None, **options: Unpack[RetrieveOptions]
    ) -> Retrieval:
        """Asks the retriever alone; as :meth:`ragmesh.Client.retrieve`."""
        stub = retriever_grpc.RetrieverServiceStub(self._channels["retrieval"])
        request = retrieve_request(query, options)
        return codec.retrieval(await self._call("retriever", stub.Retrieve, request, timeout))

    async def sources(self, *, timeout: float | None = None) -> list[WebSource]:
        """The web-search sources there are, by name."""
        stub = retriever_grpc.RetrieverServiceStub(self._channels["retrieval"])
        request = retriever_pb2.ListSourcesRequest()
        reply = await self._call("retriever", stub.ListSources, request, timeout)
        return [codec.source(one) for one in reply.sources]

    def audit(
        self,
        question: str,
        *,
        alphas: Sequence[float] = (),
        oracle: int | None = None,
        until_width: float | None = None,
        level: float | None = None,
        timeout: float | None = None,
        **options: Unpack[AskOptions],
    ) -> AsyncIterator[AuditEvent]:
        """Audits one labelled query; as :meth:`ragmesh.Client.audit`."""
        request = audit_request(
            question, options, alphas=alphas, oracle=oracle, until_width=until_width, level=level
        )
        return self._events(self._orchestrator.Audit, request, audit_codec.event, timeout or self._timeout)

    async def ingest(
        self,
        source: Source,
        collection: str,
        *,
        create: bool = True,
        lexical: Lexical | None = None,
        on_progress: OnProgress | None = None,
        timeout: float = INGEST_TIMEOUT_S,
    ) -> Ingested:
        """Adds passages to a collection, all or none; as :meth:`ragmesh.Client.ingest`.

        The source is read, and ``on_progress`` called, in a thread; cancelling this cancels the ingest.
        """
        # Files are read and parsed in a thread anyway, and a call of grpc.aio that is refused while it sends
        # often ends as INTERNAL instead of with the reason; the sync call keeps the reason.
        with Client(self.addresses) as client:
            return await asyncio.to_thread(
                client.ingest,
                source,
                collection,
                create=create,
                lexical=lexical,
                on_progress=on_progress,
                timeout=timeout,
            )

    async def create_collection(
        self,
        name: str,
        *,
        description: str = "",
        lexical: Lexical | None = None,
        timeout: float | None = None,
    ) -> Collection:
        """A new, empty collection; as :meth:`ragmesh.Client.create_collection`."""
        stub = collection_grpc.CollectionServiceStub(self._channels["retriever"])
        request = codec.create_request(name, description=description, lexical=lexical)
        reply = await self._call("retriever", stub.CreateCollection, request, timeout)
        return codec.collection(reply.collection)

    async def collection(self, name: str, *, timeout: float | None = None) -> Collection:
        """One collection."""
        stub = collection_grpc.CollectionServiceStub(self._channels["retriever"])
        request = collection_pb2.GetCollectionRequest(name=text("name", name))
        return codec.collection(
            (await self._call("retriever", stub.GetCollection, request, timeout)).collection
        )

    async def until_embedded(
        self, name: str, *, on_progress: OnEmbedded | None = None, timeout: float = INGEST_TIMEOUT_S
    ) -> Collection:
        """Waits until all passages have vectors; as :meth:`ragmesh.Client.until_embedded`."""
        ends = time.monotonic() + timeout
        while lacks_vectors(found := await self.collection(name)):
            if on_progress is not None:
                on_progress(found.embedded)
            if time.monotonic() > ends:
                raise not_embedded(found)
            await asyncio.sleep(EMBEDDED_EVERY_S)
        return found

    async def collections(self, *, timeout: float | None = None) -> list[Collection]:
        """The collections there are, by name."""
        stub = collection_grpc.CollectionServiceStub(self._channels["retriever"])
        request = collection_pb2.ListCollectionsRequest()
        reply = await self._call("retriever", stub.ListCollections, request, timeout)
        return [codec.collection(one) for one in reply.collections]

    def passages(
        self, name: str, *, on_collection: OnCollection | None = None, timeout: float = INGEST_TIMEOUT_S
    ) -> AsyncIterator[Passage]:
        """All passages of one version of a collection; as :meth:`ragmesh.Client.passages`."""
        request = collection_pb2.ListPassagesRequest(collection=text("collection", name))
        return self._passages(request, on_collection, timeout)

    async def delete_collection(self, name: str, *, timeout: float | None = None) -> None:
        """Removes a collection and its versions."""
        stub = collection_grpc.CollectionServiceStub(self._channels["retriever"])
        request = collection_pb2.DeleteCollectionRequest(name=text("name", name))
        await self._call("retriever", stub.DeleteCollection, request, timeout)

    async def runs(self, limit: int = PAGE_SIZE, *, timeout: float | None = None) -> list[Run]:
        """The newest ``limit`` runs, newest first."""
        stub = evaluator_grpc.EvaluatorServiceStub(self._channels["evaluator"])
        found: list[Run] = []
        token = ""
        while len(found) < limit:
            request = evaluator_pb2.ListRunsRequest(
                page_size=min(PAGE_SIZE, limit - len(found)), page_token=token
            )
            reply = await self._call("evaluator", stub.ListRuns, request, timeout)
            found.extend(codec.run(one) for one in reply.runs)
            token = reply.next_page_token
            if not token:
                break
        return found

    async def report(
        self,
        run_id: str | None = None,
        *,
        configuration: Configuration | None = None,
        window: Window = "all",
        timeout: float | None = None,
    ) -> RunReport:
        """The report of one run or configuration so far; as :meth:`ragmesh.Client.report`."""
        stub = evaluator_grpc.EvaluatorServiceStub(self._channels["evaluator"])
        request = codec.report_request(run_id, configuration, window)
        return codec.run_report((await self._call("evaluator", stub.GetReport, request, timeout)).report)

    async def configurations(
        self, limit: int = PAGE_SIZE, *, timeout: float | None = None
    ) -> list[ConfigurationSummary]:
        """The newest ``limit`` configurations, newest first."""
        stub = evaluator_grpc.EvaluatorServiceStub(self._channels["evaluator"])
        found: list[ConfigurationSummary] = []
        token = ""
        while len(found) < limit:
            request = evaluator_pb2.ListConfigurationsRequest(
                page_size=min(PAGE_SIZE, limit - len(found)), page_token=token
            )
            reply = await self._call("evaluator", stub.ListConfigurations, request, timeout)
            found.extend(codec.configuration_summary(one) for one in reply.configurations)
            token = reply.next_page_token
            if not token:
                break
        return found

    def measurements(self, run_id: str, *, timeout: float | None = None) -> AsyncIterator[Measurement]:
        """What was measured in a run, observation by observation; as :meth:`ragmesh.Client.measurements`."""
        request = evaluator_pb2.ListMeasurementsRequest(run_id=text("run_id", run_id))
        return self._measurements(request, timeout or self._timeout)

    async def status(self, *, timeout: float = STATUS_TIMEOUT_S) -> list[ServiceStatus]:
        """How each service is, the orchestrator first; never fails."""
        return await asyncio.gather(
            *(_status(service, address, timeout) for service, address in self.addresses.items())
        )

    async def _measurements(
        self, request: evaluator_pb2.ListMeasurementsRequest, timeout: float
    ) -> AsyncIterator[Measurement]:
        stub = evaluator_grpc.EvaluatorServiceStub(self._channels["evaluator"])
        call = stub.ListMeasurements(request, timeout=timeout)
        try:
            async for message in call:
                yield codec.measurement(message)
        except grpc.RpcError as exc:
            raise self._error(exc, "evaluator") from exc
        finally:
            call.cancel()

    async def _passages(
        self,
        request: collection_pb2.ListPassagesRequest,
        on_collection: OnCollection | None,
        timeout: float,
    ) -> AsyncIterator[Passage]:
        stub = collection_grpc.CollectionServiceStub(self._channels["retriever"])
        call = stub.ListPassages(request, timeout=timeout)
        try:
            async for message in call:
                if on_collection is not None and message.HasField("collection"):
                    on_collection(codec.collection(message.collection))
                for one in message.passages:
                    yield codec.passage(one)
        except grpc.RpcError as exc:
            raise self._error(exc, "retriever") from exc
        finally:
            call.cancel()

    async def _events(
        self, method: Callable[..., Any], request: Message, read: Callable[[Any], E | None], timeout: float
    ) -> AsyncIterator[E]:
        """What an ask or an audit brings, which may be turned away at the door and come again."""
        door = Door(timeout)
        while True:
            call = method(request, timeout=door.left_s)
            try:
                async for message in call:
                    door.passed()
                    if (event := read(message)) is not None:
                        yield event
                return
            except grpc.RpcError as exc:
                error = self._error(exc, "orchestrator")
                if not door.opens_again(error):
                    raise error from exc
            finally:
                call.cancel()
            await asyncio.sleep(door.pause_s)

    def _error(self, exc: grpc.RpcError, service: str) -> MeshError:
        return codec.error(exc, service=service, address=getattr(self.addresses, service))


async def _status(service: str, address: str, timeout: float) -> ServiceStatus:
    async with connect(address, service=health_pb2.DESCRIPTOR.package) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout)
        except grpc.RpcError:
            return ServiceStatus(service, address, Health.UNREACHABLE)
        return ServiceStatus(service, address, codec.health(reply))
