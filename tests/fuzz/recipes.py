"""Requests that are nearly right: what passes the first checks, and reaches the code behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from google.protobuf.message import Message

from evenmesh.common.v1 import common_pb2 as common
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator
from evenmesh.generator.v1 import generator_service_pb2 as generator
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator
from evenmesh.reranker.v1 import feedback_service_pb2 as feedback
from evenmesh.reranker.v1 import reranker_service_pb2 as reranker
from evenmesh.retriever.v1 import collection_service_pb2 as collections
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever
from tests.fuzz.mesh import COLLECTION
from tests.support import tiny_models

_WORDS: Final = ("water", "boils", "river", "Hamlet", "", "prince", "{{ x }}", "100 °C", "😀", "True")
_IDS: Final = ("a", "b", "run-1", "q1", "x" * 128)
_AGENTS: Final = (("qa", "t5"), ("qa", ""), ("", "llama"), ("summ", "bart"))


def requests(name: str, rng: Random, versions: Sequence[str] = ()) -> Sequence[Message]:
    """What a caller of ``Service.Method`` might send: one request, or a stream of them.

    Args:
        name: of the method.
        rng: draws.
        versions: of models that are there.
    """
    made = _RECIPES[name](rng)
    if isinstance(made, feedback.PromoteModelRequest) and versions and rng.random() < 0.5:
        made.version = rng.choice(versions)
    return made if isinstance(made, list) else [made]


def _said(rng: Random, most: int = 6) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(1 + rng.randrange(most))).strip() or "what"


def _question(rng: Random) -> str:
    return rng.choice(tiny_models.SENTENCES) if rng.random() < 0.7 else _said(rng)


def _passages(rng: Random, most: int = 5) -> list[common.Passage]:
    return [
        common.Passage(
            id=f"p{place}",
            title=rng.choice(("", "River")),
            text=_said(rng, 12),
            attributes={"provider": rng.choice("AB")} if rng.random() < 0.5 else {},
        )
        for place in range(1 + rng.randrange(most))
    ]


def _agent(rng: Random) -> common.Agent:
    task, model = rng.choice(_AGENTS)
    return common.Agent(task_id=task, model_id=model)


def _maybe(rng: Random, message: Message, field: str, value: Any) -> None:
    if rng.random() < 0.4:
        setattr(message, field, value)


def _sampling(rng: Random) -> common.Sampling:
    sampling = common.Sampling()
    _maybe(rng, sampling, "alpha", rng.choice((0.0, 0.5, 1.0, 4.0, 100.0)))
    _maybe(rng, sampling, "num_rankings", rng.choice((1, 2, 5, 20)))
    _maybe(rng, sampling, "seed", rng.choice((0, 7, 2**63 - 1)))
    return sampling


def _filter(rng: Random) -> retriever.Filter:
    conditions = []
    for _ in range(rng.randrange(3)):
        condition = retriever.Condition(attribute=rng.choice(("provider", "year", "date", "nothing")))
        match rng.randrange(3):
            case 0:
                condition.any_of.values.extend(rng.sample(("A", "B", "1991", ""), 2))
            case 1:
                condition.text_range.to = rng.choice(("2020-01-05", "B", ""))
            case _:
                condition.number_range.to = rng.choice((1995.0, -1.0, 1e308))
        conditions.append(condition)
    return retriever.Filter(conditions=conditions)


def _retrieve(rng: Random) -> Message:
    request = retriever.RetrieveRequest(query=_question(rng))
    match rng.randrange(4):
        case 0:
            request.candidates.passages.extend(_passages(rng))
        case 1:
            request.web = "nowhere"
        case _:
            request.collection = rng.choice((COLLECTION, COLLECTION, COLLECTION, "nowhere"))
    _maybe(
        rng,
        request,
        "retriever",
        rng.choice(("bm25", "bm25-lucene", "bm25-plus", "bm25-l", "dense", "hybrid")),
    )
    _maybe(rng, request, "depth", rng.choice((1, 3, 10, 1000)))
    _maybe(rng, request, "k", rng.choice((1, 2, 5)))
    if rng.random() < 0.5:
        request.sampling.CopyFrom(_sampling(rng))
    _maybe(rng, request, "include_inclusion_probabilities", True)
    _maybe(rng, request, "stream_id", rng.choice(_IDS))
    if rng.random() < 0.4:
        request.filter.CopyFrom(_filter(rng))
    if rng.random() < 0.2:
        request.whole_collection = True
    return request


def _embed(rng: Random) -> Message:
    request = retriever.EmbedRequest(texts=[_question(rng) for _ in range(rng.choice((0, 1, 3, 9)))])
    _maybe(rng, request, "kind", rng.choice((1, 2, 7)))
    _maybe(rng, request, "model", rng.choice(("", "nowhere", "all-MiniLM-L6-v2")))
    _maybe(rng, request, "dimension", rng.choice((1, 384, 2**32 - 1)))
    return request


def _name(rng: Random) -> str:
    return rng.choice(("c0", "c1", "c2", "c3", COLLECTION))


def _create(rng: Random) -> Message:
    request = collections.CreateCollectionRequest(name=_name(rng), description=_said(rng))
    _maybe(rng, request.lexical, "analyzer", rng.choice(("english", "unicode", "whitespace")))
    _maybe(rng, request.lexical, "k1", rng.choice((0.0, 1.5, 10.0)))
    _maybe(rng, request.lexical, "b", rng.choice((0.0, 0.75, 1.0)))
    return request


def _ingest(rng: Random) -> list[Message]:
    parts = [
        collections.IngestRequest(
            passages=[
                common.Passage(id=f"{part}-{one.id}", text=one.text, title=one.title)
                for one in _passages(rng, 3)
            ]
        )
        for part in range(1 + rng.randrange(2))
    ]
    parts[0].collection = rng.choice(("c0", "c1", "c2"))
    parts[0].create_if_missing = rng.random() < 0.8
    parts[-1].last = rng.random() < 0.9
    return list(parts)


def _ids(rng: Random) -> list[str]:
    return [rng.choice(("p1", "p2", "0-p0", "nothing")) for _ in range(1 + rng.randrange(4))]


def _rerank(rng: Random) -> Message:
    request = reranker.RerankRequest(query=_question(rng), passages=_passages(rng), agent=_agent(rng))
    _maybe(rng, request, "top_k", 1)
    _maybe(rng, request, "reranker", rng.choice(("cross-encoder", "rankrag", "none", "other")))
    _maybe(rng, request, "tolerance", rng.choice((0.0, 0.3, 1.0)))
    return request


def _feedback(rng: Random) -> Message:
    return feedback.RecordFeedbackRequest(
        feedback=[
            feedback.Feedback(
                id=f"f{rng.randrange(50)}",
                query=_question(rng),
                passage_id=rng.choice(("p1", "p2")),
                agent=_agent(rng),
                usefulness=rng.choice((0.0, 0.5, 1.0)),
                model_version=rng.choice(("", "v1")),
                collection=rng.choice(("", COLLECTION)),
                ranking=rng.choice(((), ("p1", "p2"), ("p2",))),
            )
            for _ in range(1 + rng.randrange(3))
        ]
    )


def _decoding(rng: Random) -> generator.Decoding:
    decoding = generator.Decoding(max_new_tokens=rng.choice((1, 2, 4)))
    _maybe(rng, decoding, "num_beams", rng.choice((1, 2, 4)))
    _maybe(rng, decoding, "temperature", rng.choice((0.0, 1.0, 10.0)))
    _maybe(rng, decoding, "top_p", rng.choice((0.1, 1.0)))
    _maybe(rng, decoding, "seed", rng.choice((0, 2**63 - 1)))
    decoding.stop.extend(rng.choice(((), ("\n",), ("a", "the"))))
    return decoding


_TEMPLATES: Final = (
    "ra-x",
    "rankrag-answer",
    "fusion-in-decoder",
    "question",
    "lamp-1",
    "lamp-4",
    "rankrag-answer-conversation",
)


def _turns(rng: Random) -> list[generator.Turn]:
    return [generator.Turn(question=_question(rng), answer=_said(rng)) for _ in range(rng.randrange(3))]


def _generate(rng: Random) -> generator.GenerateRequest:
    request = generator.GenerateRequest(
        question=_question(rng),
        passages=_passages(rng, 3) if rng.random() < 0.8 else [],
        decoding=_decoding(rng),
        augmentation=rng.choice(list(generator.Augmentation.values())),
    )
    _maybe(rng, request, "model", rng.choice(("tiny", "judge", "other")))
    _maybe(rng, request, "template", rng.choice(_TEMPLATES))
    if rng.random() < 0.3:
        request.template = "rankrag-answer-conversation"
        request.turns.extend(_turns(rng))
    return request


def _score(rng: Random) -> Message:
    request = generator.ScoreRelevanceRequest(
        question=_question(rng),
        passages=_passages(rng, 3),
        model="judge",
        normalization=rng.choice(list(generator.ScoreRelevanceRequest.Normalization.values())),
    )
    _maybe(rng, request, "template", "rankrag-context-ranking-conversation")
    if request.template:
        request.turns.extend(_turns(rng))
    _maybe(rng, request, "top_k", 1)
    if request.HasField("top_k"):
        _maybe(rng, request, "tolerance", rng.choice((0.0, 0.2)))
    return request


def _rankings(rng: Random, items: int, depth: int, count: int) -> common.Rankings:
    rows = [rng.sample(range(items), depth) for _ in range(count)]
    return common.Rankings(depth=depth, indices=[index for row in rows for index in row])


def _exposure(rng: Random) -> Message:
    items = 1 + rng.randrange(5)
    request = evaluator.EvaluateExposureRequest(
        usefulness=[rng.choice((0.0, 1.0, 2.0)) for _ in range(items)], k=1 + rng.randrange(items)
    )
    count = 1 + rng.randrange(3)
    if rng.random() < 0.8:
        request.rankings.CopyFrom(_rankings(rng, items, 1 + rng.randrange(items), count))
        if rng.random() < 0.3:
            request.probabilities.extend([1 / count] * count)
    else:
        request.exposure.extend(rng.random() for _ in range(items))
    match rng.randrange(5):
        case 0:
            request.browsing.top_k = 1 + rng.randrange(3)
        case 1:
            request.browsing.rbp_patience = rng.choice((0.0, 0.8, 1 - 2**-53))
        case 2:
            request.browsing.reciprocal_rank = True
        case 3:
            request.browsing.position_weights.weights.extend((1.0, 0.5, 0.0))
    if rng.random() < 0.4:
        request.groups.extend(rng.choice(("A", "B", "")) for _ in range(items))
    return request


def _utility(rng: Random) -> Message:
    count = 1 + rng.randrange(4)
    request = evaluator.EvaluateUtilityRequest(
        answers=[_said(rng) for _ in range(count)],
        references=[_said(rng) for _ in range(1 + rng.randrange(2))],
        metric=rng.choice(list(evaluator.UtilityMetric.values())),
    )
    if rng.random() < 0.3:
        request.weights.extend([1 / count] * count)
    _maybe(rng, request, "u_max", rng.choice((1.0, 5e-324, 0.5)))
    _maybe(rng, request, "baseline_answer", _said(rng))
    return request


def _bootstrap(rng: Random) -> evaluator.Bootstrap:
    bootstrap = evaluator.Bootstrap(
        method=rng.choice(list(evaluator.IntervalMethod.values())), num_resamples=rng.choice((100, 101))
    )
    _maybe(rng, bootstrap, "level", rng.choice((0.5, 0.95, 5e-324, 1 - 2**-53)))
    _maybe(rng, bootstrap, "seed", rng.choice((0, 2**63 - 1)))
    return bootstrap


def _tradeoff(rng: Random) -> Message:
    request = evaluator.EvaluateTradeoffRequest(bootstrap=_bootstrap(rng))
    for _ in range(rng.randrange(8)):
        point = request.points.add(query_id=rng.choice(("q1", "q2", "q3")))
        _maybe(rng, point, "x", rng.choice((0.0, 0.2, 0.4, 1.0, rng.random())))
        point.y = rng.choice((0.0, 1.0, 1e300, rng.random()))
        _maybe(rng, point, "baseline", rng.choice((0.0, 1.0, rng.random())))
    _maybe(rng, request, "baseline", rng.random())
    return request


def _eval_rankings(rng: Random) -> Message:
    return evaluator.EvaluateRankingsRequest(
        k=rng.choice((1, 2, 10, 1000)),
        queries=[
            evaluator.EvaluateRankingsRequest.Query(
                query_id=f"q{place}",
                ranking=rng.sample(("a", "b", "c", "d"), rng.randrange(5)),
                grades={one: rng.choice((0, 1, 3, 1000)) for one in rng.sample("abcd", rng.randrange(4))},
            )
            for place in range(rng.randrange(4))
        ],
    )


def _shares(rng: Random, groups: int) -> evaluator.Distribution:
    place = rng.randrange(groups)
    even = [1 / groups] * groups
    return evaluator.Distribution(
        shares=even if rng.random() < 0.5 else [float(at == place) for at in range(groups)]
    )


def _targets(rng: Random) -> dict[str, evaluator.AttributeTarget]:
    return {
        name: evaluator.AttributeTarget(
            gold=_shares(rng, 3), divergence=rng.choice(list(evaluator.AttributeTarget.Divergence.values()))
        )
        for name in rng.sample(("RATINGS", "ORIGIN"), 1 + rng.randrange(2))
    }


def _ranked_list(rng: Random) -> Message:
    targets = _targets(rng)
    request = evaluator.EvaluateRankedListRequest(
        attributes=targets,
        max_gain=rng.choice((1.0, 2.0, 1000.0)),
        utility=rng.choice(list(evaluator.EvaluateRankedListRequest.UtilityModel.values())),
    )
    for _ in range(rng.randrange(4)):
        request.documents.add(
            gain=rng.choice((0.0, 0.5, 1.0)), membership={name: _shares(rng, 3) for name in targets}
        )
    if rng.random() < 0.4:
        for name in (*targets, "utility"):
            request.weights[name] = rng.choice((0.0, 1.0, 1e308))
    return request


_TRANSCRIPT: Final = """##### M002
### U1
Please list up sci-fi movies
### S1 o
Back to the Future: https://example.org/1
#L2
#RATINGS: (0,0,1)
#ORIGIN: (1/3,1/3,1/3)
### U2
More
### S2
No
"""


def _conversation(rng: Random) -> evaluator.EvaluateConversationRequest:
    targets = _targets(rng)
    request = evaluator.EvaluateConversationRequest(
        attributes=targets,
        method=rng.choice(list(evaluator.EvaluateConversationRequest.Method.values())),
        irrelevant_turns=rng.choice(list(evaluator.EvaluateConversationRequest.IrrelevantTurns.values())),
        turn_weights=rng.choice(list(evaluator.EvaluateConversationRequest.TurnWeights.values())),
    )
    if rng.random() < 0.4:
        for name in targets:
            request.attribute_weights[name] = rng.choice((0.0, 1.0, 1 / len(targets)))
    _maybe(rng, request, "patience", rng.choice((1, 1250, 1_000_000)))
    _maybe(rng, request, "alpha", rng.random())
    if rng.random() < 0.4:
        lines = _TRANSCRIPT.splitlines(keepends=True)
        for _ in range(rng.choice((0, 1, 2))):
            at = rng.randrange(len(lines))
            odd = (
                "",
                "### U9\n",
                "#L1\n",
                f"#L{'9' * 5000}\n",
                "#ORIGIN: (1/0)\n",
                "#ORIGIN: (1e999999999,1)\n",
                "#L²\n",
            )
            lines[at] = rng.choice(odd)
        request.transcript = "".join(lines)
        return request
    words = 0
    for _ in range(rng.randrange(4)):
        turn = request.turns.add()
        for _ in range(rng.randrange(3)):
            words += 1 + rng.randrange(9)
            turn.nuggets.add(
                word_count=words,
                gain=rng.choice((0.0, 0.5, 1.0)),
                membership={name: _shares(rng, 3) for name in targets},
                entity=rng.choice(("", "e1", "e2")),
            )
    return request


def _vote(rng: Random, answers: int | None = None) -> evaluator.VoteRequest:
    count = 2 + rng.randrange(4) if answers is None else answers
    names = rng.sample(
        ("token_f1", "exact_match", "rouge_l", "embedding_cosine", "nli", "other"), 1 + rng.randrange(2)
    )
    request = evaluator.VoteRequest(
        question=_question(rng),
        answers=[_said(rng, 3) for _ in range(count)],
        similarities=names if rng.random() < 0.6 else [],
        pooling=rng.choice(list(evaluator.VoteRequest.Pooling.values())),
        drop_filtered=rng.random() < 0.3,
    )
    if rng.random() < 0.4:
        request.retriever_weights.extend(rng.choice((0.0, 0.1, 0.6, 1.0)) for _ in range(count))
    if request.similarities and rng.random() < 0.4:
        request.similarity_weights.extend(rng.choice((0.0, 0.5, 1.0)) for _ in request.similarities)
    _maybe(rng, request, "threshold", rng.random())
    _maybe(rng, request, "retriever_filter", rng.random())
    return request


def _anytime(rng: Random) -> list[Message]:
    count = 2 + rng.randrange(3)
    start = _vote(rng, 0)
    if rng.random() < 0.3:
        start.retriever_weights.extend([0.5] * count)
    else:
        del start.retriever_weights[:]
    sent: list[Message] = [
        evaluator.VoteAnytimeRequest(start=evaluator.VoteAnytimeRequest.Start(vote=start, num_answers=count))
    ]
    for index in rng.sample(range(count), rng.randrange(count + 1)):
        answer = evaluator.VoteAnytimeRequest.Answer(
            index=index, text=_said(rng, 3), missing=rng.random() < 0.2
        )
        sent.append(evaluator.VoteAnytimeRequest(answer=answer))
    return sent


def _search(rng: Random) -> Message:
    count = 2 + rng.randrange(2)
    request = evaluator.SearchVoteWeightsRequest(vote=_vote(rng, 0))
    del request.vote.similarity_weights[:]
    for _ in range(1 + rng.randrange(3)):
        request.questions.add(
            question=_question(rng),
            answers=[_said(rng, 3) for _ in range(count)],
            correctness=[rng.choice((0.0, 1.0, 0.5)) for _ in range(count)],
        )
    _maybe(rng, request, "max_weight", rng.choice((0.6, 1.0, 5e-324)))
    return request


def _retrievers(rng: Random) -> Message:
    count = 2 + rng.randrange(3)
    contexts = rng.random() < 0.5
    return evaluator.CompareRetrieversRequest(
        retrievers=[f"r{place}" for place in range(count)],
        questions=[
            evaluator.CompareRetrieversRequest.Question(
                answers=[_said(rng, 2) for _ in range(count)],
                references=[_said(rng, 2)],
                contexts=[_said(rng) for _ in range(count)] if contexts else [],
            )
            for _ in range(rng.randrange(4))
        ],
    )


def _systems(rng: Random) -> Message:
    count = rng.randrange(6)
    values = (0.0, 1.0) if rng.random() < 0.5 else (0.5, 1e300, -1e300, 0.1)
    return evaluator.CompareSystemsRequest(
        first=[rng.choice(values) for _ in range(count)],
        second=[rng.choice(values) for _ in range(count)],
        bootstrap=_bootstrap(rng),
    )


def _observation(rng: Random) -> evaluator.Observation:
    items, count = 1 + rng.randrange(4), 1 + rng.randrange(3)
    observation = evaluator.Observation(
        id=f"o{rng.randrange(200)}",
        run_id=rng.choice(("run-1", "run-2")),
        query_id=rng.choice(("q1", "q2")),
        question=_question(rng),
        collection=COLLECTION,
        retriever="bm25",
        reranker="none",
        generator="tiny",
        candidates=[
            evaluator.Candidate(passage_id=f"p{place}", provider=rng.choice(("", "A", "B")), text=_said(rng))
            for place in range(items)
        ],
        shown=_rankings(rng, items, 1 + rng.randrange(items), count),
    )
    _maybe(rng, observation, "alpha", rng.choice((0.0, 1.0, 100.0)))
    _maybe(rng, observation, "seed", 7)
    if rng.random() < 0.7:
        observation.observed_at.seconds = rng.choice((0, 1_700_000_000, 253_402_300_799, -62_135_596_800))
    answered = rng.sample(range(count), rng.randrange(count + 1))
    for sample in answered:
        answer = observation.answers.add(text=_said(rng), samples=[sample])
        _maybe(rng, answer, "log_probability", -1.0)
    if answered:
        _maybe(rng, observation, "vote_winner", 0)
    if rng.random() < 0.6:
        observation.labels.has_useful = True
        observation.labels.useful_passage_ids.extend(rng.sample(("p0", "p1", "zz"), rng.randrange(3)))
    if rng.random() < 0.5:
        observation.labels.references.append(_said(rng))
        observation.labels.metric = rng.choice(list(evaluator.UtilityMetric.values()))
    if rng.random() < 0.4:
        observation.stage_times.add(
            stage=rng.choice((0, 1, 2, 3, 4)), duration_ms=rng.choice((0.0, 3.5, 1e300))
        )
    if rng.random() < 0.3:
        observation.degradations.add(stage=2, action=1, reason="UPSTREAM_UNAVAILABLE")
    if rng.random() < 0.2:
        observation.conversation.conversation_id = rng.choice(_IDS)
        observation.conversation.judged.CopyFrom(_conversation(rng))
    return observation


def _observe(rng: Random) -> list[Message]:
    return [
        evaluator.ObserveRequest(observation=_observation(rng), want_report=rng.random() < 0.2)
        for _ in range(1 + rng.randrange(3))
    ]


def _report(rng: Random) -> Message:
    request = evaluator.GetReportRequest(window=rng.choice(list(evaluator.Window.values())))
    if rng.random() < 0.7:
        request.run_id = rng.choice(("run-1", "run-2", "run-9"))
    else:
        request.configuration.collection = COLLECTION
        request.configuration.retriever = "bm25"
        request.configuration.reranker = "none"
        request.configuration.generator = "tiny"
        _maybe(rng, request.configuration, "alpha", 1.0)
    return request


def _statement(rng: Random) -> Message:
    request = evaluator.GetExposureStatementRequest(provider=rng.choice(("A", "B", *_IDS)))
    for name, values in (
        ("first_day", ("2026-11-01", "0001-01-01", "yesterday", "2026-02-30")),
        ("last_day", ("2026-11-30", "9999-12-31", "2026-11-1")),
        ("nonce", ("n-1", "\0", "x" * 65)),
    ):
        if rng.random() < 0.3:
            setattr(request, name, rng.choice(values))
    return request


def _balance(rng: Random) -> Message:
    request = evaluator.GetExposureBalanceRequest(collection=rng.choice((COLLECTION, "", "x")))
    _maybe(rng, request, "half_life_days", rng.choice((0.01, 30.0, 0.0, float("nan"), 1e300)))
    return request


def _page(kind: Any, tokens: Sequence[str]) -> Callable[[Random], Message]:
    def page(rng: Random) -> Message:
        request: Message = kind()
        _maybe(rng, request, "page_size", rng.choice((1, 100, 1000)))
        _maybe(rng, request, "page_token", rng.choice(tokens))
        return request

    return page


_EXPRESSIONS: Final = (
    "Lexical@2",
    "Lexical@RR@1",
    "Lexical@2&Other",
    "PK",
    "ReFree",
    "Both@CP",
    "Nowhere",
    "(Lexical&Other)@RR@2",
    "Lexical@0",
    "a&",
)


def _ask(rng: Random) -> orchestrator.AskRequest:
    request = orchestrator.AskRequest(question=_question(rng), decoding=_decoding(rng))
    roll = rng.random()
    if roll < 0.25:
        request.candidates.passages.extend(_passages(rng))
    elif roll < 0.5:
        request.expression = rng.choice(_EXPRESSIONS)
    elif roll < 0.6:
        request.ensemble.name = "pair"
    elif roll < 0.65:
        request.ensemble.expressions.extend(rng.sample(_EXPRESSIONS, 2))
    else:
        _maybe(rng, request, "collection", rng.choice((COLLECTION, "nowhere")))
        _maybe(rng, request, "retriever", rng.choice(("bm25", "other")))
        _maybe(rng, request, "k", rng.choice((1, 3)))
        _maybe(rng, request, "rerank_depth", rng.choice((1, 5)))
    _maybe(rng, request, "reranker", rng.choice(("none", "cross-encoder", "rankrag", "other")))
    _maybe(rng, request, "model", rng.choice(("tiny", "judge")))
    _maybe(rng, request, "depth", rng.choice((1, 5, 20)))
    if rng.random() < 0.3 and not request.HasField("ensemble"):
        request.sampling.CopyFrom(_sampling(rng))
        _maybe(rng, request, "num_answers", rng.choice((0, 1)))
        request.sampling_stage = rng.choice(list(orchestrator.SamplingStage.values()))
    _maybe(rng, request, "augmentation", rng.choice(list(generator.Augmentation.values())))
    request.agent.CopyFrom(_agent(rng))
    _maybe(rng, request, "run_id", rng.choice(_IDS))
    _maybe(rng, request, "query_id", rng.choice(_IDS))
    _maybe(rng, request, "skip_observation", True)
    if rng.random() < 0.2:
        request.labels.has_useful = True
        request.labels.useful_passage_ids.append("p1")
        request.labels.references.append("water")
    if rng.random() < 0.2:
        request.filter.CopyFrom(_filter(rng))
    _maybe(rng, request, "search", _said(rng))
    if rng.random() < 0.2:
        request.turns.add(question=_said(rng), answer=_said(rng))
    if rng.random() < 0.2:
        request.template = rng.choice(_TEMPLATES)
    return request


def _audit(rng: Random) -> Message:
    ask = _ask(rng)
    ask.labels.has_useful = True
    ask.labels.useful_passage_ids.extend(("p1", "p4"))
    if rng.random() < 0.7:
        ask.labels.references.append("water")
    ask.ClearField("sampling")
    ask.sampling.num_rankings = rng.choice((1, 3))
    ask.decoding.num_beams = 1
    request = orchestrator.AuditRequest(ask=ask, alphas=rng.sample((0.0, 1.0, 8.0), 1 + rng.randrange(2)))
    _maybe(rng, request, "num_oracle", rng.choice((0, 2)))
    _maybe(rng, request, "until_width", rng.choice((0.5, 5e-324)))
    _maybe(rng, request, "level", rng.choice((0.95, 5e-324)))
    return request


def _converse(rng: Random) -> list[Message]:
    sent: list[Message] = []
    for _ in range(1 + rng.randrange(3)):
        ask = _ask(rng)
        ask.ClearField("ensemble")
        request = orchestrator.ConverseRequest(ask=ask)
        _maybe(rng, request, "timeout_ms", rng.choice((1, 20_000)))
        if rng.random() < 0.3:
            options = request.options
            options.history = rng.choice(list(orchestrator.ConversationOptions.History.values()))
            _maybe(rng, options, "history_turns", rng.choice((1, 100)))
            _maybe(rng, options, "template", "rankrag-answer-conversation")
            _maybe(rng, options, "patience", 10)
            _maybe(rng, options, "entity_attribute", "provider")
            if rng.random() < 0.6:
                options.targets.add(attribute="provider", groups=("A", "B"), shares=(0.5, 0.5))
        if rng.random() < 0.1:
            request.cancel = True
        sent.append(request)
    return sent


_RECIPES: Final[dict[str, Callable[[Random], Any]]] = {
    "RetrieverService.Retrieve": _retrieve,
    "RetrieverService.Embed": _embed,
    "RetrieverService.ListRetrievers": lambda _: retriever.ListRetrieversRequest(),
    "RetrieverService.ListSources": lambda _: retriever.ListSourcesRequest(),
    "CollectionService.CreateCollection": _create,
    "CollectionService.Ingest": _ingest,
    "CollectionService.DeletePassages": lambda rng: collections.DeletePassagesRequest(
        collection=_name(rng) if rng.random() < 0.5 else "c0", passage_ids=_ids(rng)
    ),
    "CollectionService.GetCollection": lambda rng: collections.GetCollectionRequest(name=_name(rng)),
    "CollectionService.ListCollections": lambda _: collections.ListCollectionsRequest(),
    "CollectionService.DeleteCollection": lambda rng: collections.DeleteCollectionRequest(
        name=rng.choice(("c0", "c1", "c2", "c3"))
    ),
    "CollectionService.ListPassages": lambda rng: collections.ListPassagesRequest(
        collection=_name(rng), id_prefix=rng.choice(("", "p", _said(rng), "x" * 300))
    ),
    "CollectionService.GetPassages": lambda rng: collections.GetPassagesRequest(
        collection=_name(rng), passage_ids=_ids(rng)
    ),
    "RerankerService.Rerank": _rerank,
    "FeedbackService.RecordFeedback": _feedback,
    "FeedbackService.ExportFeedback": lambda rng: feedback.ExportFeedbackRequest(
        agent=_agent(rng) if rng.random() < 0.5 else None, include_flagged=rng.random() < 0.5
    ),
    "FeedbackService.RegisterAgent": lambda rng: feedback.RegisterAgentRequest(
        agent=common.Agent(task_id=f"t{rng.randrange(20)}", model_id="m"), description=_said(rng)
    ),
    "FeedbackService.ListAgents": _page(feedback.ListAgentsRequest, ("", "1", "0", "MQ==", "-1", "9" * 30)),
    "FeedbackService.DeleteAgent": lambda rng: feedback.DeleteAgentRequest(agent=_agent(rng)),
    "FeedbackService.ListModels": lambda rng: feedback.ListModelsRequest(
        agent=_agent(rng) if rng.random() < 0.5 else None
    ),
    "FeedbackService.PromoteModel": lambda rng: feedback.PromoteModelRequest(
        version=rng.choice(("0123456789abcdef", "../x", "v1")), merge_agent_tokens=rng.random() < 0.3
    ),
    "FeedbackService.RollbackModel": lambda rng: feedback.RollbackModelRequest(
        agent=_agent(rng) if rng.random() < 0.5 else None
    ),
    "FeedbackService.GetTrainingStatus": lambda rng: feedback.GetTrainingStatusRequest(
        agent=_agent(rng) if rng.random() < 0.5 else None
    ),
    "GeneratorService.Generate": _generate,
    "GeneratorService.GenerateBatch": lambda rng: generator.GenerateBatchRequest(
        requests=[_generate(rng) for _ in range(1 + rng.randrange(3))]
    ),
    "GeneratorService.ScoreRelevance": _score,
    "GeneratorService.ListModels": lambda _: generator.ListModelsRequest(),
    "EvaluatorService.Observe": _observe,
    "EvaluatorService.EvaluateExposure": _exposure,
    "EvaluatorService.EvaluateUtility": _utility,
    "EvaluatorService.EvaluateTradeoff": _tradeoff,
    "EvaluatorService.EvaluateRankings": _eval_rankings,
    "EvaluatorService.EvaluateRankedList": _ranked_list,
    "EvaluatorService.EvaluateConversation": _conversation,
    "EvaluatorService.Vote": _vote,
    "EvaluatorService.VoteAnytime": _anytime,
    "EvaluatorService.SearchVoteWeights": _search,
    "EvaluatorService.CompareRetrievers": _retrievers,
    "EvaluatorService.CompareSystems": _systems,
    "EvaluatorService.GetReport": _report,
    "EvaluatorService.ListRuns": _page(evaluator.ListRunsRequest, ("", "1", "x", "MQ==", "9" * 30)),
    "EvaluatorService.ListConfigurations": _page(
        evaluator.ListConfigurationsRequest, ("", "1", "x", "9" * 30)
    ),
    "EvaluatorService.ListMeasurements": lambda rng: evaluator.ListMeasurementsRequest(
        run_id=rng.choice(("run-1", "run-2", "run-9"))
    ),
    "EvaluatorService.DeleteRun": lambda rng: evaluator.DeleteRunRequest(
        run_id=rng.choice(("run-1", "run-2", "run-9", "", "x" * 200))
    ),
    "EvaluatorService.GetObservation": lambda rng: evaluator.GetObservationRequest(
        observation_id=f"o{rng.randrange(200)}" if rng.random() < 0.8 else rng.choice(("", "x" * 200, "\n"))
    ),
    "EvaluatorService.GetExposureStatement": _statement,
    "EvaluatorService.GetExposureBalance": _balance,
    "EvaluatorService.ResetExposureBalance": lambda rng: evaluator.ResetExposureBalanceRequest(
        collection=rng.choice((COLLECTION, "", "x"))
    ),
    "OrchestratorService.Ask": _ask,
    "OrchestratorService.Audit": _audit,
    "OrchestratorService.Converse": _converse,
    "OrchestratorService.ListEnsembles": lambda _: orchestrator.ListEnsemblesRequest(),
}
