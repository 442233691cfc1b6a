"""Audits on the wire: the bounds of an AuditRequest, each enforced with the field named, and the events."""

from __future__ import annotations

from typing import Final, cast

from meshkit import checks
from meshkit.errors import InvalidField, MeshError, item_error
from orchestrator import codec
from orchestrator.domain import (
    Audit,
    AuditEvent,
    Degraded,
    Finished,
    LevelReported,
    Policy,
    Sampled,
    Sampling,
    Settled,
)
from orchestrator.expressions.sources import Catalogue
from ragmesh.orchestrator.v1 import orchestrator_service_pb2 as pb

DEFAULT_ALPHAS: Final = (1.0, 2.0, 4.0, 8.0)
"""Fairness dials unless told otherwise: the paper's (fair-rag section 4)."""
DEFAULT_RANKINGS: Final = 100
"""Rankings of each unless told otherwise: the paper's."""
DEFAULT_LEVEL: Final = 0.95
"""Probability with which an interval covers unless told otherwise."""
MAX_ALPHAS: Final = 16
"""Most fairness dials."""

_POLICIES: Final = {
    Policy.SAMPLED: pb.AUDIT_POLICY_SAMPLED,
    Policy.DETERMINISTIC: pb.AUDIT_POLICY_DETERMINISTIC,
    Policy.ORACLE: pb.AUDIT_POLICY_ORACLE,
}


def audit(
    request: pb.AuditRequest, *, default_collection: str, default_reranker: str, sources: Catalogue
) -> Audit:
    """Reads an audit: checks every bound and fills in every default. Arguments as :func:`codec.ask`.

    Raises:
        InvalidField: a bound of the contract is broken, or what is asked does not go together.
    """
    if request.ask.sampling.HasField("alpha"):
        raise InvalidField("ask.sampling.alpha", "must not be given: `alphas` says it")
    if request.ask.want_report:
        raise InvalidField("ask.want_report", "cannot be asked of an audit, which reports by itself")
    if not request.ask.labels.has_useful:
        raise InvalidField("ask.labels.has_useful", "must be true: an audit is of a labelled query")
    asked = pb.AskRequest()
    asked.CopyFrom(request.ask)
    asked.sampling.SetInParent()
    if not asked.sampling.HasField("num_rankings"):
        asked.sampling.num_rankings = DEFAULT_RANKINGS
    try:
        ask = codec.ask(
            asked,
            default_collection=default_collection,
            default_reranker=default_reranker,
            sources=sources,
        )
    except MeshError as error:
        raise of_ask(error) from None
    if not ask.augmentation.reads_passages:
        raise InvalidField("ask.augmentation", f"must read passages, got {ask.augmentation.value}")
    sampling = cast(Sampling, ask.sampling)  # the request has one by now
    num_oracle = sampling.num_rankings
    if request.HasField("num_oracle"):
        num_oracle = checks.between("num_oracle", request.num_oracle, 0, 1000)
    until_width = None
    if request.HasField("until_width"):
        until_width = _inside("until_width", request.until_width)
        if not ask.labels.references:
            raise InvalidField("until_width", "needs ask.labels.references: it is a width of the utility")
    level = _inside("level", request.level) if request.HasField("level") else DEFAULT_LEVEL
    return Audit(ask, sampling, _alphas(request), num_oracle if ask.num_answers else 0, until_width, level)


def of_ask(error: MeshError) -> MeshError:
    """The error with the name its field has in an AuditRequest."""
    if error.field is None:
        return error
    words = error.message.removeprefix(f"{error.field}: ")
    return MeshError(
        error.code, error.reason, words, field=f"ask.{error.field}", retry_after_s=error.retry_after_s
    )


def event(value: AuditEvent) -> pb.AuditResponse:
    """Writes one event of an audit."""
    match value:
        case Sampled():
            return _sample(value)
        case LevelReported():
            return _report(value)
        case Settled(pool, reranker, model_version, num_contexts):
            settled = pb.AuditSettled(
                passage_ids=[passage.id for passage in pool.passages],
                providers=[passage.attributes.get("provider", "") for passage in pool.passages],
                retriever=pool.retriever,
                index_version=pool.index_version,
                reranker=reranker,
                reranker_version=model_version,
                num_contexts=num_contexts,
            )
            return pb.AuditResponse(settled=settled)
        case Degraded():
            return pb.AuditResponse(degraded=codec.degradation(value))
        case Finished():
            return pb.AuditResponse(done=codec.done(value))


def _sample(value: Sampled) -> pb.AuditResponse:
    answer = value.answer
    sample = pb.AuditSample(
        alpha=value.alpha or 0.0,
        sample=value.sample,
        passage_ids=value.passage_ids,
        utility=value.utility,
        policy=_POLICIES[value.policy],
        log_probability=value.log_probability,
    )
    if answer is not None:
        sample.answered = True
        sample.answer, sample.model, sample.model_version = answer.text, answer.model, answer.model_version
    if value.error is not None:
        sample.error.CopyFrom(item_error(value.error))
    return pb.AuditResponse(sample=sample)


def _report(value: LevelReported) -> pb.AuditResponse:
    report = codec.exposure_report(value.exposure, None)
    low, high = value.expected_utility_interval or (None, None)
    report.audit.CopyFrom(
        pb.AuditLevel(
            policy=_POLICIES[value.policy],
            alpha=value.alpha,
            num_rankings=value.num_rankings,
            num_answered=value.num_answered,
            u_max=value.u_max,
            normalized_expected_utility=value.normalized_expected_utility,
            expected_utility_low=low,
            expected_utility_high=high,
            stopped_early=value.stopped_early,
            exact_ee_d_norm=value.exact_ee_d_norm,
            exact_ee_r_norm=value.exact_ee_r_norm,
        )
    )
    return pb.AuditResponse(report=report)


def _alphas(request: pb.AuditRequest) -> tuple[float, ...]:
    if len(request.alphas) > MAX_ALPHAS:
        raise InvalidField("alphas", f"must be at most {MAX_ALPHAS}, got {len(request.alphas)}")
    alphas = tuple(
        checks.between(f"alphas[{place}]", alpha, 0, 100) for place, alpha in enumerate(request.alphas)
    )
    for place, alpha in enumerate(alphas):
        if alpha in alphas[:place]:
            raise InvalidField(f"alphas[{place}]", f"is there already: {alpha:g}")
    return alphas or DEFAULT_ALPHAS


def _inside(field: str, value: float) -> float:
    if not 0 < value < 1:
        raise InvalidField(field, f"must be in (0, 1), got {value:g}")
    return value
