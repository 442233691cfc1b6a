"""Audits from the wire: proto messages in, :mod:`ragmesh.audit`'s dataclasses out."""

from typing import Final

from ragmesh import codec
from ragmesh.audit import AuditEvent, AuditReport, AuditSample, AuditSettled, Policy
from ragmesh.events import Failed
from ragmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb2

_POLICIES: Final[dict[int, Policy]] = {
    orchestrator_pb2.AUDIT_POLICY_DETERMINISTIC: "deterministic",
    orchestrator_pb2.AUDIT_POLICY_ORACLE: "oracle",
}


def event(message: orchestrator_pb2.AuditResponse) -> AuditEvent | None:
    """The event of a message; None if a newer mesh sent a kind this version does not know."""
    match message.WhichOneof("event"):
        case "settled":
            settled = message.settled
            return AuditSettled(
                tuple(settled.passage_ids),
                tuple(settled.providers),
                settled.retriever,
                settled.index_version,
                settled.reranker,
                settled.reranker_version,
                settled.num_contexts,
            )
        case "sample":
            return _sample(message.sample)
        case "report":
            return _report(message.report)
        case "degraded":
            return codec.degraded(message.degraded)
        case "done":
            return codec.done(message.done)
        case _:
            return None


def _sample(message: orchestrator_pb2.AuditSample) -> AuditSample:
    policy = _POLICIES.get(message.policy, "sampled")
    failure = None
    if message.HasField("error"):
        error = message.error
        failure = Failed((message.sample,), error.code, error.reason, error.message, error.field)
    return AuditSample(
        policy=policy,
        alpha=message.alpha if policy == "sampled" else None,
        sample=message.sample,
        passage_ids=tuple(message.passage_ids),
        answer=message.answer if message.answered else None,
        utility=message.utility if message.HasField("utility") else None,
        log_probability=message.log_probability if message.HasField("log_probability") else None,
        failure=failure,
        model=message.model,
        model_version=message.model_version,
    )


def _report(message: orchestrator_pb2.ExposureReport) -> AuditReport:
    exposed, level = codec.report(message), message.audit

    def known(name: str) -> float | None:
        return getattr(level, name) if level.HasField(name) else None  # type: ignore[arg-type]  # by name

    return AuditReport(
        policy=_POLICIES.get(level.policy, "sampled"),
        alpha=known("alpha"),
        num_rankings=level.num_rankings,
        num_answered=level.num_answered,
        stopped_early=level.stopped_early,
        exposure=exposed.exposure,
        ee_d=message.ee_d,
        ee_r=message.ee_r if message.HasField("ee_r") else None,
        ee_d_norm=exposed.ee_d_norm,
        ee_r_norm=exposed.ee_r_norm,
        exact_ee_d_norm=known("exact_ee_d_norm"),
        exact_ee_r_norm=known("exact_ee_r_norm"),
        expected_utility=exposed.expected_utility,
        expected_utility_low=known("expected_utility_low"),
        expected_utility_high=known("expected_utility_high"),
        u_max=known("u_max"),
        normalized_expected_utility=known("normalized_expected_utility"),
        providers=exposed.providers,
    )
