"""The computed RPCs of an evaluator process: the science to the last bit, bad input, models, load, and callers
that leave."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message

from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as pb_grpc
from evenmesh.wire.errors import MeshError, Overloaded, from_rpc_error
from evenmesh_core import ensemble, group_fairness
from evenmesh_core.exposure import exposure_metrics, group_exposure, system_exposure, top_k
from evenmesh_core.intervals import tradeoff_intervals
from evenmesh_core.proportions import paired_difference_interval
from evenmesh_core.ranking_metrics import ranking_metrics
from evenmesh_core.significance import mcnemar, paired_bootstrap
from evenmesh_core.text_metrics import token_f1
from evenmesh_core.utility import expected_utility, fairness_intervals, utility_gains
from tests.integration.test_evaluator_service import SERVICE, _failure, _running
from tests.unit.core.group_fairness.conftest import BING

Stub: TypeAlias = "pb_grpc.EvaluatorServiceAsyncStub"
_Answer = pb.VoteAnytimeRequest.Answer
_Start = pb.VoteAnytimeRequest.Start
_COUNTRIES = (58, 26.5, 2, 36.5, 23.5, 47.5, 19, 24)
_ANSWERS = ["Paris", "the city of Paris", "a banana", "Paris"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An evaluator that the tests of this file share."""
    with _running(tmp_path_factory.mktemp("home")) as process:
        yield process.address


@pytest.fixture
async def stub(address: str) -> AsyncIterator[Stub]:
    """A stub of the shared evaluator."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield pb_grpc.EvaluatorServiceStub(channel)


# --- to the last bit


@pytest.mark.parametrize("seed", [0, 1, 2])
async def test_exposure(stub: Stub, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, k = 12, 4
    rankings = np.array([rng.permutation(n)[:6] for _ in range(9)])
    grades = rng.integers(0, 3, n).astype(float)
    groups = [f"group {i % 3}" for i in range(n)]
    request = pb.EvaluateExposureRequest(
        rankings=common_pb2.Rankings(depth=6, indices=rankings.ravel().tolist()),
        usefulness=grades,
        k=k,
        groups=groups,
    )
    response = await stub.EvaluateExposure(request)
    expected = exposure_metrics(rankings, grades, k=k)
    assert list(response.exposure) == expected.exposure.tolist()
    assert list(response.target) == expected.target.tolist()
    for name in ("ee_d", "ee_r", "ee_l", "ee_d_norm", "ee_r_norm", "ee_d_bound"):
        assert getattr(response, name) == getattr(expected, name)
    summed = group_exposure(expected.exposure, expected.target, groups)
    assert [(g.name, g.exposure, g.target, g.ratio) for g in response.groups] == list(
        zip(summed.labels, summed.exposure, summed.target, summed.ratio, strict=True)
    )
    assert (response.worst_group_ratio, response.worst_group_difference) == (
        summed.worst_ratio,
        summed.worst_difference,
    )
    share = rng.dirichlet(np.ones(9))
    request.probabilities.extend(share)
    weighted = system_exposure(rankings[:, :k], n, top_k(k), probabilities=share)
    assert list((await stub.EvaluateExposure(request)).exposure) == weighted.tolist()


async def test_utility(stub: Stub) -> None:
    weights = [0.1, 0.2, 0.3, 0.05]
    response = await stub.EvaluateUtility(
        pb.EvaluateUtilityRequest(
            answers=_ANSWERS,
            references=["city of light", "Paris"],
            weights=weights,
            u_max=0.9,
            baseline_answer="city",
        )
    )
    utilities = [token_f1(answer, ["city of light", "Paris"]) for answer in _ANSWERS]
    assert list(response.utilities) == utilities
    assert response.expected_utility == expected_utility(utilities, weights)
    assert response.normalized_expected_utility == expected_utility(utilities, weights) / 0.9
    gains = utility_gains(utilities, token_f1("city", ["city of light", "Paris"]))
    assert list(response.gains) == gains.tolist()


@pytest.mark.parametrize(
    ("method", "name"),
    [(pb.INTERVAL_METHOD_BCA, "bca"), (pb.INTERVAL_METHOD_PERCENTILE, "percentile")],
    ids=["bca", "percentile"],
)
async def test_tradeoff(stub: Stub, method: pb.IntervalMethod.ValueType, name: str) -> None:
    rng = np.random.default_rng(5)
    queries = [f"q{i // 4}" for i in range(60)]
    x = rng.random(60)
    y = np.where(rng.random(60) < 0.1, math.nan, x / 2 + rng.random(60))
    points = [
        pb.TradeoffPoint(query_id=query, x=across, y=None if math.isnan(up) else up)
        for query, across, up in zip(queries, x.tolist(), y.tolist(), strict=True)
    ]
    response = await stub.EvaluateTradeoff(
        pb.EvaluateTradeoffRequest(
            points=points, bootstrap=pb.Bootstrap(method=method, num_resamples=300, seed=11), baseline=0.7
        )
    )
    expected = tradeoff_intervals(queries, x, y, method=name, num_resamples=300, rng=11)
    for wire, science in ((response.slope, expected.slope), (response.auc, expected.auc)):
        assert (wire.value, wire.low, wire.high) == (science.value, science.low, science.high)
    assert (response.intercept, response.num_undefined) == (expected.fit.intercept, expected.fit.undefined)
    levels = fairness_intervals(x, y, 0.7)
    assert [one.value for one in response.fairness_intervals] == levels.values.tolist()
    assert [one.count for one in response.fairness_intervals] == levels.counts.tolist()


async def test_rankings(stub: Stub) -> None:
    rng = np.random.default_rng(6)
    rankings = {f"q{q}": [f"p{p}" for p in rng.permutation(30)[:12]] for q in range(20)}
    grades = {f"q{q}": {f"p{p}": int(p) % 4 for p in rng.permutation(30)[:8]} for q in range(20)}
    response = await stub.EvaluateRankings(
        pb.EvaluateRankingsRequest(
            queries=[
                pb.EvaluateRankingsRequest.Query(query_id=name, ranking=ranking, grades=grades[name])
                for name, ranking in rankings.items()
            ],
            k=10,
        )
    )
    expected = ranking_metrics(rankings, grades, k=10)
    for name in ("ndcg", "reciprocal_rank", "recall", "precision"):
        assert [getattr(one, name) for one in response.queries] == getattr(expected, name).tolist()
        assert getattr(response, name).mean == pytest.approx(expected.means()[name].mean)


async def test_ranked_list(stub: Stub) -> None:
    shares = [[0.2, 0.8], [0.5, 0.5], [1.0, 0.0]]
    gains = [1.0, 0.0, 3.0]
    request = pb.EvaluateRankedListRequest(
        documents=[
            pb.EvaluateRankedListRequest.Document(gain=gain, membership={"g": pb.Distribution(shares=share)})
            for gain, share in zip(gains, shares, strict=True)
        ],
        attributes={
            "g": pb.AttributeTarget(
                gold=pb.Distribution(shares=[0.3, 0.7]), divergence=pb.AttributeTarget.DIVERGENCE_JSD
            )
        },
        max_gain=4,
        weights={"g": 0.25, "utility": 0.75},
    )
    response = await stub.EvaluateRankedList(request)
    expected = group_fairness.ranked_list(
        gains,
        {"g": shares},
        {"g": group_fairness.Attribute([0.3, 0.7], "jsd")},
        max_gain=4,
        weights={"g": 0.25, "utility": 0.75},
    )
    assert (response.score, response.relevance) == (expected.score, expected.relevance)
    assert dict(response.group_fairness) == expected.group_fairness
    assert list(response.abandonment) == expected.abandonment.tolist()


async def test_the_papers_conversation_from_its_transcript(stub: Stub) -> None:
    gold = [share / 237 for share in _COUNTRIES]
    response = await stub.EvaluateConversation(
        pb.EvaluateConversationRequest(
            transcript=BING,
            attributes={
                "RATINGS": pb.AttributeTarget(gold=pb.Distribution(shares=[1 / 4] * 4)),
                "ORIGIN": pb.AttributeTarget(
                    gold=pb.Distribution(shares=gold), divergence=pb.AttributeTarget.DIVERGENCE_JSD
                ),
            },
        )
    )
    expected = group_fairness.conversation(
        group_fairness.parse_transcripts(BING)[0].nuggets(),
        {
            "ORIGIN": group_fairness.Attribute(gold, "jsd"),
            "RATINGS": group_fairness.Attribute([1 / 4] * 4),
        },
    )
    assert (response.relevance, response.group_fairness, response.combined) == (
        expected.relevance,
        expected.group_fairness,
        expected.combined,
    )
    for name, part in expected.by_attribute.items():
        assert list(response.attributes[name].similarity) == list(part.similarity)
    assert [f"{one:.4f}" for one in response.attributes["ORIGIN"].similarity] == ["0.4303", "0.4682"]


@pytest.mark.parametrize("pooling", ["mean", "max", "majority", "plurality"])
async def test_votes_at_once_and_as_they_come(stub: Stub, pooling: ensemble.Pooling) -> None:
    vote = pb.VoteRequest(
        retriever_weights=[0.9, 0.5, 0.6, 0.05],
        similarities=["token_f1", "containment_em"],
        similarity_weights=[0.3, 0.6],
        pooling=getattr(pb.VoteRequest, f"POOLING_{pooling.upper()}"),
        threshold=0.4,
    )
    similarity = np.stack(
        [ensemble.similarity_matrix(_ANSWERS, one) for one in (token_f1, ensemble.containment_em)]
    )
    weights = ([0.3, 0.6], [0.9, 0.5, 0.6, 0.05])
    expected = ensemble.vote(similarity, *weights, pooling=pooling, threshold=0.4)

    whole = pb.VoteRequest()
    whole.CopyFrom(vote)
    whole.answers.extend(_ANSWERS)
    response = await stub.Vote(whole)
    assert response.winner == expected.winner
    assert np.array_equal(response.scores, expected.scores, equal_nan=True)
    combined = np.tensordot(np.array([0.3, 0.6]) / np.sum([0.3, 0.6]), similarity, axes=1)
    assert response.agreement == ensemble.agreement(combined, expected.winner, threshold=0.4)

    call = stub.VoteAnytime(timeout=60)
    await call.write(pb.VoteAnytimeRequest(start=_Start(vote=vote, num_answers=4)))
    arrived = np.zeros(4, bool)
    for index in (2, 3, 0, 1):
        await call.write(pb.VoteAnytimeRequest(answer=_Answer(index=index, text=_ANSWERS[index])))
        so_far = await call.read()  # every answer is met before the next is sent
        row = np.where(arrived, combined[index], np.nan)
        assert np.allclose(so_far.similarities, row, rtol=0, atol=1e-12, equal_nan=True)
        arrived[index] = True
        standing = ensemble.anytime_vote(
            similarity, *weights, arrived, np.zeros(4, bool), pooling=pooling, threshold=0.4
        )
        assert (so_far.winner if so_far.HasField("winner") else None) == standing.winner
        assert so_far.decided == standing.decided
        assert np.array_equal(so_far.scores, standing.scores, equal_nan=True)
        assert (so_far.num_arrived, so_far.num_waiting) == (arrived.sum(), 4 - arrived.sum())
    assert so_far.winner == response.winner
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_search_of_weights(stub: Stub) -> None:
    rng = np.random.default_rng(8)
    words = ["rhine", "elbe", "the rhine", "oder"]
    answers = [[words[i] for i in rng.integers(0, 4, 4)] for _ in range(12)]
    correct = rng.integers(0, 2, (12, 4)).astype(float)
    response = await stub.SearchVoteWeights(
        pb.SearchVoteWeightsRequest(
            questions=[
                pb.SearchVoteWeightsRequest.Question(answers=row, correctness=right)
                for row, right in zip(answers, correct.tolist(), strict=True)
            ],
            vote=pb.VoteRequest(similarities=["token_f1", "containment_em"]),
            max_weight=0.5,
        )
    )
    similarity = [
        [ensemble.similarity_matrix(row, one) for one in (token_f1, ensemble.containment_em)]
        for row in answers
    ]
    expected = ensemble.search_weights(similarity, correct, max_weight=0.5)
    assert list(response.retriever_weights) == expected.retriever_weights.tolist()
    assert list(response.similarity_weights) == expected.metric_weights.tolist()
    assert (response.correctness, list(response.trace)) == (expected.correctness, expected.trace.tolist())


async def test_comparisons(stub: Stub) -> None:
    rng = np.random.default_rng(9)
    right = rng.integers(0, 2, (3, 15))
    response = await stub.CompareRetrievers(
        pb.CompareRetrieversRequest(
            retrievers=["a", "b", "c"],
            questions=[
                pb.CompareRetrieversRequest.Question(
                    answers=["yes" if one else "no" for one in column],
                    references=["Yes."],
                    contexts=["Yes, no?", "no", ""],
                )
                for column in right.T
            ],
        )
    )
    wins = ensemble.relative_win_ratio(right)
    rows = [row.values for row in response.relative_win_ratio]
    assert np.array_equal(rows, wins.matrix, equal_nan=True)
    assert np.array_equal(response.mean_win_ratio, wins.mrwr, equal_nan=True)
    assert np.array_equal(response.mean_lose_ratio, wins.mrlr, equal_nan=True)
    assert list(response.upper_bound) == ensemble.upper_bound(right).mean.tolist()
    held = np.broadcast_to([[True], [False], [False]], right.shape)
    said = np.array([[True] * 15, (right[1] == 0).tolist(), [False] * 15])
    errors = ensemble.error_indicators(right, held, said)
    assert [one.extraction_error for one in response.errors] == errors.extraction_error.mean(axis=1).tolist()
    assert [one.lucky_guess for one in response.errors] == errors.lucky_guess.mean(axis=1).tolist()

    systems = await stub.CompareSystems(
        pb.CompareSystemsRequest(
            first=right[0].tolist(), second=right[1].tolist(), bootstrap=pb.Bootstrap(seed=4)
        )
    )
    alone = [
        int(((one == 1) & (other == 0)).sum()) for one, other in ((right[0], right[1]), (right[1], right[0]))
    ]
    low, high = paired_difference_interval(*alone, right.shape[1])
    assert (systems.difference.low, systems.difference.high) == (low, high), "of 0 and 1: Tango's"
    assert systems.bootstrap_p == paired_bootstrap(right[0], right[1], rng=4).p_value
    assert systems.mcnemar_p == mcnemar(right[0], right[1]).p_value


# --- bad input

_ITEM = common_pb2.Rankings(depth=1, indices=[0])
_BAD: dict[str, tuple[str, Message, str]] = {
    "probabilities": (
        "EvaluateExposure",
        pb.EvaluateExposureRequest(rankings=_ITEM, usefulness=[1], k=1, probabilities=[0.5]),
        "probabilities",
    ),
    "utility": ("EvaluateUtility", pb.EvaluateUtilityRequest(answers=["x"]), "references"),
    "tradeoff": ("EvaluateTradeoff", pb.EvaluateTradeoffRequest(), "points"),
    "point": (
        "EvaluateTradeoff",
        pb.EvaluateTradeoffRequest(points=[pb.TradeoffPoint(query_id="q", x=2)]),
        "points[0].x",
    ),
    "rankings": ("EvaluateRankings", pb.EvaluateRankingsRequest(), "queries"),
    "list": ("EvaluateRankedList", pb.EvaluateRankedListRequest(), "documents"),
    "transcript": (
        "EvaluateConversation",
        pb.EvaluateConversationRequest(
            transcript="##### T\n#WHAT",
            attributes={"g": pb.AttributeTarget(gold=pb.Distribution(shares=[0.5, 0.5]))},
        ),
        "transcript",
    ),
    "vote": ("Vote", pb.VoteRequest(answers=["x", "y"], similarities=["nli_question"]), "question"),
    "search": ("SearchVoteWeights", pb.SearchVoteWeightsRequest(), "questions"),
    "retrievers": ("CompareRetrievers", pb.CompareRetrieversRequest(retrievers=["a"]), "retrievers"),
    "systems": ("CompareSystems", pb.CompareSystemsRequest(first=[1]), "second"),
}


@pytest.mark.parametrize(("method", "request_", "field"), _BAD.values(), ids=_BAD.keys())
async def test_bad_input_names_the_field(address: str, method: str, request_: Message, field: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        error = await _failure(
            channel.unary_unary(SERVICE + method)(request_.SerializeToString(), timeout=30)
        )
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(error).field == field


_STARTED = pb.VoteAnytimeRequest(start=_Start(num_answers=3))


@pytest.mark.parametrize(
    ("requests", "field", "answered"),
    [
        ([pb.VoteAnytimeRequest(answer=_Answer(text="x"))], "start", 0),
        ([_STARTED, _STARTED], "start", 0),
        ([_STARTED, pb.VoteAnytimeRequest()], "event", 0),
        ([_STARTED, *[pb.VoteAnytimeRequest(answer=_Answer(index=2, text="x"))] * 2], "answer.index", 1),
        ([_STARTED, pb.VoteAnytimeRequest(answer=_Answer(index=3, text="x"))], "answer.index", 0),
    ],
    ids=["answer before start", "start twice", "nothing", "index twice", "index out of range"],
)
async def test_a_stream_out_of_turn_is_refused(
    stub: Stub, requests: Iterable[pb.VoteAnytimeRequest], field: str, answered: int
) -> None:
    call = stub.VoteAnytime(iter(requests), timeout=30)
    met = []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for response in call:
            met.append(response)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(caught.value).field == field
    assert len(met) == answered


async def test_a_stream_may_end_before_all_have_answered(stub: Stub) -> None:
    requests = [_STARTED, pb.VoteAnytimeRequest(answer=_Answer(index=1, text="x"))]
    responses = [one async for one in stub.VoteAnytime(iter(requests), timeout=30)]
    assert [(one.winner, one.decided, one.num_waiting) for one in responses] == [(1, False, 2)]
    assert [one async for one in stub.VoteAnytime(iter(()), timeout=30)] == []


# --- models


async def test_the_bundled_embedding_needs_no_setting(stub: Stub) -> None:
    response = await stub.Vote(
        pb.VoteRequest(answers=_ANSWERS[:3], similarities=["embedding_cosine"]), timeout=120
    )
    assert response.winner in (0, 1)
    assert response.pooled[2] == min(response.pooled) < 0.5


@pytest.mark.parametrize(
    ("similarity", "setting"),
    [
        ("bert_score", "EVENMESH_EVALUATOR_BERT_SCORE_MODEL"),
        ("nli", "EVENMESH_EVALUATOR_NLI_MODEL"),
        ("nli_question", "EVENMESH_EVALUATOR_NLI_MODEL"),
        ("answer_equivalence", "EVENMESH_EVALUATOR_ANSWER_EQUIVALENCE_MODEL"),
    ],
)
async def test_a_missing_model_names_its_setting(stub: Stub, similarity: str, setting: str) -> None:
    vote = pb.VoteRequest(question="Which?", similarities=["token_f1", similarity])
    whole = pb.VoteRequest(answers=["a", "b"])
    whole.MergeFrom(vote)
    search = pb.SearchVoteWeightsRequest(
        questions=[
            pb.SearchVoteWeightsRequest.Question(question="Which?", answers=["a", "b"], correctness=[0, 1])
        ],
        vote=vote,
    )
    stream = stub.VoteAnytime(
        iter([pb.VoteAnytimeRequest(start=_Start(vote=vote, num_answers=2))]), timeout=30
    )
    for call in (stub.Vote(whole), stub.SearchVoteWeights(search), stream.read()):
        error = await _failure(call)
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert from_rpc_error(error).reason == "MODEL_MISSING"
        assert setting in (error.details() or "")


async def test_models_by_folder(tmp_path: Path, tiny_classifier: Path) -> None:
    folder = str(tiny_classifier)
    settings = {
        "NLI_MODEL": folder,
        "BERT_SCORE_MODEL": folder,
        "ANSWER_EQUIVALENCE_MODEL": folder,
        "EMBEDDING_MODEL": str(tmp_path),
    }
    names = ["nli", "nli_question", "bert_score", "answer_equivalence"]
    from evenmesh_lab.similarities import Models, Similarities

    local = Similarities(Models(nli=folder, bert_score=folder, answer_equivalence=folder))
    with _running(tmp_path / "home", **settings) as process:
        async with grpc.aio.insecure_channel(process.address) as channel:
            stub = pb_grpc.EvaluatorServiceStub(channel)
            answers = ["water", "the fox", "a dog", "water"]
            vote = pb.VoteRequest(
                question="What boils?", similarities=names, similarity_weights=[0.1, 0.2, 0.3, 0.4]
            )
            whole = pb.VoteRequest(answers=answers)
            whole.MergeFrom(vote)
            response = await stub.Vote(whole, timeout=120)
            similarity = [local.get(name).matrix(answers, question="What boils?") for name in names]
            expected = ensemble.vote(similarity, [0.1, 0.2, 0.3, 0.4], [1.0] * 4)
            assert list(response.scores) == pytest.approx(expected.scores.tolist(), abs=1e-6)
            requests = [
                pb.VoteAnytimeRequest(start=_Start(vote=vote, num_answers=4)),
                *[
                    pb.VoteAnytimeRequest(answer=_Answer(index=index, text=text))
                    for index, text in enumerate(answers)
                ],
            ]
            standing = [one async for one in stub.VoteAnytime(iter(requests), timeout=120)]
            assert list(standing[-1].scores) == pytest.approx(expected.scores.tolist(), abs=1e-5)
            # A folder of nothing: the error names the setting and tells nothing of the folder's insides.
            error = await _failure(
                stub.Vote(pb.VoteRequest(answers=["a", "b"], similarities=["embedding_cosine"]))
            )
            assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert (error.details() or "").startswith("EVENMESH_EVALUATOR_EMBEDDING_MODEL: the model ")
            assert (error.details() or "").endswith("cannot be used")


@pytest.fixture(scope="session")
def tiny_classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with two labels: no entailment, and entailment."""
    import torch
    from transformers import AutoConfig, AutoTokenizer, BertForSequenceClassification

    from tests.support import tiny_models

    source = tiny_models.cross_encoder(tmp_path_factory.mktemp("source"))
    folder = tmp_path_factory.mktemp("judge")
    labels = {0: "not_entailment", 1: "entailment"}
    config = AutoConfig.from_pretrained(source, id2label=labels, num_labels=2)
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


# --- load, and callers that leave


_WAITS_S = (0.3, 0.1, 0.03, 0.01)
"""How long a caller stays, shorter where the machine is done by then. Seconds."""


def _long_search() -> pb.SearchVoteWeightsRequest:
    """About the most that is allowed: 2,600 evaluations over 240 questions of 12 retrievers.

    Each question has another best retriever, so no weights answer all and the search does not end early.
    """
    answers = ["rhine", "the rhine", "elbe"] * 4
    return pb.SearchVoteWeightsRequest(
        questions=[
            pb.SearchVoteWeightsRequest.Question(
                answers=answers, correctness=[(7 * at + best) % 12 / 12 for at in range(12)]
            )
            for best in range(240)
        ]
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An evaluator with one thread for what callers bring, and room for two long searches."""
    home = tmp_path_factory.mktemp("small")
    with _running(home, MEASURES_THREADS="1", MAX_WORK="85000") as process:
        yield process.address


async def _vote_once_free(stub: Stub) -> pb.VoteResponse:
    """A vote, tried again for as long as the evaluator is full."""
    while True:
        try:
            return await stub.Vote(pb.VoteRequest(answers=["a", "b", "b"]), timeout=30)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
        await asyncio.sleep(0.05)


async def _error(call: Awaitable[object]) -> MeshError | None:
    """What a call failed with; None when it succeeded."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    return None


async def test_a_search_counts_what_it_holds_and_more_is_refused(small: str) -> None:
    async with grpc.aio.insecure_channel(small) as channel:
        stub = pb_grpc.EvaluatorServiceStub(channel)
        searches = [stub.SearchVoteWeights(_long_search(), timeout=300) for _ in range(6)]
        # All arrive before the first could end, and the two that find room are not waited for.
        refusal = None
        for ended in asyncio.as_completed([_error(search) for search in searches]):
            if (refusal := await ended) is not None:
                break
        for search in searches:
            search.cancel()
        assert isinstance(refusal, Overloaded)
        assert (refusal.retry_after_s or 0) > 0
        assert (await _vote_once_free(stub)).winner == 1


@pytest.mark.parametrize("leave", ["cancelled", "deadline"])
async def test_a_search_ends_when_its_caller_has_gone(small: str, leave: str) -> None:
    async with grpc.aio.insecure_channel(small) as channel:
        stub = pb_grpc.EvaluatorServiceStub(channel)
        await _vote_once_free(stub)
        for wait_s in _WAITS_S:
            search = stub.SearchVoteWeights(_long_search(), timeout=wait_s if leave == "deadline" else 300)
            if leave == "cancelled":
                await asyncio.sleep(wait_s)
                search.cancel()
            if (code := await search.code()) is not grpc.StatusCode.OK:
                break
        expected = {"cancelled": grpc.StatusCode.CANCELLED, "deadline": grpc.StatusCode.DEADLINE_EXCEEDED}
        assert code is expected[leave]
        # The only thread is free.
        assert (await _vote_once_free(stub)).winner == 1


async def test_a_tradeoff_ends_when_its_caller_has_gone(small: str) -> None:
    # 850 curves of 100,000 points are about the most that is allowed.
    points = [pb.TradeoffPoint(query_id=f"q{i // 10}", x=i % 97 / 97, y=i % 89 / 89) for i in range(100_000)]
    percentile = pb.Bootstrap(num_resamples=850, method=pb.INTERVAL_METHOD_PERCENTILE)
    request = pb.EvaluateTradeoffRequest(points=points, bootstrap=percentile)
    async with grpc.aio.insecure_channel(small) as channel:
        stub = pb_grpc.EvaluatorServiceStub(channel)
        await _vote_once_free(stub)
        for wait_s in _WAITS_S:
            if (
                code := await stub.EvaluateTradeoff(request, timeout=wait_s).code()
            ) is not grpc.StatusCode.OK:
                break
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert (await _vote_once_free(stub)).winner == 1
