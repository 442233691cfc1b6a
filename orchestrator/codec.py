"""Protos to domain and back, and the bounds of orchestrator.proto, each enforced with the field named."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, TypeVar, cast

import grpc
import numpy as np

from meshkit import checks
from meshkit.errors import InvalidField, MeshError, item_error
from orchestrator.domain import (
    Action,
    Agent,
    Answered,
    Ask,
    Augmentation,
    Contexts,
    Decoding,
    Degraded,
    Delta,
    EnsembleAsk,
    Event,
    Exposure,
    Failed,
    Finished,
    Labels,
    Observation,
    Passage,
    Pool,
    Prompt,
    Ranked,
    Reported,
    Retrieved,
    Sampling,
    SamplingStage,
    Stage,
    UtilityMetric,
    Voted,
)
from orchestrator.ensembles.definitions import (
    MAX_MEMBERS,
    MIN_MEMBERS,
    Ensembles,
    Roster,
    Voting,
    equal,
)
from orchestrator.expressions.notation import PARAMETRIC_KNOWLEDGE
from orchestrator.expressions.parser import ExpressionError
from orchestrator.expressions.sources import Catalogue, Recipe
from ragcore.arrays import IntArray
from ragmesh.common.v1 import common_pb2
from ragmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from ragmesh.generator.v1 import generator_service_pb2 as generator_pb
from ragmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from ragmesh.reranker.v1 import reranker_service_pb2 as reranker_pb
from ragmesh.retriever.v1 import retriever_service_pb2 as retriever_pb

T = TypeVar("T")

MAX_NAME_BYTES: Final = 128
"""Largest name of a retriever, reranker or model, and largest id of an agent, a run or a query. Bytes."""
DEFAULT_DEPTH: Final = 100
"""Passages in the pool unless told otherwise."""
DEFAULT_K: Final = 5
"""Passages in a context unless told otherwise."""
DEFAULT_RERANK_DEPTH: Final = 20
"""Passages handed to the reranker unless told otherwise."""

_LARGEST_SEED: Final = 2**63 - 1
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_BYTES_PER_CHARACTER: Final = 4

_KNOWLEDGE_TEMPLATE: Final = "eor-parametric-knowledge"
_KNOWLEDGE_TOKENS: Final = 256
_KNOWLEDGE_WORDS: Final = 100

_METRICS: Final[dict[int, UtilityMetric]] = {
    evaluator_pb.UTILITY_METRIC_UNSPECIFIED: UtilityMetric.TOKEN_F1,
    evaluator_pb.UTILITY_METRIC_EXACT_MATCH: UtilityMetric.EXACT_MATCH,
    evaluator_pb.UTILITY_METRIC_TOKEN_F1: UtilityMetric.TOKEN_F1,
    evaluator_pb.UTILITY_METRIC_ROUGE1: UtilityMetric.ROUGE1,
    evaluator_pb.UTILITY_METRIC_ROUGE2: UtilityMetric.ROUGE2,
    evaluator_pb.UTILITY_METRIC_ROUGE_L: UtilityMetric.ROUGE_L,
    evaluator_pb.UTILITY_METRIC_ACCURACY: UtilityMetric.ACCURACY,
}
_METRICS_BACK: Final = {
    UtilityMetric.EXACT_MATCH: evaluator_pb.UTILITY_METRIC_EXACT_MATCH,
    UtilityMetric.TOKEN_F1: evaluator_pb.UTILITY_METRIC_TOKEN_F1,
    UtilityMetric.ROUGE1: evaluator_pb.UTILITY_METRIC_ROUGE1,
    UtilityMetric.ROUGE2: evaluator_pb.UTILITY_METRIC_ROUGE2,
    UtilityMetric.ROUGE_L: evaluator_pb.UTILITY_METRIC_ROUGE_L,
    UtilityMetric.ACCURACY: evaluator_pb.UTILITY_METRIC_ACCURACY,
}
_SAMPLING_STAGES: Final[dict[int, SamplingStage]] = {
    pb.SAMPLING_STAGE_RETRIEVER: SamplingStage.RETRIEVER,
    pb.SAMPLING_STAGE_RERANKER: SamplingStage.RERANKER,
}
_AUGMENTATIONS: Final[dict[int, Augmentation]] = {
    generator_pb.AUGMENTATION_UNSPECIFIED: Augmentation.DEFAULT,
    generator_pb.AUGMENTATION_IN_PROMPT: Augmentation.IN_PROMPT,
    generator_pb.AUGMENTATION_FUSION_IN_DECODER: Augmentation.FUSION_IN_DECODER,
    generator_pb.AUGMENTATION_RETRIEVAL_FREE: Augmentation.RETRIEVAL_FREE,
    generator_pb.AUGMENTATION_PARAMETRIC_KNOWLEDGE: Augmentation.PARAMETRIC_KNOWLEDGE,
    generator_pb.AUGMENTATION_COMPRESSION: Augmentation.COMPRESSION,
}
_AUGMENTATIONS_BACK: Final = {
    Augmentation.DEFAULT: generator_pb.AUGMENTATION_UNSPECIFIED,
    Augmentation.IN_PROMPT: generator_pb.AUGMENTATION_IN_PROMPT,
    Augmentation.FUSION_IN_DECODER: generator_pb.AUGMENTATION_FUSION_IN_DECODER,
    Augmentation.RETRIEVAL_FREE: generator_pb.AUGMENTATION_RETRIEVAL_FREE,
    Augmentation.PARAMETRIC_KNOWLEDGE: generator_pb.AUGMENTATION_PARAMETRIC_KNOWLEDGE,
    Augmentation.COMPRESSION: generator_pb.AUGMENTATION_COMPRESSION,
}
_SAID_BY_EXPRESSIONS: Final = frozenset(
    {Augmentation.RETRIEVAL_FREE, Augmentation.PARAMETRIC_KNOWLEDGE, Augmentation.COMPRESSION}
)
_POOLINGS: Final = {
    "mean": evaluator_pb.VoteRequest.POOLING_MEAN,
    "max": evaluator_pb.VoteRequest.POOLING_MAX,
    "majority": evaluator_pb.VoteRequest.POOLING_MAJORITY,
    "plurality": evaluator_pb.VoteRequest.POOLING_PLURALITY,
}
_STAGES: Final = {
    Stage.RETRIEVE: common_pb2.STAGE_RETRIEVE,
    Stage.RERANK: common_pb2.STAGE_RERANK,
    Stage.GENERATE: common_pb2.STAGE_GENERATE,
    Stage.OBSERVE: common_pb2.STAGE_OBSERVE,
}
_ACTIONS: Final = {
    Action.FAIL: common_pb2.Degradation.ACTION_UNSPECIFIED,
    Action.LOCAL_VOTE: common_pb2.Degradation.ACTION_LOCAL_VOTE,
    Action.RETRIEVER_ORDER: common_pb2.Degradation.ACTION_RETRIEVER_ORDER,
    Action.NO_CONTEXT: common_pb2.Degradation.ACTION_NO_CONTEXT,
    Action.SOURCE_LEFT_OUT: common_pb2.Degradation.ACTION_SOURCE_LEFT_OUT,
    Action.NO_ANSWER: common_pb2.Degradation.ACTION_NO_ANSWER,
    Action.OBSERVATION_QUEUED: common_pb2.Degradation.ACTION_OBSERVATION_QUEUED,
    Action.OBSERVATION_DROPPED: common_pb2.Degradation.ACTION_OBSERVATION_DROPPED,
    Action.NO_REPORT: common_pb2.Degradation.ACTION_NO_REPORT,
    Action.HISTORY_WORDS: common_pb2.Degradation.ACTION_HISTORY_WORDS,
}


def ask(
    request: pb.AskRequest,
    *,
    default_collection: str,
    default_reranker: str,
    sources: Catalogue | None = None,
) -> Ask:
    """Reads an ask: checks every bound and fills in every default.

    Args:
        request: the request.
        default_collection: collection of asks that name none.
        default_reranker: reranker of asks that name none.
        sources: what expressions can name; nothing but ``PK`` and ``ReFree`` without it.

    Raises:
        InvalidField: a bound of the contract is broken, or what is asked does not go together.
    """
    question = checks.text("question", request.question)
    recipe = _recipe(request, sources or Catalogue()) if request.expression else None
    source = request.WhichOneof("source")
    candidates: Sequence[Passage] | None = None
    if source == "candidates":
        candidates = list(request.candidates.passages)
        checks.passages("candidates.passages", candidates)
    collection = "" if candidates is not None or recipe is not None else default_collection
    if source == "collection":
        collection = checks.name("collection", request.collection)
    if recipe is not None:
        # Of an expression these follow from it; what it can give at most is bounded like k.
        depth = max([place.depth for place in recipe.places.values()], default=1)
        depth = k = rerank_depth = max(1, depth, recipe.most)
    else:
        depth, k, rerank_depth = _sizes(request, len(candidates) if candidates is not None else None)
    sampling = _sampling(request.sampling) if request.HasField("sampling") else None
    reranker = _name("reranker", request.reranker) or default_reranker
    if recipe is not None:
        reranker = _reranker_of(recipe, request, reranker)
    if request.sampling_stage == pb.SAMPLING_STAGE_UNSPECIFIED:
        # Whoever orders last decides who is shown; sampling before it would be undone by its order.
        sampling_stage = SamplingStage.RETRIEVER if reranker == "none" else SamplingStage.RERANKER
    else:
        sampling_stage = _enum(
            "sampling_stage", request.sampling_stage, _SAMPLING_STAGES, pb.SamplingStage.keys()
        )
    if sampling is not None and sampling_stage is SamplingStage.RERANKER and reranker == "none":
        raise InvalidField("sampling_stage", "must be the retriever where there is no reranker")
    if recipe is not None and sampling is not None:
        _check_sampling(recipe, sampling_stage)
    most = 1 if sampling is None else sampling.num_rankings
    num_answers = request.num_answers if request.HasField("num_answers") else most
    augmentation = _enum(
        "augmentation", request.augmentation, _AUGMENTATIONS, generator_pb.Augmentation.keys()
    )
    return Ask(
        id=secrets.token_hex(16),
        question=question,
        collection=collection,
        candidates=candidates,
        retriever=_name("retriever", request.retriever),
        reranker=reranker,
        names_reranker=bool(request.reranker),
        model=_name("model", request.model),
        depth=depth,
        k=k,
        rerank_depth=rerank_depth,
        sampling=sampling,
        sampling_stage=sampling_stage,
        augmentation=augmentation if recipe is None else _augmentation_of(recipe, augmentation),
        decoding=_decoding(request.decoding),
        num_answers=checks.between("num_answers", num_answers, 0, most),
        agent=Agent(
            _name("agent.task_id", request.agent.task_id), _name("agent.model_id", request.agent.model_id)
        ),
        run_id=_name("run_id", request.run_id) or f"asks-{datetime.now(UTC):%Y-%m-%d}",
        query_id=_name("query_id", request.query_id) or hashlib.sha256(question.encode()).hexdigest()[:16],
        labels=_labels(request.labels),
        observe=not request.skip_observation,
        want_report=request.want_report and not request.skip_observation,
        filter=request.filter if request.HasField("filter") else None,
        recipe=recipe,
        looked_for=checks.text("search", request.search) if request.search else "",
        template=_name("template", request.template),
    )


def retrieve_request(ask: Ask, *, k: int, sampling: Sampling | None) -> retriever_pb.RetrieveRequest:
    """Writes what the retriever is asked."""
    request = retriever_pb.RetrieveRequest(
        query=ask.wording, retriever=ask.retriever, depth=ask.depth, k=min(k, ask.depth)
    )
    if ask.candidates is not None:
        request.candidates.passages.extend(_messages(ask.candidates))
    elif ask.web:
        request.web = ask.web
    else:
        request.collection = ask.collection
    if ask.filter is not None:
        request.filter.CopyFrom(cast(retriever_pb.Filter, ask.filter))
    if sampling is not None:
        request.sampling.alpha = sampling.alpha
        request.sampling.num_rankings = sampling.num_rankings
        request.sampling.seed = sampling.seed
    return request


def pool(response: retriever_pb.RetrieveResponse, *, id_prefix: str = "") -> Pool:
    """Reads what the retriever found; ``id_prefix`` is put before the ids, in the messages themselves.

    Raises:
        MeshError: its parts do not fit each other.
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
    )


def rerank_request(
    question: str, passages: Sequence[Passage], *, agent: Agent, reranker: str
) -> reranker_pb.RerankRequest:
    """Writes what the reranker is asked."""
    request = reranker_pb.RerankRequest(query=question, reranker=reranker)
    request.passages.extend(_messages(passages))
    if agent.task_id or agent.model_id:
        request.agent.task_id, request.agent.model_id = agent.task_id, agent.model_id
    return request


def generate_request(prompt: Prompt) -> generator_pb.GenerateRequest:
    """Writes what the generator is asked."""
    decoding = prompt.decoding
    request = generator_pb.GenerateRequest(
        question=prompt.question,
        model=prompt.model,
        augmentation=_AUGMENTATIONS_BACK[prompt.augmentation],
        decoding=generator_pb.Decoding(
            num_beams=decoding.num_beams,
            max_new_tokens=decoding.max_new_tokens,
            temperature=decoding.temperature,
            top_p=decoding.top_p,
            seed=decoding.seed,
        ),
    )
    request.passages.extend(_messages(prompt.passages))
    request.template = prompt.template
    for turn in prompt.turns:
        request.turns.add(question=turn.question, answer=turn.answer)
    return request


def knowledge_request(ask: Ask) -> generator_pb.GenerateBatchRequest:
    """Writes the request for what the model itself knows (Li et al., ensemble of retrievers, C.2, PK)."""
    prompt = Prompt(
        ask.question,
        (),
        ask.model,
        Augmentation.RETRIEVAL_FREE,
        replace(ask.decoding, num_beams=ask.decoding.num_beams or 1, max_new_tokens=_KNOWLEDGE_TOKENS),
    )
    request = generate_request(prompt)
    request.template = _KNOWLEDGE_TEMPLATE
    return generator_pb.GenerateBatchRequest(requests=[request])


def knowledge(answer: generator_pb.Answer, *, most: int) -> Pool:
    """Reads a document as passages of about 100 words, at most ``most``, best first as they stand."""
    words = answer.text.split()
    count = min(most, -(-len(words) // _KNOWLEDGE_WORDS))
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


def ensemble(
    request: pb.AskRequest,
    *,
    default_collection: str,
    default_reranker: str,
    sources: Catalogue,
    ensembles: Ensembles,
) -> EnsembleAsk:
    """Reads an ask of an ensemble: every member as an ask of its own. Arguments as :func:`ask`.

    Raises:
        InvalidField: a bound of the contract is broken, or what is asked does not go together.
    """
    others = {
        "sampling": request.HasField("sampling"),
        "num_answers": request.HasField("num_answers"),
        "expression": bool(request.expression),
        "template": bool(request.template),
    }
    for field, given in others.items():
        if given:
            raise InvalidField(field, "cannot be given with an ensemble")
    if request.augmentation != generator_pb.AUGMENTATION_UNSPECIFIED:
        raise InvalidField("augmentation", "cannot be given with an ensemble, whose expressions say it")
    roster = _roster_of(request, ensembles)
    members = []
    for place, member in enumerate(roster.members):
        one = pb.AskRequest()
        one.CopyFrom(request)
        one.ClearField("ensemble")
        one.expression = member
        try:
            if not sources.read(member).reranks:
                one.reranker = ""
        except ExpressionError as error:
            raise InvalidField(f"ensemble.expressions[{place}]", str(error)) from None
        of_member = ask(
            one, default_collection=default_collection, default_reranker=default_reranker, sources=sources
        )
        members.append(of_member)
    name = request.ensemble.name or ", ".join(roster.members)
    if len(name.encode()) > MAX_NAME_BYTES:
        name = name.encode()[: MAX_NAME_BYTES - len("…".encode())].decode(errors="ignore") + "…"
    return EnsembleAsk(members[0], tuple(members), roster.voting(request.agent.task_id), name)


def vote_start(question: str, voting: Voting) -> evaluator_pb.VoteAnytimeRequest:
    """Writes how answers are to vote."""
    vote = evaluator_pb.VoteRequest(
        question=question,
        retriever_weights=voting.member_weights,
        similarities=list(voting.similarities),
        similarity_weights=list(voting.similarities.values()),
        pooling=_POOLINGS[voting.pooling],
        threshold=voting.threshold,
        retriever_filter=voting.retriever_filter,
        drop_filtered=voting.drop_filtered,
    )
    return evaluator_pb.VoteAnytimeRequest(
        start=evaluator_pb.VoteAnytimeRequest.Start(vote=vote, num_answers=len(voting.member_weights))
    )


def vote_answer(member: int, answer: str | None) -> evaluator_pb.VoteAnytimeRequest:
    """Writes the answer of a member, or that there will be none."""
    return evaluator_pb.VoteAnytimeRequest(
        answer=evaluator_pb.VoteAnytimeRequest.Answer(index=member, text=answer or "", missing=answer is None)
    )


def event(value: Event) -> pb.AskResponse:
    """Writes one event of an ask."""
    match value:
        case Delta(text):
            return pb.AskResponse(delta=pb.Delta(text=text))
        case Retrieved(found):
            return _retrieved(found)
        case Ranked(contexts, reranker, model_version, member):
            ranked = pb.Ranked(reranker=reranker, model_version=model_version, member=member)
            ranked.contexts.CopyFrom(_rankings(contexts))
            return pb.AskResponse(ranked=ranked)
        case Answered():
            return _answered(value)
        case Failed(samples, error, member):
            failed = pb.AnswerFailed(samples=samples, error=item_error(error), member=member)
            return pb.AskResponse(failed=failed)
        case Voted():
            vote = pb.VoteEvent(
                answer=value.answer,
                member=value.member,
                num_answers=value.num_answers,
                num_missing=len(value.missing),
                missing=value.missing,
                may_change=value.may_change,
                final=value.final,
            )
            return pb.AskResponse(vote=vote)
        case Reported(exposure, run):
            return pb.AskResponse(report=exposure_report(exposure, run))
        case Degraded():
            return pb.AskResponse(degraded=degradation(value))
        case Finished():
            return pb.AskResponse(done=done(value))


def done(value: Finished) -> pb.Done:
    """Writes the end."""
    return pb.Done(
        ask_id=value.ask_id,
        run_id=value.run_id,
        stage_times=_stage_times(value.stage_ms),
        total_ms=value.total_ms,
    )


def observation(value: Observation, *, with_text: bool) -> bytes:
    """Writes an observation as the evaluator reads it; texts only if ``with_text``.

    Passages that were shown carry theirs where there are references: whether the context held the answer is
    what tells one kind of error from another.
    """
    asked, found, labels = value.ask, value.pool, value.ask.labels
    first = value.answers[0].answer if value.answers else None
    message = evaluator_pb.Observation(
        id=asked.id,
        run_id=asked.run_id,
        query_id=asked.query_id,
        question=asked.question if with_text else "",
        collection=asked.collection,
        index_version=found.index_version,
        retriever=found.retriever,
        reranker=value.ranked.reranker,
        reranker_version=value.ranked.model_version,
        generator=first.model if first is not None else "",
        generator_version=first.model_version if first is not None else "",
        alpha=None if asked.sampling is None else asked.sampling.alpha,
        seed=None if asked.sampling is None else asked.sampling.seed,
        shown=_rankings(value.ranked.contexts),
        answers=[
            evaluator_pb.SampledAnswer(
                text=answered.answer.text,
                samples=answered.samples,
                log_probability=answered.answer.log_probability,
            )
            for answered in value.answers
        ],
        labels=evaluator_pb.Labels(
            useful_passage_ids=sorted(labels.useful or ()),
            has_useful=labels.useful is not None,
            references=labels.references,
            metric=_METRICS_BACK[labels.metric],
        ),
        stage_times=_stage_times(value.stage_ms),
        degradations=[degradation(one) for one in value.degradations],
        ranking_retrievers=value.retrievers,
        vote_winner=value.vote_winner,
    )
    add = message.candidates.add
    told = set(value.ranked.contexts.rows.ravel().tolist()) if with_text and labels.references else set()
    for index, passage in enumerate(found.passages):
        text = f"{passage.title} {passage.text}".strip() if index in told else ""
        add(passage_id=passage.id, provider=passage.attributes.get("provider", ""), text=text)
    message.observed_at.FromMicroseconds(value.observed_at_us)
    if value.conversation is not None:
        message.conversation.CopyFrom(cast(evaluator_pb.ObservedConversation, value.conversation))
    return message.SerializeToString()


def _retrieved(found: Pool) -> pb.AskResponse:
    response = pb.AskResponse()
    retrieved = response.retrieved
    retrieved.retriever, retrieved.index_version = found.retriever, found.index_version
    retrieved.scores.extend(found.scores)
    retrieved.passages.extend(_messages(found.passages))
    return response


def _answered(value: Answered) -> pb.AskResponse:
    response = pb.AskResponse()
    response.answer.answer.CopyFrom(cast(generator_pb.Answer, value.answer))
    response.answer.samples.extend(value.samples)
    response.answer.member = value.member
    for one in value.citations:
        response.answer.citations.add(
            passage_id=one.passage_id, provider=one.provider, rank=one.rank, start=one.start, end=one.end
        )
    return response


def exposure_report(exposure: Exposure, run: object | None) -> pb.ExposureReport:
    """Writes the exposure of an ask."""
    report = pb.ExposureReport(
        exposure=exposure.per_passage,
        ee_d=exposure.ee_d,
        ee_r=exposure.ee_r,
        ee_d_norm=exposure.ee_d_norm,
        ee_r_norm=exposure.ee_r_norm,
        expected_utility=exposure.expected_utility,
        providers=[
            evaluator_pb.ExposureShare(
                name=one.name, exposure=one.exposure, share=one.share, target=one.target
            )
            for one in exposure.providers
        ],
    )
    if run is not None:
        report.run.CopyFrom(cast(evaluator_pb.RunReport, run))
    return report


def degradation(value: Degraded) -> common_pb2.Degradation:
    """Writes a degradation."""
    return common_pb2.Degradation(
        stage=_STAGES[value.stage], action=_ACTIONS[value.action], reason=value.reason, message=value.message
    )


def _stage_times(stage_ms: Mapping[Stage, float]) -> list[common_pb2.StageTime]:
    return [common_pb2.StageTime(stage=_STAGES[stage], duration_ms=ms) for stage, ms in stage_ms.items()]


def _rankings(contexts: Contexts) -> common_pb2.Rankings:
    # NumPy's own integers are read one by one; a list of Python's goes in at once.
    rankings = common_pb2.Rankings(depth=contexts.rows.shape[1], indices=contexts.rows.ravel().tolist())
    if contexts.log_probabilities is not None:
        rankings.log_probabilities.extend(contexts.log_probabilities.tolist())
    return rankings


def _check_found(response: retriever_pb.RetrieveResponse) -> None:
    size, rankings = len(response.passages), response.rankings
    rows, left = divmod(len(rankings.indices), rankings.depth or 1)
    if (
        len(response.scores) != size
        or not np.isfinite(response.scores).all()
        or left
        or max(rankings.indices, default=-1) >= size
        or (rankings.depth and len(rankings.log_probabilities) not in (0, rows))  # any number of nothing
    ):
        raise MeshError(
            grpc.StatusCode.INTERNAL,
            "UPSTREAM_ERROR",
            "the passages, scores and rankings of the retriever do not fit",
        )


def _matrix(rankings: common_pb2.Rankings) -> IntArray:
    if not rankings.depth:
        return np.empty((1, 0), dtype=np.int64)
    flat = np.fromiter(rankings.indices, dtype=np.int64, count=len(rankings.indices))
    return flat.reshape(-1, rankings.depth)


def _messages(passages: Sequence[Passage]) -> Sequence[common_pb2.Passage]:
    """Passages as the messages they arrived in, or that :func:`knowledge` made."""
    return cast(Sequence[common_pb2.Passage], passages)


def _sizes(request: pb.AskRequest, inline: int | None) -> tuple[int, int, int]:
    """Depth of the pool, of the context, and of what is reranked."""
    depth = request.depth if request.HasField("depth") else min(inline or DEFAULT_DEPTH, 1000)
    checks.between("depth", depth, 1, 1000)
    if request.HasField("k"):
        k = checks.between("k", request.k, 1, 100)
        if k > depth:
            raise InvalidField("k", f"must be at most depth, {depth}, got {k}")
        if inline is not None and k > inline:
            raise InvalidField("k", f"must be at most the number of candidates, {inline}, got {k}")
    else:
        k = min(DEFAULT_K, depth)
    if inline is not None:
        depth = min(depth, inline)
        k = min(k, inline)
    if request.HasField("rerank_depth"):
        rerank_depth = checks.between("rerank_depth", request.rerank_depth, k, depth)
    else:
        rerank_depth = max(k, min(DEFAULT_RERANK_DEPTH, depth))
    return depth, k, rerank_depth


def _recipe(request: pb.AskRequest, sources: Catalogue) -> Recipe:
    """The expression, and that nothing else of the request says where passages come from."""
    source = request.WhichOneof("source")
    others = {
        source or "": source is not None,
        "retriever": bool(request.retriever),
        "k": request.HasField("k"),
        "rerank_depth": request.HasField("rerank_depth"),
    }
    for field, given in others.items():
        if given:
            raise InvalidField(field, "cannot be given with an expression, which says it")
    depth = checks.between("depth", request.depth, 1, 1000) if request.HasField("depth") else None
    try:
        recipe = sources.read(request.expression, depth=depth)
    except ExpressionError as error:
        raise InvalidField("expression", str(error)) from None
    if request.HasField("filter") and (recipe.uses_knowledge or not recipe.places):
        raise InvalidField(
            "filter", f"cannot hold for {recipe.text}: what a model knows by itself has no attributes"
        )
    return recipe


def _roster_of(request: pb.AskRequest, ensembles: Ensembles) -> Roster:
    """The members and how they vote."""
    asked = request.ensemble
    if bool(asked.name) == bool(asked.expressions):
        raise InvalidField("ensemble", "must have either a name or expressions")
    if asked.name:
        roster = ensembles.get(_name("ensemble.name", asked.name))
        if roster is None:
            there = f"there are {', '.join(ensembles.names)}" if ensembles.names else "there are none"
            raise InvalidField("ensemble.name", f"there is no {asked.name!r}; {there}")
        return roster
    members = tuple(asked.expressions)
    checks.between("ensemble.expressions", len(members), MIN_MEMBERS, MAX_MEMBERS)
    for place, member in enumerate(members):
        if member in members[:place]:
            raise InvalidField(f"ensemble.expressions[{place}]", f"is there already: {member}")
    return equal(members)


def _reranker_of(recipe: Recipe, request: pb.AskRequest, reranker: str) -> str:
    """The reranker of an expression; ``none`` where nothing is reranked."""
    if recipe.reranks:
        if reranker == "none":
            raise InvalidField("reranker", f"must not be none: {recipe.text} reranks (@RR)")
        return reranker
    if request.reranker not in ("", "none"):
        raise InvalidField("reranker", f"cannot be given: {recipe.text} reranks nothing (no @RR)")
    return "none"


def _check_sampling(recipe: Recipe, stage: SamplingStage) -> None:
    part = recipe.sampled_part
    if part is None:
        raise InvalidField(
            "sampling",
            f"{recipe.text} has no one list of scores to sample from; a source such as Wiki@10 has, and what "
            "is reranked as a whole, such as (SE&Wiki@20)@RR@10",
        )
    wanted = SamplingStage.RERANKER if part.reranked else SamplingStage.RETRIEVER
    if stage is not wanted:
        raise InvalidField("sampling_stage", f"must be the {wanted.value} for {recipe.text}")


def _augmentation_of(recipe: Recipe, asked: Augmentation) -> Augmentation:
    """How what an expression finds is handed to the model."""
    needed = None
    if recipe.expression.is_retrieval_free:
        needed = Augmentation.RETRIEVAL_FREE
    elif recipe.expression.is_parametric:
        needed = Augmentation.PARAMETRIC_KNOWLEDGE
    elif recipe.expression.compressed:
        needed = Augmentation.COMPRESSION
    if needed is None:
        if asked in _SAID_BY_EXPRESSIONS:
            raise InvalidField("augmentation", f"is not what {recipe.text} says")
        return asked
    if asked not in (Augmentation.DEFAULT, needed):
        raise InvalidField("augmentation", f"must be {needed.value} or unset for {recipe.text}")
    return needed


def _prefixed(prefix: str, name: str) -> str:
    """An id with what stands before it; one that would be too long by its SHA-256."""
    longest = checks.MAX_ID_BYTES - len(prefix.encode())
    if len(name.encode()) > longest:
        name = f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"
    return prefix + name


def _sampling(message: common_pb2.Sampling) -> Sampling:
    alpha = message.alpha if message.HasField("alpha") else 1.0
    num_rankings = message.num_rankings if message.HasField("num_rankings") else 1
    if message.seed > _LARGEST_SEED:
        raise InvalidField("sampling.seed", f"must be in [0, 2^63 - 1], got {message.seed}")
    return Sampling(
        alpha=checks.between("sampling.alpha", alpha, 0, 100),
        num_rankings=checks.between("sampling.num_rankings", num_rankings, 1, 1000),
        seed=message.seed,
    )


def _decoding(message: generator_pb.Decoding) -> Decoding:
    def given(name: str) -> bool:
        return message.HasField(name)  # type: ignore[arg-type]  # the stub lists the names one by one

    if given("top_p") and not 0 < message.top_p <= 1:
        raise InvalidField("decoding.top_p", f"must be in (0, 1], got {message.top_p}")
    if message.seed > _LARGEST_SEED:
        raise InvalidField("decoding.seed", f"must be in [0, 2^63 - 1], got {message.seed}")
    return Decoding(
        num_beams=checks.between("decoding.num_beams", message.num_beams, 1, 16)
        if given("num_beams")
        else None,
        max_new_tokens=checks.between("decoding.max_new_tokens", message.max_new_tokens, 1, 4096)
        if given("max_new_tokens")
        else None,
        temperature=checks.between("decoding.temperature", message.temperature, 0, 10)
        if given("temperature")
        else None,
        top_p=message.top_p if given("top_p") else None,
        seed=message.seed if given("seed") else None,
    )


def _labels(message: evaluator_pb.Labels) -> Labels:
    for index, one in enumerate(message.useful_passage_ids):
        size = len(one.encode())
        if not 1 <= size <= checks.MAX_ID_BYTES:
            raise InvalidField(
                f"labels.useful_passage_ids[{index}]",
                f"must be 1 to {checks.MAX_ID_BYTES} bytes, has {size}",
            )
    if message.useful_passage_ids and not message.has_useful:
        raise InvalidField("labels.has_useful", "must be true where useful passages are named")
    return Labels(
        useful=frozenset(message.useful_passage_ids) if message.has_useful else None,
        references=tuple(message.references),
        metric=_enum("labels.metric", message.metric, _METRICS, evaluator_pb.UtilityMetric.keys()),
    )


def _name(field: str, value: str) -> str:
    if len(value) * _BYTES_PER_CHARACTER > MAX_NAME_BYTES and (size := len(value.encode())) > MAX_NAME_BYTES:
        raise InvalidField(field, f"must be at most {MAX_NAME_BYTES} bytes, has {size}")
    if _CONTROL.search(value):
        raise InvalidField(field, "must not hold control characters")
    return value


def _enum(field: str, value: int, known: Mapping[int, T], names: Sequence[str]) -> T:
    if value not in known:
        raise InvalidField(field, f"must be one of {', '.join(names)}, got {value}")
    return known[value]
