"""From the wire to what users see: proto messages in, this package's dataclasses out."""

from typing import Final

import grpc
from google.protobuf.descriptor import EnumDescriptor
from grpc_health.v1 import health_pb2

from meshkit.errors import DeadlineExceeded, InvalidField, MeshError, Unavailable, from_rpc_error
from ragmesh.collection import Collection, Ingested, Lexical
from ragmesh.common.v1 import common_pb2
from ragmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb2
from ragmesh.events import (
    Answer,
    Citation,
    Cost,
    Degraded,
    Delta,
    Done,
    Event,
    Failed,
    Ranked,
    Report,
    Retrieved,
    Vote,
)
from ragmesh.generator.v1 import generator_service_pb2 as generator_pb2
from ragmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb2
from ragmesh.passage import Passage
from ragmesh.reports import (
    WINDOWS,
    Configuration,
    ConfigurationSummary,
    DegradationCount,
    Estimate,
    ExposureShare,
    Measurement,
    Run,
    RunReport,
    Window,
)
from ragmesh.retrieval import Retrieval, Source
from ragmesh.retriever.v1 import collection_service_pb2 as collection_pb2
from ragmesh.retriever.v1 import retriever_service_pb2 as retriever_pb2
from ragmesh.status import Health
from ragmesh.texts import text
from ragmesh.times import time_of

_STAGE_PREFIX: Final = "STAGE_"
_ACTION_PREFIX: Final = "ACTION_"
_FINISH_PREFIX: Final = "FINISH_REASON_"
_WINDOW_PREFIX: Final = "WINDOW_"


def event(message: orchestrator_pb2.AskResponse) -> Event | None:
    """The event of a message; None if a newer mesh sent a kind this version does not know."""
    match message.WhichOneof("event"):
        case "retrieved":
            return _retrieved(message.retrieved)
        case "ranked":
            return _ranked(message.ranked)
        case "delta":
            return Delta(message.delta.text)
        case "answer":
            return _answer(message.answer)
        case "failed":
            return _failed(message.failed)
        case "vote":
            vote = message.vote
            return Vote(
                vote.answer,
                vote.num_answers,
                vote.num_missing,
                vote.may_change,
                member=vote.member,
                missing=tuple(vote.missing),
                final=vote.final,
            )
        case "report":
            return report(message.report)
        case "degraded":
            return degraded(message.degraded)
        case "done":
            return done(message.done)
        case _:
            return None


def passage(message: common_pb2.Passage) -> Passage:
    """A passage."""
    return Passage(id=message.id, text=message.text, title=message.title, attributes=dict(message.attributes))


def collection(message: collection_pb2.Collection) -> Collection:
    """A collection."""
    return Collection(
        name=message.name,
        version=message.version,
        num_passages=message.num_passages,
        size_bytes=message.size_bytes,
        encoder=message.encoder,
        analyzer=message.analyzer,
        description=message.description,
        updated_at=time_of(message.updated_at),
        lexical=Lexical(
            analyzer=message.lexical.analyzer,
            k1=message.lexical.k1 if message.lexical.HasField("k1") else None,
            b=message.lexical.b if message.lexical.HasField("b") else None,
        ),
        dense_kind=message.dense_kind,
        dense_recall=message.dense_recall if message.HasField("dense_recall") else None,
        num_segments=message.num_segments,
        num_tombstones=message.num_tombstones,
        embedded=message.embedded,
    )


def retrieval(message: retriever_pb2.RetrieveResponse) -> Retrieval:
    """What a retriever gave."""
    k, indices = message.rankings.depth, message.rankings.indices
    rankings = [tuple(indices[begin : begin + k]) for begin in range(0, len(indices), k)] if k else [()]
    return Retrieval(
        passages=tuple(passage(one) for one in message.passages),
        scores=tuple(message.scores),
        rankings=tuple(rankings),
        log_probabilities=tuple(message.rankings.log_probabilities),
        inclusion_probabilities=tuple(message.inclusion_probabilities),
        retriever=message.retriever,
        index_version=message.index_version,
        note=message.note,
    )


def source(message: retriever_pb2.Source) -> Source:
    """A web-search source."""
    return Source(message.name, message.description)


def create_request(
    name: str, *, description: str, lexical: Lexical | None
) -> collection_pb2.CreateCollectionRequest:
    """The request that creates a collection."""
    request = collection_pb2.CreateCollectionRequest(
        name=text("name", name), description=text("description", description)
    )
    if lexical is not None:
        request.lexical.CopyFrom(
            collection_pb2.LexicalIndexing(
                analyzer=text("lexical.analyzer", lexical.analyzer), k1=lexical.k1, b=lexical.b
            )
        )
    return request


def ingested(message: collection_pb2.IngestResponse) -> Ingested:
    """What an ingest did."""
    return Ingested(
        collection=collection(message.collection),
        added=message.added,
        replaced=message.replaced,
        unchanged=message.unchanged,
    )


def run(message: evaluator_pb2.Run) -> Run:
    """A run in a list."""
    return Run(
        run_id=message.run_id,
        num_observations=message.num_observations,
        started_at=time_of(message.started_at),
        updated_at=time_of(message.updated_at),
    )


def report_request(
    run_id: str | None, configuration: Configuration | None, window: Window
) -> evaluator_pb2.GetReportRequest:
    """Names the report that is wanted.

    Raises:
        InvalidField: not exactly one of run and configuration, or an unknown window.
    """
    if window not in WINDOWS:
        raise InvalidField("window", f"must be one of {', '.join(WINDOWS)}")
    if (run_id is None) == (configuration is None):
        raise InvalidField("run_id", "must be given, or else a configuration")
    number = evaluator_pb2.Window.DESCRIPTOR.values_by_name[f"{_WINDOW_PREFIX}{window.upper()}"].number
    request = evaluator_pb2.GetReportRequest(window=evaluator_pb2.Window.ValueType(number))
    if run_id is not None:
        request.run_id = text("run_id", run_id)
    if configuration is not None:
        request.configuration.CopyFrom(
            evaluator_pb2.Configuration(
                collection=configuration.collection,
                retriever=configuration.retriever,
                reranker=configuration.reranker,
                generator=configuration.generator,
                alpha=configuration.alpha,
            )
        )
    return request


def configuration_summary(message: evaluator_pb2.ConfigurationSummary) -> ConfigurationSummary:
    """A configuration in a list."""
    return ConfigurationSummary(
        configuration=_configuration(message.configuration),
        num_observations=message.num_observations,
        started_at=time_of(message.started_at),
        updated_at=time_of(message.updated_at),
    )


def measurement(message: evaluator_pb2.ListMeasurementsResponse) -> Measurement:
    """What one observation measured."""
    return Measurement(
        observation_id=message.observation_id,
        query_id=message.query_id,
        configuration=_configuration(message.configuration),
        observed_at=time_of(message.observed_at),
        quantities=dict(message.quantities),
    )


def run_report(message: evaluator_pb2.RunReport) -> RunReport:
    """A run, or a configuration, so far."""
    windows: dict[int, Window] = {evaluator_pb2.WINDOW_HOUR: "hour", evaluator_pb2.WINDOW_DAY: "day"}
    return RunReport(
        run_id=message.run_id,
        num_observations=message.num_observations,
        num_rankings=message.num_rankings,
        num_unanswered=message.num_unanswered,
        ee_d=_estimate(message.ee_d),
        ee_d_norm=_estimate(message.ee_d_norm),
        ee_r=_estimate(message.ee_r),
        ee_r_norm=_estimate(message.ee_r_norm),
        expected_utility=_estimate(message.expected_utility),
        normalized_expected_utility=_estimate(message.normalized_expected_utility),
        vote_agreement=_estimate(message.vote_agreement),
        retriever_error=_estimate(message.retriever_error),
        hallucination_error=_estimate(message.hallucination_error),
        extraction_error=_estimate(message.extraction_error),
        lucky_guess=_estimate(message.lucky_guess),
        conversation_relevance=_estimate(message.conversation_relevance),
        conversation_group_fairness=_estimate(message.conversation_group_fairness),
        conversation_combined=_estimate(message.conversation_combined),
        providers=tuple(_share(share) for share in message.providers),
        passages=tuple(_share(share) for share in message.passages),
        stages={_stage(summary.stage): _estimate(summary.duration_ms) for summary in message.stages},
        degradations=tuple(
            DegradationCount(_stage(count.stage), count.reason, count.count) for count in message.degradations
        ),
        started_at=time_of(message.started_at),
        updated_at=time_of(message.updated_at),
        window=windows.get(message.window, "all"),
        configuration=_configuration(message.configuration) if message.HasField("configuration") else None,
    )


def health(message: health_pb2.HealthCheckResponse) -> Health:
    """What a service that answered says of itself."""
    serving = message.status == health_pb2.HealthCheckResponse.SERVING
    return Health.SERVING if serving else Health.NOT_SERVING


def error(exc: grpc.RpcError, *, service: str, address: str) -> MeshError:
    """What a failed call meant, in words for whoever made it.

    Args:
        exc: the failed call.
        service: short name of the service that was called.
        address: where it was looked for.
    """
    mesh_error = from_rpc_error(exc)
    if mesh_error.code is grpc.StatusCode.UNAVAILABLE and mesh_error.reason == "UNAVAILABLE":
        # gRPC's own: nobody answered, or the connection broke. Its text is about sockets.
        return Unavailable("UNREACHABLE", f"no {service} answers at {address}")
    if mesh_error.code is grpc.StatusCode.DEADLINE_EXCEEDED and mesh_error.reason == "DEADLINE_EXCEEDED":
        return DeadlineExceeded(f"the {service} at {address} did not finish in time")
    return mesh_error


def _retrieved(message: orchestrator_pb2.Retrieved) -> Retrieved:
    return Retrieved(
        passages=tuple(passage(one) for one in message.passages),
        scores=tuple(message.scores),
        retriever=message.retriever,
        index_version=message.index_version,
    )


def _ranked(message: orchestrator_pb2.Ranked) -> Ranked:
    indices, depth = tuple(message.contexts.indices), message.contexts.depth
    return Ranked(
        contexts=tuple(indices[start : start + depth] for start in range(0, len(indices), depth or 1)),
        log_probabilities=tuple(message.contexts.log_probabilities),
        reranker=message.reranker,
        model_version=message.model_version,
        member=message.member,
    )


def _answer(message: orchestrator_pb2.AnswerEvent) -> Answer:
    answer = message.answer
    return Answer(
        text=answer.text,
        samples=tuple(message.samples),
        member=message.member,
        citations=tuple(_citation(one) for one in message.citations),
        finish_reason=_word(
            generator_pb2.Answer.FinishReason.DESCRIPTOR, answer.finish_reason, _FINISH_PREFIX
        ),
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        log_probability=answer.log_probability,
        model=answer.model,
        model_version=answer.model_version,
        engine=answer.engine,
        dropped_passages=answer.dropped_passages,
        cut_passages=answer.cut_passages,
        dropped_turns=answer.dropped_turns,
        cost=_cost(answer.cost),
    )


def _cost(message: generator_pb2.Cost) -> Cost:
    return Cost(
        queue_ms=message.queue_ms,
        first_token_ms=message.first_token_ms,
        total_ms=message.total_ms,
        computed_tokens=message.computed_tokens,
        reused_tokens=message.reused_tokens,
        batch_rows=message.batch_rows,
    )


def _citation(message: orchestrator_pb2.Citation) -> Citation:
    return Citation(
        passage_id=message.passage_id,
        provider=message.provider,
        rank=message.rank,
        start=message.start if message.HasField("start") else None,
        end=message.end if message.HasField("end") else None,
    )


def _failed(message: orchestrator_pb2.AnswerFailed) -> Failed:
    failure = message.error
    return Failed(
        tuple(message.samples),
        failure.code,
        failure.reason,
        failure.message,
        failure.field,
        message.member,
    )


def report(message: orchestrator_pb2.ExposureReport) -> Report:
    """Exposure of an ask."""
    return Report(
        exposure=tuple(message.exposure),
        ee_d_norm=message.ee_d_norm,
        ee_r_norm=message.ee_r_norm if message.HasField("ee_r_norm") else None,
        expected_utility=message.expected_utility if message.HasField("expected_utility") else None,
        providers=tuple(_share(share) for share in message.providers),
        run=run_report(message.run) if message.HasField("run") else None,
    )


def degraded(message: common_pb2.Degradation) -> Degraded:
    """A stage that degraded."""
    return Degraded(
        stage=_stage(message.stage),
        action=_word(common_pb2.Degradation.Action.DESCRIPTOR, message.action, _ACTION_PREFIX),
        reason=message.reason,
        message=message.message,
    )


def done(message: orchestrator_pb2.Done) -> Done:
    """The end of a call."""
    return Done(
        ask_id=message.ask_id,
        run_id=message.run_id,
        stage_ms={_stage(time.stage): time.duration_ms for time in message.stage_times},
        total_ms=message.total_ms,
    )


def _share(message: evaluator_pb2.ExposureShare) -> ExposureShare:
    return ExposureShare(
        name=message.name,
        exposure=message.exposure,
        share=message.share,
        target=message.target if message.HasField("target") else None,
        per_observation=_estimate(message.per_observation) if message.HasField("per_observation") else None,
    )


def _configuration(message: evaluator_pb2.Configuration) -> Configuration:
    return Configuration(
        collection=message.collection,
        retriever=message.retriever,
        reranker=message.reranker,
        generator=message.generator,
        alpha=message.alpha if message.HasField("alpha") else None,
    )


def _estimate(message: common_pb2.Estimate) -> Estimate:
    return Estimate(
        mean=message.mean if message.HasField("mean") else None,
        low=message.low if message.HasField("low") else None,
        high=message.high if message.HasField("high") else None,
        count=message.count,
        undefined=message.undefined,
    )


def _stage(number: int) -> str:
    return _word(common_pb2.Stage.DESCRIPTOR, number, _STAGE_PREFIX)


def _word(enum: EnumDescriptor, number: int, prefix: str) -> str:
    """The lower-case name of an enum value; its number if it is of a newer mesh and not known here."""
    value = enum.values_by_number.get(number)
    return str(number) if value is None else value.name.removeprefix(prefix).lower()
