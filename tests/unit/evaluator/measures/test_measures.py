"""Exposure and utility for callers, with every value derived by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_evaluator import measures
from evenmesh_lab.similarities import Models, Similarities


def _exposure(request: pb.EvaluateExposureRequest) -> pb.EvaluateExposureResponse:
    return measures.exposure(request)


def _utility(request: pb.EvaluateUtilityRequest) -> pb.EvaluateUtilityResponse:
    return measures.utility(request)


def test_exposure_of_rankings() -> None:
    # Rankings (0, 1) and (2, 1), k = 1: ε = (1/2, 0, 1/2). Item 0 is useful: ε* = (1, 0, 0).
    # EE-D = 1/4 + 1/4, EE-R = 1/2, EE-L = 1/2 - 2·1/2 + 1.
    response = _exposure(
        pb.EvaluateExposureRequest(
            rankings=common_pb2.Rankings(depth=2, indices=[0, 1, 2, 1]), usefulness=[1, 0, 0], k=1
        )
    )
    assert list(response.exposure) == [0.5, 0, 0.5]
    assert list(response.target) == [1, 0, 0]
    assert (response.ee_d, response.ee_r, response.ee_l) == (0.5, 0.5, 0.5)
    assert (response.ee_d_norm, response.ee_r_norm) == (0.5, 0.5)


def test_exposure_in_place_of_rankings() -> None:
    # Exact inclusion probabilities (3/4, 1/4), k = 1: EE-D = 9/16 + 1/16, EE-R = 3/4.
    response = _exposure(pb.EvaluateExposureRequest(exposure=[0.75, 0.25], usefulness=[1, 0], k=1))
    assert (response.ee_d, response.ee_r) == (0.625, 0.75)


def test_graded_usefulness_with_reciprocal_rank() -> None:
    # Grades 1, 2, 0 under 1/i: the target puts grade 2 first (1), grade 1 second (1/2), the other third
    # (1/3).
    response = _exposure(
        pb.EvaluateExposureRequest(
            rankings=common_pb2.Rankings(depth=3, indices=[0, 1, 2]),
            usefulness=[1, 2, 0],
            k=3,
            browsing=pb.BrowsingModel(reciprocal_rank=True),
        )
    )
    assert list(response.target) == pytest.approx([1 / 2, 1, 1 / 3])
    assert response.ee_r == pytest.approx(1 * 1 / 2 + 1 / 2 * 1 + 1 / 3 * 1 / 3)


def test_without_useful_items_relevance_is_unset() -> None:
    response = _exposure(
        pb.EvaluateExposureRequest(rankings=common_pb2.Rankings(depth=1, indices=[0]), usefulness=[0, 0], k=1)
    )
    assert response.ee_d == 1.0
    assert not response.HasField("ee_r")
    assert not response.HasField("ee_l")
    assert not response.HasField("ee_r_norm")


def test_expected_utility_with_weights() -> None:
    # Exact match 1 and 0 with weights 3/4 and 1/4, over u_max 1/2: 3/4 and 3/2.
    response = _utility(
        pb.EvaluateUtilityRequest(
            answers=["The Rhine!", "Elbe"],
            references=["rhine"],
            metric=pb.UTILITY_METRIC_EXACT_MATCH,
            weights=[0.75, 0.25],
            u_max=0.5,
        )
    )
    assert list(response.utilities) == [1, 0]
    assert response.expected_utility == 0.75
    assert response.normalized_expected_utility == 1.5


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        # "red green blue" against "red green": common 2 of 3 and of 2, F1 = 2·2/(3 + 2).
        (pb.UTILITY_METRIC_UNSPECIFIED, 4 / 5),
        (pb.UTILITY_METRIC_TOKEN_F1, 4 / 5),
        (pb.UTILITY_METRIC_ROUGE1, 4 / 5),
        # Word pairs: {red green, green blue} and {red green}: F1 = 2·1/(2 + 1).
        (pb.UTILITY_METRIC_ROUGE2, 2 / 3),
        (pb.UTILITY_METRIC_ROUGE_L, 4 / 5),
        (pb.UTILITY_METRIC_EXACT_MATCH, 0),
        (pb.UTILITY_METRIC_ACCURACY, 0),
    ],
)
def test_every_metric(metric: pb.UtilityMetric.ValueType, expected: float) -> None:
    response = _utility(
        pb.EvaluateUtilityRequest(answers=["red green blue"], references=["red green"], metric=metric)
    )
    assert response.expected_utility == pytest.approx(expected)
    assert not response.HasField("normalized_expected_utility")


def test_ratings_need_ratings_to_compare_with() -> None:
    """LaMP-3: an answer of 2 to a reference of 4 has 1 − 2 / 4."""
    request = pb.EvaluateUtilityRequest(answers=["2"], references=["4"], metric=pb.UTILITY_METRIC_RATING)
    assert _utility(request).expected_utility == 0.5
    request.references.append("good")
    with pytest.raises(InvalidField, match=r"references\[1\]"):
        _utility(request)


def _vote(request: pb.VoteRequest) -> pb.VoteResponse:
    return measures.vote(request, Similarities(Models()))


def test_the_answer_most_like_the_others_wins() -> None:
    # Token F1: "river rhine" and "rhine" 2/3, both to "elbe" 0. Means: 1/3, 1/3, 0; the first of equals.
    response = _vote(pb.VoteRequest(answers=["the river Rhine", "Rhine", "Elbe"]))
    assert response.winner == 0
    assert list(response.scores) == pytest.approx([1 / 3, 1 / 3, 0])


def test_similarities_and_weights_are_combined() -> None:
    # Containment says 1 where token F1 says 2/3; weights 3:1 give 3/4·2/3 + 1/4·1 = 3/4, halved by the third
    # answer, times the retriever's own weight.
    response = _vote(
        pb.VoteRequest(
            answers=["the river Rhine", "Rhine", "Elbe"],
            retriever_weights=[0.5, 0.6, 1.0],
            similarities=["token_f1", "containment_em"],
            similarity_weights=[0.75, 0.25],
        )
    )
    assert response.winner == 1
    assert list(response.scores) == pytest.approx([0.5 * 3 / 8, 0.6 * 3 / 8, 0])


def test_a_filtered_retriever_votes_but_cannot_win() -> None:
    response = _vote(pb.VoteRequest(answers=["Rhine", "Rhine", "Elbe"], retriever_weights=[0.1, 1, 1]))
    assert response.winner == 1
    assert math.isnan(response.scores[0])
    assert list(response.scores)[1:] == [0.5, 0]


def test_many_equal_retrievers_are_not_filtered() -> None:
    # Shares of 1/20 each would all be below the filter of 0.1.
    assert _vote(pb.VoteRequest(answers=["Elbe", *["Rhine"] * 19])).winner == 1


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("answers", pb.VoteRequest(answers=["one"])),
        ("answers", pb.VoteRequest(answers=["x"] * 1001)),
        ("question", pb.VoteRequest(answers=["a", "b"], question="x" * 8193)),
        ("similarities[1]", pb.VoteRequest(answers=["a", "b"], similarities=["token_f1", "bem"])),
        ("similarity_weights", pb.VoteRequest(answers=["a", "b"], similarity_weights=[1, 1])),
        ("similarity_weights", pb.VoteRequest(answers=["a", "b"], similarity_weights=[0])),
        ("retriever_weights", pb.VoteRequest(answers=["a", "b"], retriever_weights=[1])),
        ("retriever_weights[1]", pb.VoteRequest(answers=["a", "b"], retriever_weights=[1, float("nan")])),
        ("threshold", pb.VoteRequest(answers=["a", "b"], threshold=1.5)),
        ("retriever_filter", pb.VoteRequest(answers=["a", "b"], retriever_filter=-0.5)),
    ],
)
def test_vote_bounds(field: str, request_: pb.VoteRequest) -> None:
    with pytest.raises(InvalidField) as caught:
        measures.vote(request_, Similarities(Models()))
    assert caught.value.field == field


def test_an_unknown_similarity_lists_the_known_ones() -> None:
    with pytest.raises(InvalidField, match="token_f1, containment_em"):
        measures.vote(pb.VoteRequest(answers=["a", "b"], similarities=["bem"]), Similarities(Models()))


def test_a_vote_without_retrievers_names_the_weights() -> None:
    with pytest.raises(InvalidField) as caught:
        _vote(pb.VoteRequest(answers=["a", "b"], retriever_weights=[0.05, 0.1]))
    assert caught.value.field == "retriever_weights"


def _conversation(request: pb.EvaluateConversationRequest) -> pb.EvaluateConversationResponse:
    return measures.conversation(request)


def _bard() -> pb.EvaluateConversationRequest:
    """The paper's Table 1, right-hand side: nuggets at words 506 and 560 with gains 1 and 1/2."""
    famous = pb.Distribution(shares=[0, 0, 0, 1])
    return pb.EvaluateConversationRequest(
        turns=[
            pb.ConversationTurn(),
            pb.ConversationTurn(
                nuggets=[
                    pb.Nugget(word_count=506, gain=1, membership={"RATINGS": famous}),
                    pb.Nugget(word_count=560, gain=0.5, membership={"RATINGS": famous}),
                ]
            ),
        ],
        attributes={"RATINGS": pb.AttributeTarget(gold=pb.Distribution(shares=[0.25] * 4))},
    )


def test_the_papers_conversation() -> None:
    response = _conversation(_bard())
    # pw(n) = 1 - (WC - 1)/1250: 0.5960 and 0.5528; R = 2/1251·(0.5960 + 0.5528/2).
    relevance = 2 / 1251 * (0.5960 + 0.5528 / 2)
    assert response.relevance == pytest.approx(relevance)
    # RNOD of (0, 0, 0, 1) to uniform: squared differences (1, 1, 1, 9)/16, DW = (30, 20, 12, 6)/16,
    # OD = 68/64, RNOD = √(OD/3).
    fairness = 1 - math.sqrt(68 / 64 / 3)
    assert response.group_fairness == pytest.approx(fairness)
    assert response.combined == pytest.approx((relevance + fairness) / 2)


def test_nominal_groups_and_other_weights() -> None:
    request = _bard()
    request.attributes["RATINGS"].divergence = pb.AttributeTarget.DIVERGENCE_JSD
    request.alpha = 0
    # JSD of (0, 0, 0, 1) to uniform, m = (1, 1, 1, 5)/8: (log2(8/5) + 3/4·log2(2) + 1/4·log2(2/5)) / 2.
    jsd = (math.log2(8 / 5) + 3 / 4 + 1 / 4 * math.log2(2 / 5)) / 2
    assert _conversation(request).combined == pytest.approx(1 - jsd)


@pytest.mark.parametrize(
    ("field", "broken"),
    [
        ("turns", lambda m: m.ClearField("turns")),
        ("attributes", lambda m: m.ClearField("attributes")),
        ("patience", lambda m: setattr(m, "patience", 0)),
        ("alpha", lambda m: setattr(m, "alpha", float("nan"))),
        ("turns[1].nuggets[0].word_count", lambda m: setattr(m.turns[1].nuggets[0], "word_count", 0)),
        ("turns[1].nuggets[1].word_count", lambda m: setattr(m.turns[1].nuggets[1], "word_count", 3)),
        ("turns[1].nuggets[1].gain", lambda m: setattr(m.turns[1].nuggets[1], "gain", 2)),
        (
            "turns[1].nuggets[0].membership['RATINGS']",
            lambda m: m.turns[1].nuggets[0].membership["RATINGS"].shares.append(1),
        ),
        ("turns[1].nuggets[0].membership", lambda m: m.turns[1].nuggets[0].ClearField("membership")),
        ("attributes['RATINGS'].gold", lambda m: m.attributes["RATINGS"].ClearField("gold")),
        ("attributes['RATINGS'].divergence", lambda m: setattr(m.attributes["RATINGS"], "divergence", 9)),
    ],
)
def test_conversation_bounds(field: str, broken: Callable[[pb.EvaluateConversationRequest], object]) -> None:
    request = _bard()
    broken(request)
    with pytest.raises(InvalidField) as caught:
        _conversation(request)
    assert caught.value.field == field
