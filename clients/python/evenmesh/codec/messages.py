"""Read replies into the dataclasses of :mod:`evenmesh.types`, and failed calls into errors."""

from typing import Final

import grpc
from grpc_health.v1 import health_pb2

from evenmesh.codec.mapping import decode, encode, word
from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb2
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb2
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb2
from evenmesh.types.events import (
    Answer,
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
from evenmesh.types.passage import Passage
from evenmesh.types.reports import (
    WINDOWS,
    Configuration,
    DegradationCount,
    Estimate,
    ObservedAsk,
    RunReport,
    Window,
)
from evenmesh.types.retrieval import Embeddings, Retrieval
from evenmesh.types.status import Health
from evenmesh.wire.errors import DeadlineExceeded, InvalidField, MeshError, Unavailable, from_rpc_error

_STAGES: Final = common_pb2.Stage.DESCRIPTOR
_FAULTS: Final = {
    "certificate has expired": "no TLS with {}: its certificate, or that of its authority, has expired",
    "certificate is not yet valid": "no TLS with {}: its certificate is not valid yet",
    "Hostname Verification Check failed": "no TLS with {}: its certificate is for another name",
    "CERTIFICATE_VERIFY_FAILED": (
        "no TLS with {}: no authority that EVENMESH_TLS_CA names has signed its certificate"
    ),
    "WRONG_VERSION_NUMBER": "no TLS with {}: it does not speak TLS, which EVENMESH_TLS_CA asks for",
    "connect an http1.x server": (
        "no gRPC with {}: a server of HTTP/1.1 answers there, such as the gateway; gRPC has another port"
    ),
    # So servers refuse a handshake: without TLS, and with no certificate or one that they do not accept.
    ": Socket closed": (
        "no gRPC with {}: it closes the connection. If it speaks TLS, set EVENMESH_TLS_CA; if it asks for a "
        "certificate, check EVENMESH_TLS_CERT: whether it is set, has expired, and has an authority that the "
        "service trusts"
    ),
}
"""Why there is no connection, by a part of gRPC's text; the first part that is there counts."""


def event(message: orchestrator_pb2.AskResponse) -> Event | None:
    """Return the event of a message; None for a kind that only a newer mesh sends."""
    match message.WhichOneof("event"):
        case "retrieved":
            passages = tuple(map(passage, message.retrieved.passages))
            return decode(Retrieved, message.retrieved, passages=passages)
        case "ranked":
            ranked = message.ranked
            return decode(
                Ranked,
                ranked,
                contexts=rows(ranked.contexts),
                log_probabilities=tuple(ranked.contexts.log_probabilities),
            )
        case "delta":
            return Delta(message.delta.text)
        case "answer":
            return decode(Answer, message.answer.answer, message.answer)
        case "failed":
            return decode(Failed, message.failed, message.failed.error)
        case "vote":
            return decode(Vote, message.vote)
        case "report":
            return report(message.report)
        case "degraded":
            return decode(Degraded, message.degraded)
        case "done":
            return done(message.done)
        case _:
            return None


def passage(message: common_pb2.Passage) -> Passage:
    """Return a passage."""
    return Passage(id=message.id, text=message.text, title=message.title, attributes=dict(message.attributes))


def rows(rankings: common_pb2.Rankings) -> tuple[tuple[int, ...], ...]:
    """Return the rankings one by one: places in the list of candidates, best first."""
    indices, depth = tuple(rankings.indices), rankings.depth
    return tuple(indices[start : start + depth] for start in range(0, len(indices), depth or 1))


def retrieval(message: retriever_pb2.RetrieveResponse) -> Retrieval:
    """Return what a retriever found; without any position one empty ranking."""
    return decode(
        Retrieval,
        message,
        passages=tuple(map(passage, message.passages)),
        rankings=rows(message.rankings) if message.rankings.depth else ((),),
        log_probabilities=tuple(message.rankings.log_probabilities),
    )


def embeddings(message: retriever_pb2.EmbedResponse) -> Embeddings:
    """Return the vectors of texts."""
    return decode(
        Embeddings,
        message,
        vectors=tuple(tuple(one.values) for one in message.embeddings),
        tokens=tuple(one.tokens for one in message.embeddings),
    )


def report_request(
    run_id: str | None, configuration: Configuration | None, window: Window
) -> evaluator_pb2.GetReportRequest:
    """Return the request for a report.

    Raises:
        InvalidField: not exactly one of run and configuration is given, or the window is unknown.
    """
    if window not in WINDOWS:
        raise InvalidField("window", f"must be one of {', '.join(WINDOWS)}")
    if (run_id is None) == (configuration is None):
        raise InvalidField("run_id", "must be given, or else a configuration")
    values = {"run_id": run_id, "configuration": configuration, "window": window}
    return encode(evaluator_pb2.GetReportRequest, values)


def run_report(message: evaluator_pb2.RunReport) -> RunReport:
    """Return the report of a run or of a configuration."""
    return decode(
        RunReport,
        message,
        stages={_stage(one.stage): decode(Estimate, one.duration_ms) for one in message.stages},
        degradations=tuple(decode(DegradationCount, one) for one in message.degradations),
    )


def observed(message: evaluator_pb2.Observation) -> ObservedAsk:
    """Read an observation."""
    useful = tuple(message.labels.useful_passage_ids) if message.labels.has_useful else None
    return decode(
        ObservedAsk,
        message,
        shown=rows(message.shown),
        useful=useful,
        references=tuple(message.labels.references),
    )


def health(message: health_pb2.HealthCheckResponse) -> Health:
    """Return the health of a service that answered."""
    serving = message.status == health_pb2.HealthCheckResponse.SERVING
    return Health.SERVING if serving else Health.NOT_SERVING


def error(exc: grpc.RpcError, *, service: str, address: str) -> MeshError:
    """Return what a failed call means to its caller.

    Args:
        exc: the failed call.
        service: short name of the service that was called.
        address: where it was looked for.
    """
    mesh_error = from_rpc_error(exc)
    if mesh_error.code is grpc.StatusCode.UNAVAILABLE and mesh_error.reason == "UNAVAILABLE":
        # gRPC's own: nobody answered, or the connection broke. Its text is about sockets.
        for part, why in _FAULTS.items():
            if part in mesh_error.message:
                return Unavailable("UNREACHABLE", why.format(f"the {service} at {address}"))
        return Unavailable("UNREACHABLE", f"no {service} answers at {address}")
    if mesh_error.code is grpc.StatusCode.DEADLINE_EXCEEDED and mesh_error.reason == "DEADLINE_EXCEEDED":
        return DeadlineExceeded(f"the {service} at {address} did not finish in time")
    return mesh_error


def report(message: orchestrator_pb2.ExposureReport) -> Report:
    """Return the exposure of an ask."""
    run = run_report(message.run) if message.HasField("run") else None
    return decode(Report, message, run=run)


def done(message: orchestrator_pb2.Done) -> Done:
    """Return the end of a call; times in milliseconds by stage, in the order the stages ran."""
    return decode(Done, message, stage_ms={_stage(one.stage): one.duration_ms for one in message.stage_times})


def _stage(number: int) -> str:
    return word(_STAGES, number)
