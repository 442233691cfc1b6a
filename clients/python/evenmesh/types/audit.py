"""An audit of one labelled query: its request, and its typed events."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from evenmesh.codec.mapping import encode
from evenmesh.codec.values import whole
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb2
from evenmesh.types.events import Degraded, Done, Failed
from evenmesh.types.reports import ExposureShare
from evenmesh.types.request import AskOptions, ask_request

Policy = Literal["sampled", "deterministic", "oracle"]
"""What made a ranking: draws at a fairness dial, no draw at all, or an oracle that knows what is useful."""


@dataclass(frozen=True, slots=True)
class AuditSettled:
    """The pool of the audit is known.

    Attributes:
        passage_ids: the pool, best first.
        providers: of each; empty where unknown.
        retriever: the retriever that answered; the expression where one was run.
        index_version: version of the index.
        reranker: the reranker that ordered them; ``none`` if none did.
        reranker_version: version of its model.
        num_contexts: distinct contexts among all rankings.
    """

    passage_ids: tuple[str, ...]
    providers: tuple[str, ...]
    retriever: str
    index_version: str
    reranker: str
    reranker_version: str
    num_contexts: int


@dataclass(frozen=True, slots=True)
class AuditSample:
    """The outcome of one ranking.

    Attributes:
        policy: policy that made it.
        alpha: fairness dial; None unless it was sampled.
        sample: which of its kind, from 0.
        passage_ids: the context, best first.
        answer: None if there is no answer.
        utility: 0 to 1; None without references or answer.
        log_probability: of the sampled ranking, in nats; None where it was not sampled.
        failure: why there is no answer; None if there is one, or none was requested.
        model: name of the model that answered; empty without an answer.
        model_version: its version.
    """

    policy: Policy
    alpha: float | None
    sample: int
    passage_ids: tuple[str, ...]
    answer: str | None
    utility: float | None
    log_probability: float | None
    failure: Failed | None
    model: str
    model_version: str


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The measures of the rankings of one policy at one fairness dial; None where undefined.

    Attributes:
        policy: policy that made them.
        alpha: fairness dial; None unless they were sampled.
        num_rankings: rankings drawn and measured.
        num_answered: rankings that were answered.
        stopped_early: whether sampling stopped because the interval was narrow enough.
        exposure: expected exposure per passage of the pool, 0 to 1.
        ee_d: disparity EE-D.
        ee_r: relevance EE-R; None where nothing is useful.
        ee_d_norm: EE-D over its bound, 0 to 1.
        ee_r_norm: EE-R over its bound.
        exact_ee_d_norm: the same from exact inclusion probabilities, free of sampling noise; None where they
            are not known.
        exact_ee_r_norm: likewise.
        exact_exposure: exact expected exposure per passage of the pool, 0 to 1; empty where it is not known.
        expected_utility: 0 to 1; None without references or answers.
        expected_utility_low: lower end of its interval, which holds however often it was looked at.
        expected_utility_high: upper end.
        u_max: largest utility of any ranking of the audit.
        normalized_expected_utility: expected utility over ``u_max``.
        providers: exposure per provider, most exposed first.
    """

    policy: Policy
    alpha: float | None
    num_rankings: int
    num_answered: int
    stopped_early: bool
    exposure: tuple[float, ...]
    ee_d: float
    ee_r: float | None
    ee_d_norm: float
    ee_r_norm: float | None
    exact_ee_d_norm: float | None
    exact_ee_r_norm: float | None
    exact_exposure: tuple[float, ...]
    expected_utility: float | None
    expected_utility_low: float | None
    expected_utility_high: float | None
    u_max: float | None
    normalized_expected_utility: float | None
    providers: tuple[ExposureShare, ...]


AuditEvent = AuditSettled | AuditSample | AuditReport | Degraded | Done
"""One event of an audit; match on its type."""


def audit_request(
    question: str,
    options: AskOptions,
    *,
    alphas: Sequence[float] = (),
    oracle: int | None = None,
    until_width: float | None = None,
    level: float | None = None,
) -> orchestrator_pb2.AuditRequest:
    """Return the request that audits ``question``; the mesh chooses options that are left out.

    Raises:
        InvalidField: a value that does not fit its field.
        TypeError: an option that does not exist.
    """
    values = {
        "ask": ask_request(question, options),
        "alphas": alphas,
        "num_oracle": oracle,
        "until_width": until_width,
        "level": level,
    }
    request = encode(orchestrator_pb2.AuditRequest, values)
    # An ask without alpha and samples is not sampled and has no use for a seed; an audit always has.
    request.ask.sampling.seed = whole("sampling.seed", options.get("seed") or 0, bits=64)
    return request
