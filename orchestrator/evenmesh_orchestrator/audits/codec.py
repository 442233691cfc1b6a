"""Audits as messages: the bounds of an AuditRequest, checked with the field named, and the events."""

from __future__ import annotations

from typing import Final

from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField, MeshError
from evenmesh_orchestrator import codec
from evenmesh_orchestrator.asks.request import Defaults, read_ask
from evenmesh_orchestrator.domain import Audit, AuditEvent, Degraded, Finished, word_of

DEFAULT_ALPHAS: Final = (1.0, 2.0, 4.0, 8.0)
"""Default fairness dials: the paper's (Kim and Diaz, 2025, section 4)."""
DEFAULT_RANKINGS: Final = 100
"""Default number of rankings per dial: the paper's."""
DEFAULT_LEVEL: Final = 0.95
"""Default confidence level of an interval."""
MAX_ALPHAS: Final = 16
"""Most fairness dials."""


def read_audit(request: pb.AuditRequest, defaults: Defaults) -> Audit:
    """Read an audit: check every bound and fill in every default.

    Raises:
        InvalidField: a bound of the contract is broken, or fields contradict each other.
    """
    for given, _ in request.ask.sampling.ListFields():
        if given.name not in ("num_rankings", "seed"):
            raise InvalidField(
                f"ask.sampling.{given.name}", "must not be given: `alphas` sets the fairness dials"
            )
    if request.ask.want_report:
        raise InvalidField("ask.want_report", "cannot be given: an audit always reports")
    if not request.ask.labels.has_useful:
        raise InvalidField("ask.labels.has_useful", "must be true: an audit needs a labelled query")
    asked = pb.AskRequest()
    asked.CopyFrom(request.ask)
    asked.sampling.SetInParent()
    if not asked.sampling.HasField("num_rankings"):
        asked.sampling.num_rankings = DEFAULT_RANKINGS
    if not asked.sampling.HasField("seed"):
        asked.sampling.seed = 0  # an audit is repeatable, also by who gives no seed
    try:
        ask = read_ask(asked, defaults)
    except MeshError as error:
        raise of_ask(error) from None
    if not ask.reads_passages or ask.sampling is None:
        word = word_of(generator_pb.Augmentation, ask.augmentation)
        raise InvalidField("ask.augmentation", f"must read passages, got {word}")
    num_oracle = ask.sampling.num_rankings
    if request.HasField("num_oracle"):
        num_oracle = checks.between("num_oracle", request.num_oracle, 0, 1000)
    until_width = None
    if request.HasField("until_width"):
        until_width = _inside("until_width", request.until_width)
        if not ask.labels.references:
            raise InvalidField("until_width", "needs ask.labels.references: it is a width of the utility")
    level = _inside("level", request.level) if request.HasField("level") else DEFAULT_LEVEL
    num_oracle = num_oracle if ask.num_answers else 0
    return Audit(ask, ask.sampling, _alphas(request), num_oracle, until_width, level)


def of_ask(error: MeshError) -> MeshError:
    """Return the error with the name that its field has in an AuditRequest."""
    if error.field is None:
        return error
    words = error.message.removeprefix(f"{error.field}: ")
    return MeshError(
        error.code, error.reason, words, field=f"ask.{error.field}", retry_after_s=error.retry_after_s
    )


def event(value: AuditEvent) -> pb.AuditResponse:
    """Return the message of one event of an audit."""
    match value:
        case pb.AuditSample():
            return pb.AuditResponse(sample=value)
        case pb.ExposureReport():
            return pb.AuditResponse(report=value)
        case pb.AuditSettled():
            return pb.AuditResponse(settled=value)
        case Degraded():
            return pb.AuditResponse(degraded=codec.degradation(value))
        case Finished():
            return pb.AuditResponse(done=codec.done(value))


def _alphas(request: pb.AuditRequest) -> tuple[float, ...]:
    if len(request.alphas) > MAX_ALPHAS:
        raise InvalidField("alphas", f"must be at most {MAX_ALPHAS}, got {len(request.alphas)}")
    alphas = tuple(
        checks.between(f"alphas[{place}]", alpha, 0, 100) for place, alpha in enumerate(request.alphas)
    )
    for place, alpha in enumerate(alphas):
        if alpha in alphas[:place]:
            raise InvalidField(f"alphas[{place}]", f"is a duplicate: {alpha:g}")
    return alphas or DEFAULT_ALPHAS


def _inside(field: str, value: float) -> float:
    if not 0 < value < 1:
        raise InvalidField(field, f"must be in (0, 1), got {value:g}")
    return value
