"""Requests that make each method work as hard as its bounds allow, at any share of the largest size.

A shape maps a share in (0, 1] to a request that is well formed, or to those of one stream: texts are words, indices and weights are in their
ranges. Lists are as long as the contract allows at share 1, and texts as long as the method's largest request leaves
room for. A service may refuse a shape for its cost; at a small share it must take it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

from google.protobuf.message import Message

from evenmesh.common.v1 import common_pb2 as common
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator
from evenmesh.generator.v1 import generator_service_pb2 as generator
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator
from evenmesh.reranker.v1 import feedback_service_pb2 as feedback
from evenmesh.reranker.v1 import reranker_service_pb2 as reranker
from evenmesh.retriever.v1 import collection_service_pb2 as collections
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever

COLLECTION: Final = "demo"
Shape = Callable[[float], Message | list[Message]]
_MIB: Final = 2**20
_numbers: Final[Iterator[int]] = count()


def text(size: int) -> str:
    """Return words that no other text has, together of at most ``size`` characters."""
    if size < 12:
        return f"w{next(_numbers):x}"[-max(1, size) :]
    return " ".join(f"w{next(_numbers):09x}" for _ in range(size // 11))


def question() -> str:
    """Return a question that every model reads whole."""
    return "where is it " * 12


def part(most: int, share: float, least: int = 1) -> int:
    """Return ``share`` of the largest number of something."""
    return max(least, int(most * share))


def passages(number: int, total: int) -> list[common.Passage]:
    """Return passages with texts of ``total`` characters together."""
    each = max(1, min(65_536, total // number - 32))
    return [
        common.Passage(id=f"p{at}", text=text(each), attributes={"provider": f"q{at % 50}"})
        for at in range(number)
    ]


def even(number: int) -> list[float]:
    """Return equal shares that sum to 1."""
    return [1 / number] * number


def _rankings(total: int, depth: int, items: int) -> common.Rankings:
    """Return rankings of the same items, each turned by one against the one before."""
    indices = [(row + at) % items for row in range(max(1, total // depth)) for at in range(depth)]
    return common.Rankings(depth=depth, indices=indices)


def _exposure(share: float) -> Message:
    depth = 1000
    return evaluator.EvaluateExposureRequest(
        rankings=_rankings(part(1_000_000, share, depth), depth, 1000),
        usefulness=[float(at % 2) for at in range(1000)],
        groups=[f"g{at % 50}" for at in range(1000)],
        k=depth,
    )


def _many_items(share: float) -> Message:
    items = part(100_000, share)
    return evaluator.EvaluateExposureRequest(
        exposure=[1 / items] * items,
        usefulness=[float(at % 2) for at in range(items)],
        groups=[f"g{at}" for at in range(items)],
        k=1,
    )


def _utility(metric: evaluator.UtilityMetric.ValueType, number: int) -> Shape:
    def build(share: float) -> Message:
        items, size = (part(1000, share), 1500) if number == 1000 else (number, part(16_384, share, 16))
        return evaluator.EvaluateUtilityRequest(
            answers=[text(size) for _ in range(items)],
            references=[text(size) for _ in range(items)],
            metric=metric,
            weights=even(items),
        )

    return build


def _systems(queries: int) -> Shape:
    return lambda share: evaluator.CompareSystemsRequest(
        first=[float(at % 7) for at in range(queries)],
        second=[float(at % 5) for at in range(queries)],
        bootstrap=evaluator.Bootstrap(num_resamples=part(100_000, share, 100)),
    )


def _tradeoff(points: int, method: evaluator.IntervalMethod.ValueType) -> Shape:
    return lambda share: evaluator.EvaluateTradeoffRequest(
        points=[
            evaluator.TradeoffPoint(query_id=f"q{at}", x=(at % 101) / 100, y=(at % 17) / 16)
            for at in range(points)
        ],
        bootstrap=evaluator.Bootstrap(num_resamples=part(100_000, share, 100), method=method),
    )


def _rankings_with_grades(share: float) -> Message:
    return evaluator.EvaluateRankingsRequest(
        queries=[
            evaluator.EvaluateRankingsRequest.Query(
                query_id=f"q{query}",
                ranking=[f"{at:x}" for at in range(1000)],
                grades={f"{at:x}": at % 4 for at in range(1000)},
            )
            for query in range(part(1000, share))
        ],
        k=1000,
    )


def _distribution(groups: int) -> evaluator.Distribution:
    return evaluator.Distribution(shares=even(groups))


def _attributes(number: int, groups: int) -> dict[str, evaluator.AttributeTarget]:
    return {
        f"a{at}": evaluator.AttributeTarget(
            gold=_distribution(groups), divergence=evaluator.AttributeTarget.DIVERGENCE_RNOD
        )
        for at in range(number)
    }


def _ranked_list(share: float) -> Message:
    groups, attributes = 50, 16
    document = evaluator.EvaluateRankedListRequest.Document
    return evaluator.EvaluateRankedListRequest(
        documents=[
            document(gain=1, membership={f"a{one}": _distribution(groups) for one in range(attributes)})
            for _ in range(part(1000, share))
        ],
        attributes=_attributes(attributes, groups),
        max_gain=1,
        utility=evaluator.EvaluateRankedListRequest.UTILITY_MODEL_ERR,
    )


def _conversation(turns: int, nuggets: int, groups: int) -> Shape:
    def build(share: float) -> Message:
        words = count(1)
        turn = [
            evaluator.ConversationTurn(
                nuggets=[
                    evaluator.Nugget(
                        word_count=next(words),
                        gain=1,
                        entity=text(8),
                        membership={"a0": _distribution(groups)},
                    )
                    for _ in range(nuggets)
                ]
            )
            for _ in range(part(turns, share))
        ]
        return evaluator.EvaluateConversationRequest(
            turns=turn,
            attributes=_attributes(1, groups),
            method=evaluator.EvaluateConversationRequest.METHOD_CUMULATIVE,
            patience=1_000_000,
        )

    return build


def _vote(similarity: str, size: int) -> Shape:
    return lambda share: evaluator.VoteRequest(
        answers=[text(size) for _ in range(part(1000, share, 2))],
        similarities=[similarity],
        pooling=evaluator.VoteRequest.POOLING_PLURALITY,
    )


def _votes(share: float) -> list[Message]:
    number = part(1000, share, 2)
    start = evaluator.VoteAnytimeRequest.Start(
        vote=evaluator.VoteRequest(similarities=["token_f1"]), num_answers=number
    )
    answer = evaluator.VoteAnytimeRequest.Answer
    return [
        evaluator.VoteAnytimeRequest(start=start),
        *(evaluator.VoteAnytimeRequest(answer=answer(index=at, text=text(100))) for at in range(number)),
    ]


def _search(questions: int, answers: int) -> Shape:
    def build(share: float) -> Message:
        question = evaluator.SearchVoteWeightsRequest.Question
        return evaluator.SearchVoteWeightsRequest(
            questions=[
                question(
                    answers=[text(24) for _ in range(answers)],
                    # Another is right each time: the search ends early where one is always right.
                    correctness=[float(at == right % answers) for at in range(answers)],
                )
                for right in range(part(questions, share))
            ],
            vote=evaluator.VoteRequest(similarities=["token_f1", "containment_em"]),
        )

    return build


def _retrievers(share: float) -> Message:
    question = evaluator.CompareRetrieversRequest.Question
    return evaluator.CompareRetrieversRequest(
        retrievers=[f"r{at}" for at in range(20)],
        questions=[
            question(
                answers=[text(24) for _ in range(20)],
                references=[text(24) for _ in range(20)],
                contexts=[text(100) for _ in range(20)],
            )
            for _ in range(part(4000, share))
        ],
    )


def _observation(share: float) -> Message:
    number = part(1000, share)
    return evaluator.ObserveRequest(
        observation=evaluator.Observation(
            id=text(30),
            run_id="heavy",
            query_id=text(30),
            question=text(1000),
            candidates=[
                evaluator.Candidate(passage_id=f"p{at}", provider=f"q{at % 50}", text=text(3000))
                for at in range(number)
            ],
            shown=_rankings(number * number, number, number),
            answers=[evaluator.SampledAnswer(text=text(1000), samples=[at]) for at in range(number)],
            labels=evaluator.Labels(
                useful_passage_ids=[f"p{at}" for at in range(0, number, 2)],
                has_useful=True,
                references=[text(1000) for _ in range(number)],
                metric=evaluator.UTILITY_METRIC_ROUGE_L,
            ),
        ),
        want_report=True,
    )


def _generation(beams: int) -> Shape:
    """One answer that no end token ends early: a high temperature, or beams that go on."""
    return lambda share: generator.GenerateRequest(
        question=question(),
        passages=passages(part(100, share), part(120_000, share)),
        decoding=generator.Decoding(
            num_beams=beams, max_new_tokens=part(511, share), temperature=10 if beams == 1 else 0
        ),
    )


def _generations(number: int, depth: int, temperature: float) -> Shape:
    return lambda share: generator.GenerateBatchRequest(
        requests=[
            generator.GenerateRequest(
                question=question(),
                passages=passages(depth, 600 * depth),
                decoding=generator.Decoding(num_beams=1, max_new_tokens=64, temperature=temperature),
            )
            for _ in range(part(number, share))
        ]
    )


def _relevance(size: int) -> Shape:
    return lambda share: generator.ScoreRelevanceRequest(
        question=question(), passages=passages(part(1000, share), part(1000, share) * size)
    )


def _rerank(name: str, size: int) -> Shape:
    return lambda share: reranker.RerankRequest(
        query=question(),
        passages=passages(part(1000, share), part(1000, share) * size),
        reranker=name,
    )


def _feedback(share: float) -> Message:
    return feedback.RecordFeedbackRequest(
        feedback=[
            feedback.Feedback(
                id=text(30),
                query=text(4000),
                passage_id="p0",
                agent=common.Agent(task_id="heavy", model_id="heavy"),
                usefulness=0.5,
                collection=COLLECTION,
                ranking=[f"p{at}" for at in range(200)],
            )
            for _ in range(part(1000, share))
        ]
    )


def _inline(name: str, rankings: int) -> Shape:
    return lambda share: retriever.RetrieveRequest(
        query=text(8000),
        candidates=retriever.InlineCandidates(
            passages=passages(part(1000, share), part(8 * _MIB - 100_000, share))
        ),
        retriever=name,
        depth=part(1000, share),
        k=part(1000, share),
        sampling=common.Sampling(alpha=1, num_rankings=part(rankings, share)),
        include_inclusion_probabilities=True,
    )


def _from_collection(name: str) -> Shape:
    return lambda share: retriever.RetrieveRequest(
        query=text(8000),
        collection=COLLECTION,
        retriever=name,
        k=part(1000, share),
        sampling=common.Sampling(alpha=1, num_rankings=part(1000, share)),
        whole_collection=True,
    )


def _texts(share: float) -> Message:
    number = part(256, share)
    size = min(65_536, part(8 * _MIB - 100_000, share) // number)
    return retriever.EmbedRequest(texts=[text(size) for _ in range(number)])


def _ingest(share: float) -> Message:
    return collections.IngestRequest(
        collection="heavy",
        passages=passages(part(1000, share), part(8 * _MIB - 80_000, share)),
        create_if_missing=True,
        last=True,
    )


def _ids(kind: type[collections.DeletePassagesRequest] | type[collections.GetPassagesRequest]) -> Shape:
    return lambda share: kind(
        collection=COLLECTION, passage_ids=[text(250) for _ in range(part(10_000, share))]
    )


def _ask(share: float) -> orchestrator.AskRequest:
    return orchestrator.AskRequest(
        question=question(),
        candidates=retriever.InlineCandidates(
            passages=passages(part(1000, share), part(8 * _MIB - 200_000, share))
        ),
        retriever="bm25",
        k=part(20, share),
        sampling=common.Sampling(alpha=1, num_rankings=part(100, share)),
        num_answers=part(10, share),
        skip_observation=True,
    )


def _labelled(share: float) -> orchestrator.AskRequest:
    request = _ask(share)
    request.skip_observation = False
    request.labels.metric = evaluator.UTILITY_METRIC_ROUGE_L
    request.labels.has_useful = True
    request.labels.useful_passage_ids.extend(f"u{at:0250d}" for at in range(part(10_000, share)))
    request.labels.references.extend(text(16_000) for _ in range(part(16, share)))
    return request


def _members(share: float) -> Message:
    request = orchestrator.AskRequest(question=question(), labels=_labelled(share).labels)
    request.ensemble.expressions.extend(["Lexical", "Lexical@2"])
    return request


def _audit(share: float) -> Message:
    ask = _ask(share)
    ask.ClearField("num_answers")
    ask.sampling.ClearField("alpha")
    ask.labels.has_useful = True
    ask.labels.useful_passage_ids.append("p0")
    return orchestrator.AuditRequest(ask=ask, alphas=[1 + at / 4 for at in range(part(16, share))])


def _converse(share: float) -> Message:
    return orchestrator.ConverseRequest(ask=_ask(share))


_EVALUATOR: Final = "/evenmesh.evaluator.v1.EvaluatorService/"
_GENERATOR: Final = "/evenmesh.generator.v1.GeneratorService/"
_ORCHESTRATOR: Final = "/evenmesh.orchestrator.v1.OrchestratorService/"
_RETRIEVER: Final = "/evenmesh.retriever.v1.RetrieverService/"
_COLLECTIONS: Final = "/evenmesh.retriever.v1.CollectionService/"

SHAPES: Final[dict[str, dict[str, Shape]]] = {
    f"{_EVALUATOR}EvaluateExposure": {"many rankings": _exposure, "many items": _many_items},
    f"{_EVALUATOR}EvaluateUtility": {
        f"{metric.removeprefix('UTILITY_METRIC_')} of {number}": _utility(
            evaluator.UtilityMetric.Value(metric), number
        )
        for metric in ("UTILITY_METRIC_TOKEN_F1", "UTILITY_METRIC_ROUGE_L", "UTILITY_METRIC_ACCURACY")
        for number in (1000, 100)
    },
    f"{_EVALUATOR}CompareSystems": {"many queries": _systems(100_000), "many resamples": _systems(1000)},
    f"{_EVALUATOR}EvaluateTradeoff": {
        "many points": _tradeoff(100_000, evaluator.INTERVAL_METHOD_PERCENTILE),
        "many resamples": _tradeoff(100, evaluator.INTERVAL_METHOD_BCA),
    },
    f"{_EVALUATOR}EvaluateRankings": {"full": _rankings_with_grades},
    f"{_EVALUATOR}EvaluateRankedList": {"full": _ranked_list},
    f"{_EVALUATOR}EvaluateConversation": {
        "many turns": _conversation(1000, 50, 10),
        "many groups": _conversation(800, 1, 1000),
    },
    f"{_EVALUATOR}Vote": {
        **{f"{name}, short": _vote(name, 100) for name in ("token_f1", "embedding_cosine")},
        **{f"{name}, long": _vote(name, 4000) for name in ("token_f1", "embedding_cosine")},
    },
    f"{_EVALUATOR}VoteAnytime": {"full": _votes},
    f"{_EVALUATOR}SearchVoteWeights": {
        "many questions": _search(10_000, 20),
        "many answers": _search(100, 50),
    },
    f"{_EVALUATOR}CompareRetrievers": {"full": _retrievers},
    f"{_EVALUATOR}Observe": {"full": _observation},
    f"{_GENERATOR}Generate": {"sampled": _generation(1), "16 beams": _generation(16)},
    f"{_GENERATOR}GenerateBatch": {
        "5 passages each": _generations(256, 5, 10),
        "20 passages each": _generations(256, 20, 10),
    },
    f"{_GENERATOR}ScoreRelevance": {"short passages": _relevance(500), "long passages": _relevance(8000)},
    "/evenmesh.reranker.v1.RerankerService/Rerank": {
        f"{name}, {kind} passages": _rerank(name, size)
        for name in ("rankrag", "cross-encoder")
        for kind, size in (("short", 500), ("long", 8000))
    },
    "/evenmesh.reranker.v1.FeedbackService/RecordFeedback": {"full": _feedback},
    f"{_RETRIEVER}Retrieve": {
        **{f"inline, {name}": _inline(name, 1000) for name in ("bm25", "dense", "hybrid")},
        **{f"collection, {name}": _from_collection(name) for name in ("bm25", "dense")},
    },
    f"{_RETRIEVER}Embed": {"full": _texts},
    f"{_COLLECTIONS}Ingest": {"full": _ingest},
    f"{_COLLECTIONS}DeletePassages": {"full": _ids(collections.DeletePassagesRequest)},
    f"{_COLLECTIONS}GetPassages": {"full": _ids(collections.GetPassagesRequest)},
    f"{_ORCHESTRATOR}Ask": {"full": _ask, "labelled": _labelled, "ensemble": _members},
    f"{_ORCHESTRATOR}Audit": {"full": _audit},
    f"{_ORCHESTRATOR}Converse": {"full": _converse},
}
"""Shapes by method and name."""
