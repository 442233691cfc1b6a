"""Reading of observations from messages, with every bound checked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import numpy as np

from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire import checks
from evenmesh.wire.choices import Choices
from evenmesh.wire.errors import InvalidField
from evenmesh_core.arrays import FloatArray
from evenmesh_evaluator import fields
from evenmesh_evaluator.domain import (
    Configuration,
    Labels,
    Observation,
    ObservedConversation,
    SampledAnswer,
    Stage,
)
from evenmesh_evaluator.measures.conversations import read_conversation
from evenmesh_kit.rpc.policies import policy_in_words

MAX_CANDIDATES: Final = 1000
"""Most candidates of an observation."""
_MAX_VOTERS: Final = 1000
_MAX_DEGRADATIONS: Final = 1000
_ROUNDING: Final = 1e-6
_STAGES: Final = Choices(common_pb2.Stage.DESCRIPTOR, Stage)


def observation(message: pb.Observation, *, now_us: int) -> Observation:
    """Return an observation; field paths in errors are relative to it. ``now_us`` replaces an unset time.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    fields.identifier("id", message.id)
    fields.identifier("run_id", message.run_id)
    fields.identifier("query_id", message.query_id)
    fields.question("question", message.question)
    for name in ("collection", "index_version", "retriever", "reranker", "reranker_version", "generator",
                 "generator_version"):  # fmt: skip
        fields.limited(name, getattr(message, name), fields.MAX_NAME_BYTES)
    alpha = checks.between("alpha", message.alpha, 0, 100) if message.HasField("alpha") else None
    target = _target(message.policy) if message.HasField("policy") else ""
    fields.seed("seed", message.seed)
    passage_ids, providers, texts = _candidates(message.candidates)
    merit_shares = _merit_shares(message.candidates)
    shown = fields.rankings("shown", message.shown, len(passage_ids))
    if not message.shown.depth and len(message.ranking_retrievers) > 1:
        shown = np.empty((min(len(message.ranking_retrievers), _MAX_VOTERS), 0), dtype=np.int64)
    _ranking_retrievers(message.ranking_retrievers, len(shown))
    return Observation(
        id=message.id,
        run_id=message.run_id,
        query_id=message.query_id,
        observed_at_us=_microseconds(message, now_us),
        passage_ids=passage_ids,
        providers=providers,
        shown=shown,
        answers=_answers(message.answers, len(shown), len(passage_ids)),
        merit_shares=merit_shares,
        labels=_labels(message.labels),
        texts=texts,
        configuration=Configuration(
            message.collection,
            message.retriever,
            message.reranker,
            message.generator,
            None if target else alpha,
            target,
        ),
        vote_winner=_vote_winner(message),
        conversation=_conversation(message.conversation) if message.HasField("conversation") else None,
        stage_ms=_stage_times(message.stage_times),
        degradations=_degradations(message.degradations),
        payload=message.SerializeToString(),
    )


def _target(policy: common_pb2.Policy) -> str:
    """Return what a policy is drawn for in a few words; asks with the same ones belong together."""
    if policy.HasField("alpha"):
        checks.between("policy.alpha", policy.alpha, 0, 100)
    for name in ("disparity", "relevance", "best_relevance"):
        checks.between(f"policy.{name}", getattr(policy, name), 0, float("inf"))
    return policy_in_words("policy", policy)


def _candidates(candidates: Collection[pb.Candidate]) -> tuple[list[str], list[str], list[str]]:
    """Return ids, providers and texts. One by one they are checked only where one of them may be wrong."""
    if len(candidates) > MAX_CANDIDATES:
        raise InvalidField("candidates", f"must be at most {MAX_CANDIDATES}, has {len(candidates)}")
    passage_ids = [candidate.passage_id for candidate in candidates]
    providers = [candidate.provider for candidate in candidates]
    texts = [candidate.text for candidate in candidates]
    if (
        not all(passage_ids) or _longest(passage_ids) > checks.MAX_ID_BYTES // 4
    ):  # at most 4 bytes a character
        for index, value in enumerate(passage_ids):
            fields.limited(f"candidates[{index}].passage_id", value, checks.MAX_ID_BYTES, min_bytes=1)
    if _longest(providers) > checks.MAX_ATTRIBUTE_BYTES // 4:
        for index, value in enumerate(providers):
            fields.limited(f"candidates[{index}].provider", value, checks.MAX_ATTRIBUTE_BYTES)
    if _longest(texts) > checks.MAX_PASSAGE_BYTES // 4:
        for index, value in enumerate(texts):
            if len(value.encode()) > checks.MAX_PASSAGE_BYTES:
                raise InvalidField(
                    f"candidates[{index}].text", f"must be at most {checks.MAX_PASSAGE_BYTES} bytes"
                )
    if fields.CONTROL.search("".join(passage_ids)) or "\0" in "".join(providers):
        at = next(
            i
            for i, (one, by) in enumerate(zip(passage_ids, providers, strict=True))
            if fields.CONTROL.search(one) or "\0" in by
        )
        raise InvalidField(f"candidates[{at}]", "must not hold control characters")
    if len(set(passage_ids)) != len(passage_ids):
        checks.unique("candidates", passage_ids)
    return passage_ids, providers, texts


def _longest(values: Sequence[str]) -> int:
    return max(map(len, values), default=0)


def _merit_shares(candidates: Sequence[pb.Candidate]) -> FloatArray | None:
    known = [candidate.HasField("merit_share") for candidate in candidates]
    if not any(known):
        return None
    if not all(known):
        raise InvalidField(
            f"candidates[{known.index(False)}].merit_share", "must be given, as of other candidates"
        )
    shares = [candidate.merit_share for candidate in candidates]
    for index, share in enumerate(shares):
        checks.between(f"candidates[{index}].merit_share", share, 0, 1)
    if sum(shares) > 1 + _ROUNDING:
        raise InvalidField("candidates", "must have merit shares that sum to at most 1")
    return np.array(shares)


def _answers(
    answers: Sequence[pb.SampledAnswer], num_rankings: int, num_candidates: int
) -> list[SampledAnswer]:
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
            fields.log_probability(f"answers[{index}].log_probability", answer.log_probability)
        for place, candidate in enumerate(answer.cited):
            if candidate >= num_candidates:
                raise InvalidField(
                    f"answers[{index}].cited[{place}]",
                    f"must be below the number of candidates, {num_candidates}, got {candidate}",
                )
        read.append(SampledAnswer(answer.text, tuple(answer.samples), tuple(answer.cited)))
    return read


def _ranking_retrievers(names: Sequence[str], num_rankings: int) -> None:
    if names and len(names) != num_rankings:
        raise InvalidField(
            "ranking_retrievers", f"must be empty or one per ranking, {num_rankings}; {len(names)} are given"
        )
    for index, name in enumerate(names):
        fields.limited(f"ranking_retrievers[{index}]", name, fields.MAX_NAME_BYTES, min_bytes=1)


def _vote_winner(message: pb.Observation) -> int | None:
    if not message.HasField("vote_winner"):
        return None
    if message.vote_winner >= len(message.answers):
        raise InvalidField(
            "vote_winner",
            f"must be below the number of answers, {len(message.answers)}, got {message.vote_winner}",
        )
    return message.vote_winner


def _conversation(message: pb.ObservedConversation) -> ObservedConversation:
    id_ = fields.limited(
        "conversation.conversation_id", message.conversation_id, fields.MAX_ID_BYTES, min_bytes=1
    )
    try:
        return ObservedConversation(id_, read_conversation(message.judged))
    except InvalidField as error:
        raise InvalidField(f"conversation.judged.{error.field}", error.message) from error


def _labels(labels: pb.Labels) -> Labels:
    for index, one in enumerate(labels.useful_passage_ids):
        fields.limited(f"labels.useful_passage_ids[{index}]", one, checks.MAX_ID_BYTES, min_bytes=1)
    if labels.useful_passage_ids and not labels.has_useful:
        raise InvalidField("labels.has_useful", "must be true where useful passages are named")
    return Labels(
        useful=frozenset(labels.useful_passage_ids) if labels.has_useful else None,
        references=tuple(labels.references),
        metric=fields.METRICS.read("labels.metric", labels.metric),
    )


def _stage_times(times: Iterable[common_pb2.StageTime]) -> dict[Stage, float]:
    read: dict[Stage, float] = {}
    for index, one in enumerate(times):
        stage = _STAGES.read(f"stage_times[{index}].stage", one.stage)
        if stage in read:
            raise InvalidField(f"stage_times[{index}].stage", f"{stage} has a time already")
        field = f"stage_times[{index}].duration_ms"
        read[stage] = checks.between(field, checks.finite(field, one.duration_ms), 0, float("inf"))
    return read


def _degradations(degradations: Collection[common_pb2.Degradation]) -> list[tuple[Stage, str]]:
    fields.sized("degradations", len(degradations), 0, _MAX_DEGRADATIONS)
    read = []
    for index, one in enumerate(degradations):
        field = f"degradations[{index}]"
        if one.action not in common_pb2.Degradation.Action.values():
            raise InvalidField(f"{field}.action", f"must be one of the actions, got {one.action}")
        reason = fields.limited(f"{field}.reason", one.reason, fields.MAX_ID_BYTES, min_bytes=1)
        read.append((_STAGES.read(f"{field}.stage", one.stage), reason))
    return read


def _microseconds(message: pb.Observation, now_us: int) -> int:
    if not message.HasField("observed_at"):
        return now_us
    seconds, nanos = message.observed_at.seconds, message.observed_at.nanos
    if not -62_135_596_800 <= seconds <= 253_402_300_799 or not 0 <= nanos < 10**9:
        raise InvalidField("observed_at", "must be a time from year 1 to 9999")
    return seconds * 10**6 + nanos // 1000
