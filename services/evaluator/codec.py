"""Protos to domain and back, and the bounds of evaluator.proto, each enforced with the field named."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import numpy as np

from meshkit import checks
from meshkit.errors import InvalidField
from ragcore.arrays import FloatArray, IntArray
from ragcore.ensemble import Pooling, Vote
from ragcore.exposure import BrowsingModel, ExposureMetrics, position_weights, rbp, reciprocal_rank, top_k
from ragcore.group_fairness import Attribute, ConversationFairness, DivergenceName, Nugget
from ragmesh.common.v1 import common_pb2
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from services.evaluator.domain import (
    Estimate,
    Labels,
    Observation,
    RunReport,
    RunSummary,
    SampledAnswer,
    Stage,
    UtilityMetric,
)
from services.evaluator.evaluation import (
    SIMILARITIES,
    ConversationQuestion,
    ExposureQuestion,
    UtilityMeasured,
    UtilityQuestion,
    VoteQuestion,
)

MAX_ID_BYTES: Final = 128
"""Largest id of an observation, a run or a query. Bytes."""
MAX_NAME_BYTES: Final = 256
"""Largest name or version of a model, an index or a reason. Bytes."""
MAX_CANDIDATES: Final = 1000
"""Most candidates of an observation."""
MAX_QUESTION_BYTES: Final = 8192
"""Largest question. Bytes."""
DEFAULT_PAGE: Final = 100
"""Runs per page unless told otherwise."""

MAX_VOTES: Final = 1000
"""Most answers of one vote."""

_SUM_SLACK: Final = 1e-6
_LARGEST_SEED: Final = 2**63 - 1
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_METRICS: Final[dict[int, UtilityMetric]] = {
    pb.UTILITY_METRIC_UNSPECIFIED: UtilityMetric.TOKEN_F1,
    pb.UTILITY_METRIC_EXACT_MATCH: UtilityMetric.EXACT_MATCH,
    pb.UTILITY_METRIC_TOKEN_F1: UtilityMetric.TOKEN_F1,
    pb.UTILITY_METRIC_ROUGE1: UtilityMetric.ROUGE1,
    pb.UTILITY_METRIC_ROUGE2: UtilityMetric.ROUGE2,
    pb.UTILITY_METRIC_ROUGE_L: UtilityMetric.ROUGE_L,
    pb.UTILITY_METRIC_ACCURACY: UtilityMetric.ACCURACY,
}
_STAGES: Final[dict[int, Stage]] = {
    common_pb2.STAGE_RETRIEVE: Stage.RETRIEVE,
    common_pb2.STAGE_RERANK: Stage.RERANK,
    common_pb2.STAGE_GENERATE: Stage.GENERATE,
    common_pb2.STAGE_OBSERVE: Stage.OBSERVE,
}
_POOLINGS: Final[dict[int, Pooling]] = {
    pb.VoteRequest.POOLING_UNSPECIFIED: "mean",
    pb.VoteRequest.POOLING_MEAN: "mean",
    pb.VoteRequest.POOLING_MAX: "max",
    pb.VoteRequest.POOLING_MAJORITY: "majority",
    pb.VoteRequest.POOLING_PLURALITY: "plurality",
}
_DIVERGENCES: Final[dict[int, DivergenceName]] = {
    pb.AttributeTarget.DIVERGENCE_UNSPECIFIED: "rnod",
    pb.AttributeTarget.DIVERGENCE_RNOD: "rnod",
    pb.AttributeTarget.DIVERGENCE_NMD: "nmd",
    pb.AttributeTarget.DIVERGENCE_JSD: "jsd",
}
_STAGES_BACK: Final = {
    Stage.RETRIEVE: common_pb2.STAGE_RETRIEVE,
    Stage.RERANK: common_pb2.STAGE_RERANK,
    Stage.GENERATE: common_pb2.STAGE_GENERATE,
    Stage.OBSERVE: common_pb2.STAGE_OBSERVE,
}


def identifier(field: str, value: str) -> str:
    """Checks for an id of 1 to 128 bytes without control characters, and returns it."""
    return _limited(field, value, MAX_ID_BYTES, min_bytes=1)


def observation(message: pb.Observation, *, now_us: int) -> Observation:
    """Reads an observation; field paths in errors are within it. ``now_us`` stands in for an unset time.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    identifier("id", message.id)
    identifier("run_id", message.run_id)
    identifier("query_id", message.query_id)
    if len(message.question.encode()) > MAX_QUESTION_BYTES:
        raise InvalidField("question", f"must be at most {MAX_QUESTION_BYTES} bytes")
    for name in ("collection", "index_version", "retriever", "reranker", "reranker_version", "generator",
                 "generator_version"):  # fmt: skip
        _limited(name, getattr(message, name), MAX_NAME_BYTES)
    alpha = checks.between("alpha", message.alpha, 0, 100) if message.HasField("alpha") else None
    if message.HasField("seed") and message.seed > _LARGEST_SEED:
        raise InvalidField("seed", f"must be in [0, 2^63 - 1], got {message.seed}")
    passage_ids, providers = _candidates(message.candidates)
    shown = rankings("shown", message.shown, len(passage_ids))
    return Observation(
        id=message.id,
        run_id=message.run_id,
        query_id=message.query_id,
        observed_at_us=_microseconds(message, now_us),
        passage_ids=passage_ids,
        providers=providers,
        shown=shown,
        answers=_answers(message.answers, len(shown)),
        labels=_labels(message.labels),
        collection=message.collection,
        retriever=message.retriever,
        reranker=message.reranker,
        generator=message.generator,
        alpha=alpha,
        stage_ms=_stage_times(message.stage_times),
        degradations=_degradations(message.degradations),
        payload=message.SerializeToString(),
    )


def rankings(field: str, message: common_pb2.Rankings, n_items: int) -> IntArray:
    """Reads packed rankings of ``n_items`` items as [N, depth] indices; depth 0 is one ranking of nothing.

    Raises:
        InvalidField: ragged, an index that is no item, or an item twice in one ranking.
    """
    depth = checks.between(f"{field}.depth", message.depth, 0, 1000)
    size = len(message.indices)
    log_probabilities = message.log_probabilities
    if not depth:
        if size:
            raise InvalidField(
                f"{field}.depth", f"must be at least 1 where there are indices, {size} are given"
            )
        shown = np.empty((1, 0), dtype=np.int64)
    else:
        if size % depth or not size:
            raise InvalidField(
                f"{field}.indices", f"must be whole rankings of {depth}, {size} indices are given"
            )
        shown = np.fromiter(message.indices, dtype=np.int64, count=size).reshape(-1, depth)
        if (largest := int(shown.max())) >= n_items:
            at = int(np.argmax(shown.ravel() == largest))
            raise InvalidField(f"{field}.indices[{at}]", f"must be below {n_items}, got {largest}")
        ordered = np.sort(shown, axis=1)
        twice = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
        if twice.any():
            raise InvalidField(f"{field}.indices", f"ranking {int(np.argmax(twice))} has an item twice")
    if log_probabilities:
        if depth and len(log_probabilities) != len(shown):
            raise InvalidField(
                f"{field}.log_probabilities", f"must be one per ranking, {len(log_probabilities)} are given"
            )
        for index, value in enumerate(log_probabilities):
            _log_probability(f"{field}.log_probabilities[{index}]", value)
    return shown


def exposure_question(request: pb.EvaluateExposureRequest) -> ExposureQuestion:
    """Reads rankings or exposure, and what was useful.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    n = len(request.usefulness)
    if not n:
        raise InvalidField("usefulness", "must be one grade per item, none is given")
    usefulness = _numbers("usefulness", request.usefulness, 0, 1000)
    given, expected = request.HasField("rankings"), len(request.exposure)
    if given == bool(expected):
        raise InvalidField("rankings", "must be given, or exposure in its place" + (", not both" * given))
    if expected and expected != n:
        raise InvalidField("exposure", f"must be one per item, {n}, as usefulness has; {expected} are given")
    if given and not request.rankings.depth:
        raise InvalidField("rankings.depth", "must be in [1, 1000], got 0")
    return ExposureQuestion(
        rankings=rankings("rankings", request.rankings, n) if given else None,
        exposure=_numbers("exposure", request.exposure, 0, 1) if expected else None,
        usefulness=usefulness,
        k=checks.between("k", request.k, 1, 1000),
        browsing=_browsing(request.browsing) if request.HasField("browsing") else None,
    )


def exposure_response(metrics: ExposureMetrics) -> pb.EvaluateExposureResponse:
    """Writes exposure metrics; what is undefined without a useful item stays unset."""
    useful = not math.isnan(metrics.ee_r)
    return pb.EvaluateExposureResponse(
        exposure=metrics.exposure,
        target=metrics.target,
        ee_d=metrics.ee_d,
        ee_d_norm=metrics.ee_d_norm,
        ee_r=metrics.ee_r if useful else None,
        ee_l=metrics.ee_l if useful else None,
        ee_r_norm=None if math.isnan(metrics.ee_r_norm) else metrics.ee_r_norm,
    )


def utility_question(request: pb.EvaluateUtilityRequest) -> UtilityQuestion:
    """Reads answers and references.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    if not request.answers:
        raise InvalidField("answers", "must be at least one")
    if not request.references:
        raise InvalidField("references", "must be at least one")
    u_max = request.u_max if request.HasField("u_max") else None
    if u_max is not None and not 0 < u_max <= 1:
        raise InvalidField("u_max", f"must be in (0, 1], got {u_max}")
    return UtilityQuestion(
        answers=list(request.answers),
        references=list(request.references),
        metric=metric("metric", request.metric),
        weights=_weights("weights", request.weights, len(request.answers), "answers"),
        u_max=u_max,
    )


def utility_response(measured: UtilityMeasured) -> pb.EvaluateUtilityResponse:
    """Writes utilities."""
    return pb.EvaluateUtilityResponse(
        utilities=measured.utilities,
        expected_utility=measured.expected,
        normalized_expected_utility=measured.normalized,
    )


def vote_question(request: pb.VoteRequest) -> VoteQuestion:
    """Reads an ensemble's answers and how they vote.

    Raises:
        InvalidField: a bound of the contract is broken, or a similarity that this server does not have.
    """
    if not 2 <= len(request.answers) <= MAX_VOTES:
        raise InvalidField("answers", f"must be 2 to {MAX_VOTES}, {len(request.answers)} are given")
    if len(request.question.encode()) > MAX_QUESTION_BYTES:
        raise InvalidField("question", f"must be at most {MAX_QUESTION_BYTES} bytes")
    similarities = list(request.similarities) or [next(iter(SIMILARITIES))]
    for index, name in enumerate(similarities):
        if name not in SIMILARITIES:
            raise InvalidField(
                f"similarities[{index}]", f"must be one of {', '.join(SIMILARITIES)}, got {name[:80]!r}"
            )
    if request.pooling not in _POOLINGS:
        names = _names(pb.VoteRequest.Pooling.keys())
        raise InvalidField("pooling", f"must be one of {names}, got {request.pooling}")
    threshold = request.threshold if request.HasField("threshold") else 0.8
    retriever_filter = request.retriever_filter if request.HasField("retriever_filter") else 0.1
    votes, measures = len(request.answers), len(similarities)
    return VoteQuestion(
        answers=list(request.answers),
        # Equal weights are ones: shares of a large ensemble would all be below the filter.
        retriever_weights=_weights("retriever_weights", request.retriever_weights, votes, "answers")
        or [1.0] * votes,
        similarities=similarities,
        similarity_weights=_weights(
            "similarity_weights", request.similarity_weights, measures, "similarities"
        )
        or [1.0] * measures,
        pooling=_POOLINGS[request.pooling],
        threshold=checks.between("threshold", threshold, 0, 1),
        retriever_filter=checks.between("retriever_filter", retriever_filter, 0, 1),
    )


def vote_response(vote: Vote) -> pb.VoteResponse:
    """Writes the outcome of a vote."""
    return pb.VoteResponse(winner=vote.winner, scores=vote.scores)


def conversation_question(request: pb.EvaluateConversationRequest) -> ConversationQuestion:
    """Reads a conversation and its targets.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    if not request.turns:
        raise InvalidField("turns", "must be at least one system turn")
    if not request.attributes:
        raise InvalidField("attributes", "must be at least one")
    patience = request.patience if request.HasField("patience") else 1250
    alpha = request.alpha if request.HasField("alpha") else 0.5
    return ConversationQuestion(
        turns=[
            [_nugget(f"turns[{t}].nuggets[{i}]", nugget) for i, nugget in enumerate(turn.nuggets)]
            for t, turn in enumerate(request.turns)
        ],
        attributes={
            name: _attribute(f"attributes[{name!r}]", target) for name, target in request.attributes.items()
        },
        patience=checks.between("patience", patience, 1, 1_000_000),
        alpha=checks.between("alpha", alpha, 0, 1),
    )


def conversation_response(fairness: ConversationFairness) -> pb.EvaluateConversationResponse:
    """Writes relevance and group fairness."""
    return pb.EvaluateConversationResponse(
        relevance=fairness.relevance,
        group_fairness=fairness.group_fairness,
        combined=fairness.combined,
    )


def metric(field: str, value: int) -> UtilityMetric:
    """Reads a metric; unset is token F1.

    Raises:
        InvalidField: a number that is no metric.
    """
    if value not in _METRICS:
        raise InvalidField(field, f"must be one of {_names(pb.UtilityMetric.keys())}, got {value}")
    return _METRICS[value]


def report(value: RunReport) -> pb.RunReport:
    """Writes a run's report."""
    message = pb.RunReport(
        run_id=value.run_id,
        num_observations=value.num_observations,
        num_rankings=value.num_rankings,
        num_unanswered=value.num_unanswered,
        stages=[
            pb.StageSummary(stage=_STAGES_BACK[stage], duration_ms=_estimate(one))
            for stage, one in value.stages.items()
        ],
        degradations=[
            pb.DegradationCount(stage=_STAGES_BACK[stage], reason=reason, count=count)
            for stage, reason, count in value.degradations
        ],
        providers=[
            pb.ExposureShare(name=one.name, exposure=one.exposure, share=one.share, target=one.target)
            for one in value.providers
        ],
    )
    for quantity, one in value.estimates.items():
        getattr(message, quantity).CopyFrom(_estimate(one))
    message.started_at.FromMicroseconds(value.started_at_us)
    message.updated_at.FromMicroseconds(value.updated_at_us)
    return message


def runs(page: Iterable[RunSummary], before: int | None) -> pb.ListRunsResponse:
    """Writes a page of runs; ``before`` is where the next one begins, None at the end."""
    response = pb.ListRunsResponse(next_page_token="" if before is None else _token(before))
    for one in page:
        run = response.runs.add(run_id=one.run_id, num_observations=one.num_observations)
        run.started_at.FromMicroseconds(one.started_at_us)
        run.updated_at.FromMicroseconds(one.updated_at_us)
    return response


def page(request: pb.ListRunsRequest) -> tuple[int | None, int]:
    """Reads where a page begins (None: at the newest run) and how many runs it has.

    Raises:
        InvalidField: a size out of range, or a token that no page gave.
    """
    size = request.page_size if request.HasField("page_size") else DEFAULT_PAGE
    checks.between("page_size", size, 1, 1000)
    if not request.page_token:
        return None, size
    try:
        kind, _, sequence = base64.urlsafe_b64decode(request.page_token.encode()).decode().partition(":")
        if kind != "before" or not sequence.isascii() or not sequence.isdigit() or len(sequence) > 18:
            raise ValueError(kind)
    except (ValueError, binascii.Error):
        raise InvalidField("page_token", "must be the next_page_token of the page before, or empty") from None
    return int(sequence), size


def _token(before: int) -> str:
    return base64.urlsafe_b64encode(f"before:{before}".encode()).decode()


def _estimate(value: Estimate) -> common_pb2.Estimate:
    return common_pb2.Estimate(
        mean=value.mean, low=value.low, high=value.high, count=value.count, undefined=value.undefined
    )


def _candidates(candidates: Collection[pb.Candidate]) -> tuple[list[str], list[str]]:
    if len(candidates) > MAX_CANDIDATES:
        raise InvalidField("candidates", f"must be at most {MAX_CANDIDATES}, has {len(candidates)}")
    passage_ids = [candidate.passage_id for candidate in candidates]
    providers = [candidate.provider for candidate in candidates]
    for index, value in enumerate(passage_ids):
        if not value or len(value) > MAX_NAME_BYTES // 4:  # may be too long: count bytes only then
            _limited(f"candidates[{index}].passage_id", value, checks.MAX_ID_BYTES, min_bytes=1)
    for index, value in enumerate(providers):
        if len(value) > checks.MAX_ATTRIBUTE_BYTES // 4:
            _limited(f"candidates[{index}].provider", value, checks.MAX_ATTRIBUTE_BYTES)
    if any(map(_CONTROL.search, passage_ids)) or any("\0" in provider for provider in set(providers)):
        at = next(
            i for i in range(len(passage_ids)) if _CONTROL.search(passage_ids[i]) or "\0" in providers[i]
        )
        raise InvalidField(f"candidates[{at}]", "must not hold control characters")
    if len(set(passage_ids)) != len(passage_ids):
        checks.unique("candidates", passage_ids)
    return passage_ids, providers


def _answers(answers: Sequence[pb.SampledAnswer], num_rankings: int) -> list[SampledAnswer]:
    taken: set[int] = set()
    read = []
    for index, answer in enumerate(answers):
        for place, sample in enumerate(answer.samples):
            field = f"answers[{index}].samples[{place}]"
            if sample >= num_rankings:
                raise InvalidField(
                    field, f"must be below the number of rankings, {num_rankings}, got {sample}"
                )
            if sample in taken:
                raise InvalidField(field, f"sample {sample} has an answer already")
            taken.add(sample)
        if not answer.samples:
            raise InvalidField(f"answers[{index}].samples", "must name the rankings it was written from")
        if answer.HasField("log_probability"):
            _log_probability(f"answers[{index}].log_probability", answer.log_probability)
        read.append(SampledAnswer(answer.text, tuple(answer.samples)))
    return read


def _labels(labels: pb.Labels) -> Labels:
    for index, one in enumerate(labels.useful_passage_ids):
        _limited(f"labels.useful_passage_ids[{index}]", one, checks.MAX_ID_BYTES, min_bytes=1)
    if labels.useful_passage_ids and not labels.has_useful:
        raise InvalidField("labels.has_useful", "must be true where useful passages are named")
    return Labels(
        useful=frozenset(labels.useful_passage_ids) if labels.has_useful else None,
        references=tuple(labels.references),
        metric=metric("labels.metric", labels.metric),
    )


def _browsing(model: pb.BrowsingModel) -> BrowsingModel:
    kind = model.WhichOneof("model")
    if kind == "top_k":
        return top_k(checks.between("browsing.top_k", model.top_k, 1, 1000))
    if kind == "rbp_patience":
        if not 0 <= model.rbp_patience < 1:
            raise InvalidField("browsing.rbp_patience", f"must be in [0, 1), got {model.rbp_patience}")
        return rbp(model.rbp_patience)
    if kind == "reciprocal_rank":
        if not model.reciprocal_rank:
            raise InvalidField("browsing.reciprocal_rank", "must be true where it is chosen")
        return reciprocal_rank
    if kind == "position_weights":
        field = "browsing.position_weights.weights"
        if not model.position_weights.weights:
            raise InvalidField(field, "must be at least one")
        return position_weights(_numbers(field, model.position_weights.weights, 0, 1))
    raise InvalidField(
        "browsing.model", "must be one of top_k, rbp_patience, reciprocal_rank, position_weights"
    )


def _nugget(field: str, message: pb.Nugget) -> Nugget:
    return Nugget(
        word_count=checks.between(f"{field}.word_count", message.word_count, 1, 2**31 - 1),
        gain=checks.between(f"{field}.gain", message.gain, 0, 1),
        membership={
            name: _shares(f"{field}.membership[{name!r}]", shares)
            for name, shares in message.membership.items()
        },
    )


def _attribute(field: str, message: pb.AttributeTarget) -> Attribute:
    if message.divergence not in _DIVERGENCES:
        names = _names(pb.AttributeTarget.Divergence.keys())
        raise InvalidField(f"{field}.divergence", f"must be one of {names}, got {message.divergence}")
    return Attribute(_shares(f"{field}.gold", message.gold), _DIVERGENCES[message.divergence])


def _shares(field: str, message: pb.Distribution) -> list[float]:
    _numbers(field, message.shares, 0, 1)
    if abs(sum(message.shares) - 1) > _SUM_SLACK:
        raise InvalidField(field, f"must sum to 1, sums to {sum(message.shares):g}")
    return list(message.shares)


def _weights(field: str, values: Sequence[float], expected: int, of: str) -> list[float] | None:
    if not values:
        return None
    if len(values) != expected:
        raise InvalidField(
            field, f"must be empty or one per entry of {of}, {expected}; {len(values)} are given"
        )
    _numbers(field, values, 0, 1)
    if not sum(values):
        raise InvalidField(field, "must not all be 0")
    return list(values)


def _numbers(field: str, values: Sequence[float], low: float, high: float) -> FloatArray:
    read = np.fromiter(values, dtype=np.float64, count=len(values))
    good = (read >= low) & (read <= high)  # false for NaN
    if not good.all():
        at = int(np.argmin(good))
        raise InvalidField(f"{field}[{at}]", f"must be in [{low:g}, {high:g}], got {values[at]}")
    return read


def _stage_times(times: Iterable[common_pb2.StageTime]) -> dict[Stage, float]:
    read: dict[Stage, float] = {}
    for index, one in enumerate(times):
        stage = _stage(f"stage_times[{index}].stage", one.stage)
        if stage in read:
            raise InvalidField(f"stage_times[{index}].stage", f"{stage} has a time already")
        field = f"stage_times[{index}].duration_ms"
        read[stage] = checks.between(field, checks.finite(field, one.duration_ms), 0, float("inf"))
    return read


def _degradations(degradations: Iterable[common_pb2.Degradation]) -> list[tuple[Stage, str]]:
    read = []
    for index, one in enumerate(degradations):
        field = f"degradations[{index}]"
        if one.action not in common_pb2.Degradation.Action.values():
            raise InvalidField(f"{field}.action", f"must be one of the actions, got {one.action}")
        reason = _limited(f"{field}.reason", one.reason, MAX_ID_BYTES, min_bytes=1)
        read.append((_stage(f"{field}.stage", one.stage), reason))
    return read


def _stage(field: str, value: int) -> Stage:
    if value not in _STAGES:
        raise InvalidField(field, f"must be one of {_names(common_pb2.Stage.keys()[1:])}, got {value}")
    return _STAGES[value]


def _microseconds(message: pb.Observation, now_us: int) -> int:
    if not message.HasField("observed_at"):
        return now_us
    seconds, nanos = message.observed_at.seconds, message.observed_at.nanos
    if not -62_135_596_800 <= seconds <= 253_402_300_799 or not 0 <= nanos < 10**9:
        raise InvalidField("observed_at", "must be a time from year 1 to 9999")
    return seconds * 10**6 + nanos // 1000


def _log_probability(field: str, value: float) -> float:
    return checks.between(field, checks.finite(field, value), float("-inf"), 0)


def _limited(field: str, value: str, max_bytes: int, *, min_bytes: int = 0) -> str:
    size = len(value.encode())
    if not min_bytes <= size <= max_bytes:
        raise InvalidField(field, f"must be {min_bytes} to {max_bytes} bytes, has {size}")
    if _CONTROL.search(value):
        raise InvalidField(field, "must not hold control characters")
    return value


def _names(keys: Iterable[str]) -> str:
    return ", ".join(keys)
