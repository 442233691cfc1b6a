"""Messages to other services, what they answer, and the events of an ask as messages."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import grpc
import numpy as np

from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.reranker.v1 import reranker_service_pb2 as reranker_pb
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.wire import checks
from evenmesh.wire.errors import MeshError
from evenmesh_core.arrays import IntArray
from evenmesh_core.asking import searched
from evenmesh_core.errors import InvalidInput
from evenmesh_core.exposure_balance import ExposureBalance
from evenmesh_kit.rpc.policies import set_target
from evenmesh_kit.rpc.statuses import item_error
from evenmesh_orchestrator.domain import (
    Answered,
    Ask,
    Contexts,
    Degraded,
    Event,
    Failed,
    Finished,
    FirstStage,
    Observation,
    Pool,
    Ranked,
    Retrieved,
    Sampling,
    Stage,
)
from evenmesh_orchestrator.expressions.notation import PARAMETRIC_KNOWLEDGE

_KNOWLEDGE_TEMPLATE: Final = "eor-parametric-knowledge"
_KNOWLEDGE_TOKENS: Final = 256
_KNOWLEDGE_WORDS: Final = 100


def retrieve_request(ask: Ask, *, k: int, sampling: Sampling | None) -> retriever_pb.RetrieveRequest:
    """Return the request to the retriever."""
    request = retriever_pb.RetrieveRequest(
        # A web search takes words as they are, and a reranker reads them.
        query=searched(ask.question, ask.search_text) if ask.adds_words and not ask.web else ask.search_text,
        retriever=ask.retriever,
        depth=ask.depth,
        k=min(k, ask.depth),
        filter=ask.filter,
    )
    if ask.candidates is not None:
        request.candidates.passages.extend(ask.candidates)
    elif ask.web:
        request.web = ask.web
    else:
        request.collection = ask.collection
    if sampling is not None:
        request.sampling.num_rankings = sampling.num_rankings
        request.sampling.seed = sampling.seed
        if sampling.target is not None:
            set_target(request.sampling, sampling.target)
        elif sampling.alpha is not None:
            request.sampling.alpha = sampling.alpha
    return request


def pool(response: retriever_pb.RetrieveResponse, *, id_prefix: str = "") -> Pool:
    """Read a pool; put ``id_prefix`` before the ids, in the messages themselves.

    Raises:
        MeshError: passages, scores and rankings do not match.
    """
    _check_found(response)
    if id_prefix:
        for passage in response.passages:
            passage.id = _prefixed(id_prefix, passage.id)
    log_probabilities = response.rankings.log_probabilities
    return Pool(
        passages=list(response.passages),
        scores=np.fromiter(response.scores, dtype=np.float64, count=len(response.scores)),
        rankings=_matrix(response.rankings),
        log_probabilities=np.fromiter(log_probabilities, dtype=np.float64, count=len(log_probabilities))
        if log_probabilities
        else None,
        retriever=response.retriever,
        index_version=response.index_version,
        policy=response.policy if response.HasField("policy") else None,
    )


def rerank_request(
    ask: Ask, passages: Sequence[common_pb2.Passage], first: FirstStage | None = None
) -> reranker_pb.RerankRequest:
    """Return the request to the reranker."""
    return reranker_pb.RerankRequest(
        query=ask.search_text,
        passages=passages,
        agent=ask.agent if ask.agent.task_id or ask.agent.model_id else None,
        reranker=ask.reranker,
        first_stage=None
        if first is None
        else reranker_pb.FirstStage(scores=first.scores.tolist(), mean=first.mean, deviation=first.deviation),
        fusion=None if first is None else first.weight,
    )


def knowledge_prompt(ask: Ask) -> generator_pb.GenerateRequest:
    """Return the prompt for the model's own knowledge (PK; Li et al., 2024, appendix C.2)."""
    prompt = generator_pb.GenerateRequest(
        question=ask.question,
        model=ask.model,
        augmentation=generator_pb.AUGMENTATION_RETRIEVAL_FREE,
        decoding=ask.decoding,
        template=_KNOWLEDGE_TEMPLATE,
    )
    prompt.decoding.num_beams = ask.decoding.num_beams or 1
    prompt.decoding.max_new_tokens = _KNOWLEDGE_TOKENS
    prompt.decoding.ClearField("stop")
    return prompt


def knowledge(answer: generator_pb.Answer, *, max_passages: int) -> Pool:
    """Split a document into passages of about 100 words, at most ``max_passages``, in reading order."""
    words = answer.text.split()
    count = min(max_passages, -(-len(words) // _KNOWLEDGE_WORDS))
    bounds = [len(words) * part // max(1, count) for part in range(count + 1)]
    passages = [
        common_pb2.Passage(
            id=f"{PARAMETRIC_KNOWLEDGE}/{part + 1}",
            text=" ".join(words[begin:end]),
            attributes={"provider": answer.model},
        )
        for part, (begin, end) in enumerate(pairwise(bounds))
    ]
    return Pool(
        passages=passages,
        scores=1 / np.arange(1, count + 1, dtype=np.float64),
        rankings=np.arange(count, dtype=np.int64)[None, :],
        log_probabilities=None,
        retriever=PARAMETRIC_KNOWLEDGE,
        index_version=answer.model_version,
    )


def vote_start(vote: evaluator_pb.VoteRequest) -> evaluator_pb.VoteAnytimeRequest:
    """Return the first message of a vote."""
    return evaluator_pb.VoteAnytimeRequest(
        start=evaluator_pb.VoteAnytimeRequest.Start(vote=vote, num_answers=len(vote.retriever_weights))
    )


def vote_answer(member: int, answer: str | None) -> evaluator_pb.VoteAnytimeRequest:
    """Return the message with the answer of a member; None for a missing answer."""
    return evaluator_pb.VoteAnytimeRequest(
        answer=evaluator_pb.VoteAnytimeRequest.Answer(index=member, text=answer or "", missing=answer is None)
    )


def exposure_balance(message: evaluator_pb.GetExposureBalanceResponse) -> ExposureBalance:
    """Read what providers are owed.

    Raises:
        MeshError: numbers that are negative or not finite.
    """
    names = [one.provider for one in message.providers]
    target = [one.target for one in message.providers]
    exposure = [one.exposure for one in message.providers]
    try:
        return ExposureBalance().added(names, target, exposure)
    except InvalidInput:
        raise MeshError(
            grpc.StatusCode.INTERNAL, "UPSTREAM_ERROR", "the balance of the evaluator is not finite"
        ) from None


def event(value: Event) -> pb.AskResponse:
    """Return the message of one event of an ask."""
    match value:
        case pb.Delta():
            return pb.AskResponse(delta=value)
        case Retrieved(found, collection):
            response = pb.AskResponse()
            retrieved = response.retrieved
            retrieved.passages.extend(found.passages)  # in their place: another copy takes six times as long
            retrieved.scores.extend(found.scores.tolist())
            retrieved.retriever = found.retriever
            retrieved.index_version = found.index_version
            retrieved.collection = collection
            return response
        case Ranked(contexts, reranker, model_version, member, fusion, policy):
            ranked = pb.Ranked(
                contexts=_rankings(contexts),
                reranker=reranker,
                model_version=model_version,
                member=member,
                fusion=fusion,
                policy=policy,
            )
            return pb.AskResponse(ranked=ranked)
        case Answered(answer, samples, citations, member):
            answered = pb.AnswerEvent(answer=answer, samples=samples, citations=citations, member=member)
            return pb.AskResponse(answer=answered)
        case Failed(samples, error, member):
            failed = pb.AnswerFailed(samples=samples, error=item_error(error), member=member)
            return pb.AskResponse(failed=failed)
        case pb.VoteEvent():
            return pb.AskResponse(vote=value)
        case pb.ExposureReport():
            return pb.AskResponse(report=value)
        case Degraded():
            return pb.AskResponse(degraded=degradation(value))
        case Finished():
            return pb.AskResponse(done=done(value))


def done(value: Finished) -> pb.Done:
    """Return the message of the end of an ask."""
    return pb.Done(
        ask_id=value.ask_id,
        run_id=value.run_id,
        stage_times=_stage_times(value.stage_ms),
        total_ms=value.total_ms,
        seed=value.drawn_seed,
    )


def degradation(value: Degraded) -> common_pb2.Degradation:
    """Return the message of a degradation."""
    return common_pb2.Degradation(
        stage=_stage(value.stage),
        action=common_pb2.Degradation.Action.Value(f"ACTION_{value.action.name}"),
        reason=value.reason,
        message=value.message,
    )


def observation(value: Observation, *, with_text: bool) -> bytes:
    """Return an observation as the evaluator reads it; texts only if ``with_text``.

    Shown passages carry their text where there are references: whether the context held the answer separates
    one kind of error from another.
    """
    asked, found, ranked = value.ask, value.pool, value.ranked
    first = value.answers[0].answer if value.answers else generator_pb.Answer()
    places = {passage.id: place for place, passage in enumerate(found.passages)}
    message = evaluator_pb.Observation(
        id=asked.id,
        run_id=asked.run_id,
        query_id=asked.query_id,
        question=asked.question if with_text else "",
        collection=asked.collection,
        index_version=found.index_version,
        retriever=found.retriever,
        reranker=ranked.reranker,
        reranker_version=ranked.model_version,
        generator=first.model,
        generator_version=first.model_version,
        alpha=_alpha(value),
        policy=ranked.policy,
        seed=None if asked.sampling is None else asked.sampling.seed,
        shown=_rankings(ranked.contexts),
        answers=[
            evaluator_pb.SampledAnswer(
                text=answered.answer.text,
                samples=answered.samples,
                log_probability=answered.answer.log_probability,
                cited=sorted(
                    {places[one.passage_id] for one in answered.citations if one.passage_id in places}
                ),
            )
            for answered in value.answers
        ],
        labels=asked.labels,
        stage_times=_stage_times(value.stage_ms),
        degradations=map(degradation, value.degradations),
        ranking_retrievers=value.retrievers,
        vote_winner=value.vote_winner,
        conversation=value.conversation,
    )
    shows_text = with_text and bool(asked.labels.references)
    shown = set(ranked.contexts.rows.ravel().tolist()) if shows_text else set()
    for index, passage in enumerate(found.passages):
        message.candidates.add(
            passage_id=passage.id,
            provider=passage.attributes.get("provider", ""),
            text=f"{passage.title} {passage.text}".strip() if index in shown else "",
            merit_share=None if value.merit is None else min(float(value.merit[index]), 1.0),
        )
    message.observed_at.FromMicroseconds(value.observed_at_us)
    return message.SerializeToString()


def _alpha(value: Observation) -> float | None:
    """Return the fairness dial that rankings were drawn at, given or found."""
    policy = value.ranked.policy
    if policy is not None:
        return policy.alpha if policy.HasField("alpha") else None
    return None if value.ask.sampling is None else value.ask.sampling.alpha


def _stage(stage: Stage) -> common_pb2.Stage.ValueType:
    return common_pb2.Stage.Value(f"STAGE_{stage.name}")


def _stage_times(stage_ms: Mapping[Stage, float]) -> list[common_pb2.StageTime]:
    return [common_pb2.StageTime(stage=_stage(stage), duration_ms=ms) for stage, ms in stage_ms.items()]


def _rankings(contexts: Contexts) -> common_pb2.Rankings:
    # Protobuf reads NumPy integers one by one, and a list of Python's at once.
    chances = contexts.log_probabilities
    return common_pb2.Rankings(
        depth=contexts.rows.shape[1],
        indices=contexts.rows.ravel().tolist(),
        log_probabilities=None if chances is None else chances.tolist(),
    )


def _check_found(response: retriever_pb.RetrieveResponse) -> None:
    size, rankings = len(response.passages), response.rankings
    rows, left = divmod(len(rankings.indices), rankings.depth or 1)
    if (
        len(response.scores) != size
        or not np.isfinite(response.scores).all()
        or left
        or max(rankings.indices, default=-1) >= size
        or (
            rankings.depth and len(rankings.log_probabilities) not in (0, rows)
        )  # any number of empty rankings is fine
    ):
        raise MeshError(
            grpc.StatusCode.INTERNAL,
            "UPSTREAM_ERROR",
            "the passages, scores and rankings of the retriever do not match",
        )


def _matrix(rankings: common_pb2.Rankings) -> IntArray:
    if not rankings.depth:
        return np.empty((1, 0), dtype=np.int64)
    flat = np.fromiter(rankings.indices, dtype=np.int64, count=len(rankings.indices))
    return flat.reshape(-1, rankings.depth)


def _prefixed(prefix: str, name: str) -> str:
    """Return an id with a prefix; its SHA-256 instead if it would be too long."""
    longest = checks.MAX_ID_BYTES - len(prefix.encode())
    if len(name.encode()) > longest:
        name = f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"
    return prefix + name
