"""The client for programs without an event loop."""

import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from meshkit.channel import connect_sync
from meshkit.errors import AlreadyExists, DeadlineExceeded, InvalidField, MeshError
from ragmesh import audit_codec, codec, learning
from ragmesh.addresses import Addresses
from ragmesh.audit import AuditEvent, audit_request
from ragmesh.collection import Collection, Ingested, Lexical
from ragmesh.conversation import ConversationOptions
from ragmesh.conversation_calls import Conversation
from ragmesh.door import Door
from ragmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb2
from ragmesh.evaluator.v1 import evaluator_service_pb2_grpc as evaluator_grpc
from ragmesh.events import AskResult, Event
from ragmesh.ingest import IngestStream, OnProgress, Source, checked, requests
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

TIMEOUT_S: Final = 60.0
INGEST_TIMEOUT_S: Final = 3_600.0
STATUS_TIMEOUT_S: Final = 2.0
PAGE_SIZE: Final = 1_000

IDEMPOTENT: Final = {
    "orchestrator": ("ragmesh.orchestrator.v1.OrchestratorService", ()),
    "retriever": (
        "ragmesh.retriever.v1.CollectionService",
        ("ListCollections", "GetCollection", "DeleteCollection"),
    ),
    "reranker": ("ragmesh.reranker.v1.FeedbackService", learning.IDEMPOTENT),
    "evaluator": (
        "ragmesh.evaluator.v1.EvaluatorService",
        ("ListRuns", "GetReport", "ListConfigurations", "ListMeasurements"),
    ),
}
"""The gRPC service behind each address that is called, and its methods that may be sent again."""

RETRIEVAL: Final = ("ragmesh.retriever.v1.RetrieverService", ("Retrieve", "ListSources"))
"""The other one behind the retriever's."""

EMBEDDED_EVERY_S: Final = 0.5

OnEmbedded = Callable[[float], None]
"""Is told which share of a collection's passages has vectors."""

OnCollection = Callable[[Collection], None]
"""Is told of the collection whose passages are coming."""

E = TypeVar("E")


class Client(learning.LearningCalls):
    """Asks questions of a mesh and looks after its collections; safe to share between threads.

    Every method raises :class:`ragmesh.MeshError` when a call fails: ``reason`` for programs, the ``field``
    at fault, ``retry_after_s`` when a retry may help.

    Args:
        addresses: where the services are, or only the orchestrator's ``host:port``. Default: the mesh that
            runs on this machine, see :meth:`ragmesh.Addresses.find`.
        timeout: seconds a call may take when it is not given its own.
    """

    def __init__(self, addresses: Addresses | str | None = None, *, timeout: float = TIMEOUT_S) -> None:
        self.addresses = Addresses(addresses) if isinstance(addresses, str) else addresses or Addresses.find()
        self._timeout = timeout
        self._channels = {
            service: connect_sync(getattr(self.addresses, service), service=name, idempotent=methods)
            for service, (name, methods) in IDEMPOTENT.items()
        }
        name, methods = RETRIEVAL
        self._channels["retrieval"] = connect_sync(self.addresses.retriever, service=name, idempotent=methods)
        self._orchestrator = orchestrator_grpc.OrchestratorServiceStub(self._channels["orchestrator"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; calls under way fail."""
        for channel in self._channels.values():
            channel.close()

    def ask(
        self, question: str, *, timeout: float | None = None, **options: Unpack[AskOptions]
    ) -> Iterator[Event]:
        """Asks one question and yields what happens as it happens, :class:`ragmesh.Done` last.

        Closing the iterator cancels the ask.

        Args:
            question: 1 to 8,192 bytes, not only white space.
            timeout: seconds for all of it.
            options: how to answer, see :class:`ragmesh.AskOptions`.

        Raises:
            MeshError: while iterating, if the ask fails as a whole; at once, if an option makes no sense.
        """
        request = ask_request(question, options)
        return self._events(self._orchestrator.Ask, request, codec.event, timeout or self._timeout)

    def answer(
        self, question: str, *, timeout: float | None = None, **options: Unpack[AskOptions]
    ) -> AskResult:
        """Asks one question and waits for the whole result; arguments and errors as :meth:`ask`."""
        return AskResult.of(question, self.ask(question, timeout=timeout, **options))

    def converse(
        self,
        *,
        conversation: ConversationOptions | None = None,
        conversation_id: str = "",
        timeout: float | None = None,
        **options: Unpack[AskOptions],
    ) -> Conversation:
        """A conversation: turns that know of each other, and how relevant and fair they are together.

        Nothing is sent before the first turn. Use it in a ``with`` block, or close it.

        Args:
            conversation: how it goes, see :class:`ragmesh.ConversationOptions`.
            conversation_id: go on with this one, as it was asked and measured before where nothing is given.
            timeout: seconds for each turn.
            options: how turns are answered, see :class:`ragmesh.AskOptions`; ``ensemble`` is not for
                conversations.

        Raises:
            MeshError: an option makes no sense.
        """
        return Conversation(
            self._orchestrator,
            lambda exc: self._error(exc, "orchestrator"),
            options,
            conversation or {},
            timeout=timeout or self._timeout,
            conversation_id=text("conversation_id", conversation_id),
        )

    def retrieve(
        self, query: str, *, timeout: float | None = None, **options: Unpack[RetrieveOptions]
    ) -> Retrieval:
        """Asks the retriever alone: scored passages, and one ranking or several drawn ones.

        Args:
            query: 1 to 8,192 bytes, not only white space.
            timeout: seconds the call may take.
            options: what to retrieve from and how, see :class:`ragmesh.RetrieveOptions`.
        """
        stub = retriever_grpc.RetrieverServiceStub(self._channels["retrieval"])
        request = retrieve_request(query, options)
        return codec.retrieval(self._call("retriever", stub.Retrieve, request, timeout))

    def sources(self, *, timeout: float | None = None) -> list[WebSource]:
        """The web-search sources there are, by name."""
        stub = retriever_grpc.RetrieverServiceStub(self._channels["retrieval"])
        reply = self._call("retriever", stub.ListSources, retriever_pb2.ListSourcesRequest(), timeout)
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
    ) -> Iterator[AuditEvent]:
        """Samples rankings of one labelled query at several fairness dials and yields what each did.

        The deterministic ranking first, then every dial, then an oracle; reports after all samples,
        :class:`ragmesh.Done` last. Closing the iterator cancels the audit.

        Args:
            question: 1 to 8,192 bytes, not only white space.
            alphas: fairness dials, 0 to 100; 1, 2, 4 and 8 without any.
            oracle: rankings of the oracle, 0 to 1,000; as many as ``samples`` without it.
            until_width: stop sampling at a dial once the interval of its expected utility is at most so wide.
            level: probability with which that interval holds, 0.95 without it.
            timeout: seconds for all of it.
            options: how to answer, see :class:`ragmesh.AskOptions`: ``useful`` is required, ``samples`` are
                the rankings of each dial (100 without it), and ``alpha`` is not for audits.

        Raises:
            MeshError: while iterating, if the audit fails as a whole; at once, if an option makes no sense.
        """
        request = audit_request(
            question, options, alphas=alphas, oracle=oracle, until_width=until_width, level=level
        )
        return self._events(self._orchestrator.Audit, request, audit_codec.event, timeout or self._timeout)

    def ingest(
        self,
        source: Source,
        collection: str,
        *,
        create: bool = True,
        lexical: Lexical | None = None,
        on_progress: OnProgress | None = None,
        timeout: float = INGEST_TIMEOUT_S,
    ) -> Ingested:
        """Adds passages to a collection, or replaces those of equal id; all of them or, on any error, none.

        Args:
            source: a file (see :mod:`ragmesh.readers`), checked from end to end first; or the passages.
            collection: where to; 1 to 64 of a-z, 0-9, ``-`` and ``_``.
            create: make the collection if there is none.
            lexical: how to index the collection if it is made; of one that exists it must be so already.
            on_progress: is told how many passages have been sent.
            timeout: seconds for sending and indexing.

        Returns:
            What it did; durable and served by then.

        Raises:
            ReadError: the file, with the number of the line at fault.
            InvalidField: the collection is indexed otherwise than ``lexical``.
        """
        passages = checked(source)
        if lexical is not None:
            self._ensure(collection, lexical, create=create, timeout=timeout)
        stream = IngestStream(requests(passages, collection, create=create, on_progress=on_progress))
        stub = collection_grpc.CollectionServiceStub(self._channels["retriever"])
        call = stub.Ingest.future(iter(stream), timeout=timeout)
        try:
            return codec.ingested(call.result())
        except grpc.RpcError as exc:
            if stream.failure is not None:
                raise stream.failure from None
            raise self._error(exc, "retriever") from exc
        finally:
            call.cancel()

    def create_collection(
        self,
        name: str,
        *,
        description: str = "",
        lexical: Lexical | None = None,
        timeout: float | None = None,
    ) -> Collection:
        """A new, empty collection.

        Args:
            name: 1 to 64 of a-z, 0-9, ``-`` and ``_``.
            description: free text, at most 1,024 bytes.
            lexical: how its text is indexed; the server's default without it.
            timeout: seconds the call may take.

        Raises:
            AlreadyExists: the name is taken.
        """
        stub = collection_grpc.CollectionServiceStub(self._channels["retriever"])
        request = codec.create_request(name, description=description, lexical=lexical)
        return codec.collection(self._call("retriever", stub.CreateCollection, request, timeout).collection)

    def collection(self, name: str, *, timeout: float | None = None) -> Collection:
        """One collection."""
        stub = collection_grpc.CollectionServiceStub(self._channels["retriever"])
        request = collection_pb2.GetCollectionRequest(name=text("name", name))
        return codec.collection(self._call("retriever", stub.GetCollection, request, timeout).collection)

    def until_embedded(
        self, name: str, *, on_progress: OnEmbedded | None = None, timeout: float = INGEST_TIMEOUT_S
    ) -> Collection:
        """Waits until all passages of a collection have vectors; at once where the server makes none.

        Args:
            name: the collection.
            on_progress: is told the share that has, twice a second.
            timeout: seconds to wait.

        Raises:
            DeadlineExceeded: some lack vectors still; they are being made all the same.
        """
        ends = time.monotonic() + timeout
        while lacks_vectors(found := self.collection(name)):
            if on_progress is not None:
                on_progress(found.embedded)
            if time.monotonic() > ends:
                raise not_embedded(found)
            time.sleep(EMBEDDED_EVERY_S)
        return found

    def collections(self, *, timeout: float | None = None) -> list[Collection]:
        """The collections there are, by name."""
        stub = collection_grpc.CollectionServiceStub(self._channels["retriever"])
        reply = self._call(
            "retriever", stub.ListCollections, collection_pb2.ListCollectionsRequest(), timeout
        )
        return [codec.collection(one) for one in reply.collections]

    def passages(
        self, name: str, *, on_collection: OnCollection | None = None, timeout: float = INGEST_TIMEOUT_S
    ) -> Iterator[Passage]:
        """All passages of one version of a collection, by ascending id, as they arrive.

        Closing the iterator ends the call.

        Args:
            name: the collection.
            on_collection: is told of the collection at that version before the first passage comes.
            timeout: seconds for all of it.
        """
        stub = collection_grpc.CollectionServiceStub(self._channels["retriever"])
        request = collection_pb2.ListPassagesRequest(collection=text("collection", name))
        return self._passages(stub, request, on_collection, timeout)

    def delete_collection(self, name: str, *, timeout: float | None = None) -> None:
        """Removes a collection and its versions."""
        stub = collection_grpc.CollectionServiceStub(self._channels["retriever"])
        request = collection_pb2.DeleteCollectionRequest(name=text("name", name))
        self._call("retriever", stub.DeleteCollection, request, timeout)

    def runs(self, limit: int = PAGE_SIZE, *, timeout: float | None = None) -> list[Run]:
        """The newest ``limit`` runs, newest first."""
        stub = evaluator_grpc.EvaluatorServiceStub(self._channels["evaluator"])
        found: list[Run] = []
        token = ""
        while len(found) < limit:
            request = evaluator_pb2.ListRunsRequest(
                page_size=min(PAGE_SIZE, limit - len(found)), page_token=token
            )
            reply = self._call("evaluator", stub.ListRuns, request, timeout)
            found.extend(codec.run(one) for one in reply.runs)
            token = reply.next_page_token
            if not token:
                break
        return found

    def report(
        self,
        run_id: str | None = None,
        *,
        configuration: Configuration | None = None,
        window: Window = "all",
        timeout: float | None = None,
    ) -> RunReport:
        """The report of one run so far, or of one configuration over all runs.

        Args:
            run_id: the run; either this or a configuration.
            configuration: what made the observations.
            window: which observations: "all", or those of the last "hour" or "day".
            timeout: seconds for the call.
        """
        stub = evaluator_grpc.EvaluatorServiceStub(self._channels["evaluator"])
        request = codec.report_request(run_id, configuration, window)
        return codec.run_report(self._call("evaluator", stub.GetReport, request, timeout).report)

    def configurations(
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
            reply = self._call("evaluator", stub.ListConfigurations, request, timeout)
            found.extend(codec.configuration_summary(one) for one in reply.configurations)
            token = reply.next_page_token
            if not token:
                break
        return found

    def measurements(self, run_id: str, *, timeout: float | None = None) -> Iterator[Measurement]:
        """What was measured in a run, observation by observation, in the order they were stored.

        Closing the iterator ends the call.
        """
        stub = evaluator_grpc.EvaluatorServiceStub(self._channels["evaluator"])
        request = evaluator_pb2.ListMeasurementsRequest(run_id=text("run_id", run_id))
        return self._measurements(stub, request, timeout or self._timeout)

    def status(self, *, timeout: float = STATUS_TIMEOUT_S) -> list[ServiceStatus]:
        """How each service is, the orchestrator first; never fails."""
        channels = {
            service: connect_sync(address, service=health_pb2.DESCRIPTOR.package)
            for service, address in self.addresses.items()
        }
        calls = {
            service: health_pb2_grpc.HealthStub(channel).Check.future(
                health_pb2.HealthCheckRequest(), timeout=timeout
            )
            for service, channel in channels.items()
        }
        try:
            return [
                ServiceStatus(service, getattr(self.addresses, service), _health(call))
                for service, call in calls.items()
            ]
        finally:
            for channel in channels.values():
                channel.close()

    def _measurements(
        self,
        stub: "evaluator_grpc.EvaluatorServiceStub",
        request: evaluator_pb2.ListMeasurementsRequest,
        timeout: float,
    ) -> Iterator[Measurement]:
        call = stub.ListMeasurements(request, timeout=timeout)
        try:
            for message in call:
                yield codec.measurement(message)
        except grpc.RpcError as exc:
            raise self._error(exc, "evaluator") from exc
        finally:
            call.cancel()

    def _passages(
        self,
        stub: "collection_grpc.CollectionServiceStub",
        request: collection_pb2.ListPassagesRequest,
        on_collection: OnCollection | None,
        timeout: float,
    ) -> Iterator[Passage]:
        call = stub.ListPassages(request, timeout=timeout)
        try:
            for message in call:
                if on_collection is not None and message.HasField("collection"):
                    on_collection(codec.collection(message.collection))
                for one in message.passages:
                    yield codec.passage(one)
        except grpc.RpcError as exc:
            raise self._error(exc, "retriever") from exc
        finally:
            call.cancel()

    def _ensure(self, name: str, lexical: Lexical, *, create: bool, timeout: float) -> None:
        """That there is a collection that is indexed so."""
        if create:
            try:
                self.create_collection(name, lexical=lexical, timeout=timeout)
            except AlreadyExists:
                pass
            else:
                return
        there = self.collection(name, timeout=timeout).lexical
        if not lexical.agrees_with(there):
            raise InvalidField("lexical", f"collection {name!r} exists and is indexed with {there}, for good")

    def _events(
        self, method: Callable[..., Any], request: Message, read: Callable[[Any], E | None], timeout: float
    ) -> Iterator[E]:
        """What an ask or an audit brings, which may be turned away at the door and come again."""
        door = Door(timeout)
        while True:
            call = method(request, timeout=door.left_s)
            try:
                for message in call:
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
            time.sleep(door.pause_s)

    def _error(self, exc: grpc.RpcError, service: str) -> MeshError:
        return codec.error(exc, service=service, address=getattr(self.addresses, service))


def lacks_vectors(collection: Collection) -> bool:
    """Whether vectors of a collection are still to come."""
    return bool(collection.encoder) and collection.embedded < 1


def not_embedded(collection: Collection) -> DeadlineExceeded:
    """The error of who does not want to wait longer for vectors."""
    return DeadlineExceeded(
        f"{collection.embedded:.1%} of the passages of {collection.name!r} have vectors by now; "
        "the rest follows"
    )


def _health(call: "grpc.Future[health_pb2.HealthCheckResponse]") -> Health:
    try:
        reply = call.result()
    except grpc.RpcError:
        return Health.UNREACHABLE
    return codec.health(reply)
