"""Read the replies of an audit into the dataclasses of :mod:`evenmesh.types.audit`."""

from evenmesh.codec import messages as codec
from evenmesh.codec.mapping import decode
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb2
from evenmesh.types.audit import AuditEvent, AuditReport, AuditSample, AuditSettled
from evenmesh.types.events import Degraded, Failed


def event(message: orchestrator_pb2.AuditResponse) -> AuditEvent | None:
    """Return the event of a message; None for a kind that only a newer mesh sends."""
    match message.WhichOneof("event"):
        case "settled":
            return decode(AuditSettled, message.settled)
        case "sample":
            return _sample(message.sample)
        case "report":
            return decode(AuditReport, message.report, message.report.audit)
        case "degraded":
            return decode(Degraded, message.degraded)
        case "done":
            return codec.done(message.done)
        case _:
            return None


def _sample(message: orchestrator_pb2.AuditSample) -> AuditSample:
    failure = None
    if message.HasField("error"):
        failure = decode(Failed, message.error, samples=(message.sample,))
    of_no_dial = (orchestrator_pb2.AUDIT_POLICY_DETERMINISTIC, orchestrator_pb2.AUDIT_POLICY_ORACLE)
    return decode(
        AuditSample,
        message,
        alpha=None if message.policy in of_no_dial else message.alpha,
        answer=message.answer if message.answered else None,
        failure=failure,
    )
