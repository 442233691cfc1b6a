"""Scripted services: what a small real mesh of the tests answers."""

# ruff: noqa: N802 - gRPC names methods as the contract does

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc

from evenmesh import Addresses
from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as evaluator_grpc
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb2
from evenmesh.generator.v1 import generator_service_pb2_grpc as generator_grpc
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb2
from evenmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as orchestrator_grpc
from evenmesh.retriever.v1 import collection_service_pb2 as collection_pb2
from evenmesh.retriever.v1 import collection_service_pb2_grpc as collection_grpc
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb2
from evenmesh.retriever.v1 import retriever_service_pb2_grpc as retriever_grpc
from evenmesh.wire.errors import AlreadyExists, InvalidField, MeshError, NotFound

Ask = orchestrator_pb2.AskResponse


def answered(
    text: str = "every 200 kilometres",
    samples: tuple[int, ...] = (0,),
    *,
    dropped: int = 0,
    cut: int = 0,
    turns: int = 0,
) -> Ask:
    """A finished answer that cites the first passage."""
    return Ask(
        answer=orchestrator_pb2.AnswerEvent(
            answer=generator_pb2.Answer(
                text=text,
                finish_reason=generator_pb2.Answer.FINISH_REASON_STOP,
                prompt_tokens=90,
                completion_tokens=4,
                log_probability=-0.5,
                model="pointer",
                model_version="v1",
                engine="pointer",
                dropped_passages=dropped,
                cut_passages=cut,
                dropped_turns=turns,
                cost=generator_pb2.Cost(
                    queue_ms=0.5,
                    first_token_ms=4,
                    total_ms=9,
                    computed_tokens=60,
                    reused_tokens=30,
                    batch_rows=2,
                ),
            ),
            samples=samples,
            citations=[orchestrator_pb2.Citation(passage_id="p1", provider="Co-op", rank=1, start=3, end=9)],
        )
    )


def script() -> list[Ask]:
    """What a good ask streams."""
    passages = [
        common_pb2.Passage(
            id="p1", title="Oil it", text="Oil every 200 kilometres", attributes={"provider": "Co-op"}
        ),
        common_pb2.Passage(id="p2", title="Wipe it", text="Wipe it", attributes={"provider": "Club"}),
    ]
    return [
        Ask(
            retrieved=orchestrator_pb2.Retrieved(
                passages=passages, scores=[2.0, 1.0], retriever="bm25", index_version="v7", collection="demo"
            )
        ),
        Ask(
            ranked=orchestrator_pb2.Ranked(
                contexts=common_pb2.Rankings(depth=2, indices=[0, 1, 1, 0], log_probabilities=[-0.2, -1.7]),
                reranker="none",
            )
        ),
        Ask(delta=orchestrator_pb2.Delta(text="every ")),
        Ask(delta=orchestrator_pb2.Delta(text="200 kilometres")),
        answered(),
        answered("often", (1,)),
        Ask(),  # of a kind that only a newer contract has
        Ask(
            degraded=common_pb2.Degradation(
                stage=common_pb2.STAGE_RERANK,
                action=common_pb2.Degradation.ACTION_RETRIEVER_ORDER,
                reason="UPSTREAM_UNAVAILABLE",
                message="the reranker is away",
            )
        ),
        Ask(
            report=orchestrator_pb2.ExposureReport(
                exposure=[1.0, 0.5],
                ee_d_norm=0.25,
                expected_utility=0.75,
                providers=[
                    evaluator_pb2.ExposureShare(name="Co-op", exposure=1.0, share=2 / 3),
                    evaluator_pb2.ExposureShare(name="Club", exposure=0.5, share=1 / 3),
                ],
            )
        ),
        Ask(
            done=orchestrator_pb2.Done(
                ask_id="a1",
                run_id="r1",
                stage_times=[common_pb2.StageTime(stage=common_pb2.STAGE_RETRIEVE, duration_ms=12.5)],
                total_ms=40.0,
            )
        ),
    ]


@dataclass
class Orchestrator(orchestrator_grpc.OrchestratorServiceServicer):
    """Streams its script; with ``hang``, then waits until the caller is gone.

    Before its last event it waits for ``release``; with ``error`` that comes instead of the last event.
    """

    events: list[Ask] = field(default_factory=script)
    requests: list[orchestrator_pb2.AskRequest] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)
    hang: bool = False
    error: MeshError | None = None
    release: threading.Event | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    turns: list[orchestrator_pb2.ConverseRequest] = field(default_factory=list)
    ensembles: orchestrator_pb2.ListEnsemblesResponse = field(
        default_factory=orchestrator_pb2.ListEnsemblesResponse
    )

    async def Converse(  # type: ignore[override]
        self,
        request_iterator: AsyncIterator[orchestrator_pb2.ConverseRequest],
        context: grpc.aio.ServicerContext[object, object],
    ) -> AsyncIterator[orchestrator_pb2.ConverseResponse]:
        """Take each turn as an ask; the id of the conversation is that of the request, or ``talk``."""
        async for request in request_iterator:
            self.turns.append(request)
            named = request.conversation_id or "talk"
            async for event in self.Ask(request.ask, context):
                text = "### U1\n" if event.HasField("done") else ""
                yield orchestrator_pb2.ConverseResponse(conversation_id=named, event=event, transcript=text)

    async def ListEnsembles(  # type: ignore[override]
        self,
        request: orchestrator_pb2.ListEnsemblesRequest,
        context: grpc.aio.ServicerContext[object, object],
    ) -> orchestrator_pb2.ListEnsemblesResponse:
        return self.ensembles

    async def Ask(  # type: ignore[override]
        self, request: orchestrator_pb2.AskRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> AsyncIterator[Ask]:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata() or ()))
        if not request.question.strip():
            raise InvalidField("question", "must not be empty")
        try:
            for event in self.events[:-1]:
                yield event
            while self.release is not None and not self.release.is_set():
                await asyncio.sleep(0.01)
            if self.error is not None:
                raise self.error
            for event in self.events[-1:]:
                yield event
            if self.hang:
                await asyncio.Event().wait()
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.set()
            raise


@dataclass
class Collections(collection_grpc.CollectionServiceServicer):
    """Keeps whole streams, as the real one does."""

    kept: dict[str, list[common_pb2.Passage]] = field(default_factory=dict)
    parts: int = 0
    lexical: dict[str, collection_pb2.LexicalIndexing] = field(default_factory=dict)
    shares: list[float] = field(default_factory=list)
    """What of a collection has vectors: after an ingest the first, then the next each time it is asked."""

    async def CreateCollection(  # type: ignore[override]
        self,
        request: collection_pb2.CreateCollectionRequest,
        context: grpc.aio.ServicerContext[object, object],
    ) -> collection_pb2.CreateCollectionResponse:
        if request.name in self.kept:
            raise AlreadyExists("name", f"there is a collection {request.name!r} already")
        self.kept[request.name] = []
        self.lexical[request.name] = request.lexical
        return collection_pb2.CreateCollectionResponse(
            collection=collection_pb2.Collection(
                name=request.name, description=request.description, lexical=request.lexical
            )
        )

    async def GetCollection(  # type: ignore[override]
        self, request: collection_pb2.GetCollectionRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> collection_pb2.GetCollectionResponse:
        if request.name not in self.kept:
            raise NotFound("name", f"there is no collection {request.name!r}")
        there = self.lexical.get(request.name, collection_pb2.LexicalIndexing(analyzer="unicode"))
        return collection_pb2.GetCollectionResponse(
            collection=collection_pb2.Collection(
                name=request.name,
                lexical=there,
                num_segments=3,
                dense_recall=0.5,
                embedded=self.shares.pop(0) if self.shares else 1.0,
                encoder="minilm",
                num_passages=len(self.kept[request.name]),
            )
        )

    async def Ingest(  # type: ignore[override]
        self,
        request_iterator: AsyncIterator[collection_pb2.IngestRequest],
        context: grpc.aio.ServicerContext[object, object],
    ) -> collection_pb2.IngestResponse:
        taken: list[common_pb2.Passage] = []
        name, whole = "", False
        async for request in request_iterator:
            self.parts += 1
            name = name or request.collection
            if name.startswith("Bad"):
                raise InvalidField("collection", "must be lower case")
            if request.collection not in ("", name):
                raise InvalidField("collection", "must stay the same")
            taken.extend(request.passages)
            whole = request.last
        if not whole:
            raise InvalidField("last", "must be set in the last message")
        self.kept[name] = taken
        return collection_pb2.IngestResponse(
            collection=collection_pb2.Collection(
                name=name,
                version="v1",
                num_passages=len(taken),
                encoder="minilm" if self.shares else "",
                embedded=self.shares.pop(0) if self.shares else 0.0,
            ),
            added=len(taken),
        )

    async def ListCollections(  # type: ignore[override]
        self,
        request: collection_pb2.ListCollectionsRequest,
        context: grpc.aio.ServicerContext[object, object],
    ) -> collection_pb2.ListCollectionsResponse:
        return collection_pb2.ListCollectionsResponse(
            collections=[
                collection_pb2.Collection(
                    name=name, version="v1", num_passages=len(passages), size_bytes=12_345, encoder="minilm"
                )
                for name, passages in sorted(self.kept.items())
            ]
        )

    async def DeleteCollection(  # type: ignore[override]
        self,
        request: collection_pb2.DeleteCollectionRequest,
        context: grpc.aio.ServicerContext[object, object],
    ) -> collection_pb2.DeleteCollectionResponse:
        if request.name not in self.kept:
            raise NotFound("name", f"there is no collection {request.name!r}")
        del self.kept[request.name]
        return collection_pb2.DeleteCollectionResponse()

    async def DeletePassages(  # type: ignore[override]
        self,
        request: collection_pb2.DeletePassagesRequest,
        context: grpc.aio.ServicerContext[object, object],
    ) -> collection_pb2.DeletePassagesResponse:
        if not request.passage_ids:
            raise InvalidField("passage_ids", "must have at least 1")
        if request.collection not in self.kept:
            raise NotFound("collection", f"there is no collection {request.collection!r}")
        self.parts += 1
        before = self.kept[request.collection]
        after = [one for one in before if one.id not in set(request.passage_ids)]
        self.kept[request.collection] = after
        deleted = len(before) - len(after)
        return collection_pb2.DeletePassagesResponse(
            collection=collection_pb2.Collection(name=request.collection, num_passages=len(after)),
            deleted=deleted,
            missing=len(request.passage_ids) - deleted,
        )


@dataclass
class Retriever(retriever_grpc.RetrieverServiceServicer):
    """Finds the same three passages; two rankings of them if any are drawn. ``text`` is that of the first."""

    text: str = "Oil every 200 kilometres " * 9
    requests: list[retriever_pb2.RetrieveRequest] = field(default_factory=list)
    embedded: list[retriever_pb2.EmbedRequest] = field(default_factory=list)
    sources: list[retriever_pb2.Source] = field(default_factory=list)
    error: MeshError | None = None
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)

    async def Retrieve(  # type: ignore[override]
        self, request: retriever_pb2.RetrieveRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> retriever_pb2.RetrieveResponse:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata() or ()))
        if self.error is not None:
            raise self.error
        if request.whole_collection and not request.HasField("sampling"):
            raise InvalidField("whole_collection", "must be false without sampling")
        if request.query == "nothing":
            return retriever_pb2.RetrieveResponse(retriever="bm25", rankings=common_pb2.Rankings(depth=0))
        drawn = request.HasField("sampling")
        return retriever_pb2.RetrieveResponse(
            passages=[
                common_pb2.Passage(id="p1", title="Oil it", text=self.text),
                common_pb2.Passage(id="p2", text="Wipe\x1b[2J it"),
                common_pb2.Passage(id="p3", text="Wax it", attributes={"provider": "Club"}),
            ],
            scores=[2.5, 1.0, 0.0],
            rankings=common_pb2.Rankings(
                depth=2,
                indices=[0, 1, 2, 0] if drawn else [0, 1],
                log_probabilities=[-0.5, -1.5] if drawn else [],
            ),
            index_version="v7",
            retriever="bm25",
            inclusion_probabilities=[0.9, 0.6, 0.5] if request.include_inclusion_probabilities else [],
            note="half of it",
        )

    async def Embed(  # type: ignore[override]
        self, request: retriever_pb2.EmbedRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> retriever_pb2.EmbedResponse:
        self.embedded.append(request)
        if self.error is not None:
            raise self.error
        made = [
            retriever_pb2.Embedding(values=[0.6, len(one) / 10], tokens=len(one.split()))
            for one in request.texts
        ]
        return retriever_pb2.EmbedResponse(embeddings=made, model="minilm", fingerprint="f1", max_tokens=256)

    async def ListRetrievers(  # type: ignore[override]
        self, request: retriever_pb2.ListRetrieversRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> retriever_pb2.ListRetrieversResponse:
        made = [
            retriever_pb2.Retriever(
                name="bm25", description="BM25", engine="csr", device="cpu", is_default=True
            ),
            retriever_pb2.Retriever(
                name="dense", description="dot\x1b", engine="faiss-flat", model="minilm", device="cpu"
            ),
        ]
        return retriever_pb2.ListRetrieversResponse(retrievers=made)

    async def ListSources(  # type: ignore[override]
        self, request: retriever_pb2.ListSourcesRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> retriever_pb2.ListSourcesResponse:
        return retriever_pb2.ListSourcesResponse(sources=self.sources)


@dataclass
class Evaluator(evaluator_grpc.EvaluatorServiceServicer):
    """Has five runs, two a page."""

    run_ids: tuple[str, ...] = ("r5", "r4", "r3", "r2", "r1")
    num_rankings: int = 60
    report_requests: list[evaluator_pb2.GetReportRequest] = field(default_factory=list)

    async def ListRuns(  # type: ignore[override]
        self, request: evaluator_pb2.ListRunsRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> evaluator_pb2.ListRunsResponse:
        start = int(request.page_token or 0)
        end = start + min(2, request.page_size)
        return evaluator_pb2.ListRunsResponse(
            runs=[evaluator_pb2.Run(run_id=run, num_observations=3) for run in self.run_ids[start:end]],
            next_page_token=str(end) if end < len(self.run_ids) else "",
        )

    async def GetReport(  # type: ignore[override]
        self, request: evaluator_pb2.GetReportRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> evaluator_pb2.GetReportResponse:
        self.report_requests.append(request)
        if not request.HasField("configuration") and request.run_id not in self.run_ids:
            raise NotFound("run_id", f"there is no run {request.run_id!r}")
        return evaluator_pb2.GetReportResponse(
            report=evaluator_pb2.RunReport(
                run_id=request.run_id,
                window=request.window,
                configuration=request.configuration if request.HasField("configuration") else None,
                num_observations=3,
                num_rankings=self.num_rankings,
                vote_agreement=common_pb2.Estimate(mean=0.9, count=2),
                passages=[evaluator_pb2.ExposureShare(name="p1<b>", exposure=1.0, share=0.5)],
                ee_d_norm=common_pb2.Estimate(mean=0.5, low=0.25, high=0.75, count=3),
                ee_r_norm=common_pb2.Estimate(mean=0.5, count=1, undefined=2),
                expected_utility=common_pb2.Estimate(undefined=3),
                providers=[evaluator_pb2.ExposureShare(name="Co-op", exposure=2.0, share=1.0, target=1.5)],
                stages=[
                    evaluator_pb2.StageSummary(
                        stage=common_pb2.STAGE_GENERATE, duration_ms=common_pb2.Estimate(mean=80.0, count=3)
                    )
                ],
                degradations=[
                    evaluator_pb2.DegradationCount(
                        stage=common_pb2.STAGE_RERANK, reason="BUDGET_EXCEEDED", count=1
                    )
                ],
            )
        )

    async def ListConfigurations(  # type: ignore[override]
        self,
        request: evaluator_pb2.ListConfigurationsRequest,
        context: grpc.aio.ServicerContext[object, object],
    ) -> evaluator_pb2.ListConfigurationsResponse:
        start = int(request.page_token or 0)
        end = start + min(2, request.page_size)
        made = [
            evaluator_pb2.Configuration(collection="c", retriever="bm25", alpha=alpha) for alpha in (0, 1)
        ]
        made.append(evaluator_pb2.Configuration(collection="c", retriever="dense"))
        return evaluator_pb2.ListConfigurationsResponse(
            configurations=[
                evaluator_pb2.ConfigurationSummary(configuration=one, num_observations=3)
                for one in made[start:end]
            ],
            next_page_token=str(end) if end < len(made) else "",
        )

    async def GetObservation(  # type: ignore[override]
        self, request: evaluator_pb2.GetObservationRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> evaluator_pb2.GetObservationResponse:
        if request.observation_id != "q1-2.0":
            raise NotFound("observation_id", f"there is no observation {request.observation_id!r}")
        observation = evaluator_pb2.Observation(
            id="q1-2.0",
            run_id="r1",
            query_id="q1",
            question="Who?",
            retriever="bm25",
            alpha=2.0,
            candidates=[evaluator_pb2.Candidate(passage_id=one, provider="Co-op") for one in ("p1", "p2")],
            shown=common_pb2.Rankings(depth=1, indices=[1, 0]),
            answers=[evaluator_pb2.SampledAnswer(text="I", samples=[0, 1], cited=[1])],
        )
        observation.observed_at.seconds = 1
        return evaluator_pb2.GetObservationResponse(observation=observation)

    async def ListMeasurements(  # type: ignore[override]
        self,
        request: evaluator_pb2.ListMeasurementsRequest,
        context: grpc.aio.ServicerContext[object, object],
    ) -> AsyncIterator[evaluator_pb2.ListMeasurementsResponse]:
        if request.run_id not in self.run_ids:
            raise NotFound("run_id", f"there is no run {request.run_id!r}")
        for query in ("q1", "q2"):
            for alpha in (0.0, 2.0):
                yield evaluator_pb2.ListMeasurementsResponse(
                    observation_id=f"{query}-{alpha}",
                    query_id=query,
                    configuration=evaluator_pb2.Configuration(retriever="bm25", alpha=alpha),
                    quantities={"ee_d_norm": 0.25 + alpha / 4, "ee_r_norm": 0.5 + alpha / 8},
                )


class Generator(generator_grpc.GeneratorServiceServicer):
    """Lists models, the first of which is the default."""

    async def ListModels(  # type: ignore[override]
        self,
        request: generator_pb2.ListModelsRequest,
        context: grpc.aio.ServicerContext[generator_pb2.ListModelsRequest, generator_pb2.ListModelsResponse],
    ) -> generator_pb2.ListModelsResponse:
        """List two."""
        return generator_pb2.ListModelsResponse(
            models=[
                generator_pb2.Model(name="small", is_default=True, max_new_tokens=511),
                generator_pb2.Model(name="large", max_new_tokens=4096),
            ]
        )


@dataclass
class ScriptedMesh:
    """The services behind one address, and that address."""

    addresses: Addresses
    orchestrator: Orchestrator
    collections: Collections
    evaluator: Evaluator
    retriever: Retriever
