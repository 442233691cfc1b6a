"""Retrievers and systems compared, with values derived by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_core import ensemble
from evenmesh_core.proportions import paired_difference_interval
from evenmesh_core.significance import mcnemar, paired_bootstrap
from evenmesh_evaluator import measures

_Question = pb.CompareRetrieversRequest.Question


def _never() -> None:
    pass


def _retrievers(request: pb.CompareRetrieversRequest) -> pb.CompareRetrieversResponse:
    return measures.compare_retrievers(request)


def _systems(request: pb.CompareSystemsRequest) -> pb.CompareSystemsResponse:
    return measures.compare_systems(request, _never)


def _request() -> pb.CompareRetrieversRequest:
    """bm25 is right on the first and third question, dense on the second alone."""
    return pb.CompareRetrieversRequest(
        retrievers=["bm25", "dense"],
        questions=[
            _Question(
                answers=["The Rhine!", "Elbe"],
                references=["Rhine", "Waal"],
                contexts=["Cologne lies on the Rhine.", "The Elbe ends in Hamburg; so does no Rhine."],
            ),
            _Question(
                answers=["Oder", "Main"], references=["Main"], contexts=["A text on rivers.", "Of rivers."]
            ),
            _Question(answers=["Spree", "the"], references=["Spree"], contexts=["The Havel.", "The Havel."]),
        ],
    )


def test_win_ratios_bounds_and_accuracy() -> None:
    response = _retrievers(_request())
    # bm25 wins both questions that dense loses, dense the one that bm25 loses.
    assert [list(row.values) for row in response.relative_win_ratio] == [[0, 1], [1, 0]]
    assert list(response.mean_win_ratio) == [1, 1]
    assert list(response.mean_lose_ratio) == [1, 1]
    assert list(response.accuracy) == pytest.approx([2 / 3, 1 / 3])
    # One retriever: (2/3 + 1/3)/2; both: always one is right.
    assert list(response.upper_bound) == pytest.approx([1 / 2, 1])


def test_kinds_of_errors() -> None:
    bm25, dense = _retrievers(_request()).errors
    # bm25: context holds Rhine; of rivers nothing; Havel holds no Spree though the answer is right: luck.
    assert (bm25.correct, bm25.retriever_error, bm25.hallucination_error) == pytest.approx(
        (2 / 3, 2 / 3, 2 / 3)
    )
    assert (bm25.extraction_error, bm25.lucky_guess) == pytest.approx((0, 1 / 3))
    # dense: Elbe is held beside Rhine, the wrong part; Main is held nowhere: luck; "the" is no word to hold.
    assert (dense.correct, dense.retriever_error, dense.hallucination_error) == pytest.approx(
        (1 / 3, 2 / 3, 2 / 3)
    )
    assert (dense.extraction_error, dense.lucky_guess) == pytest.approx((1 / 3, 1 / 3))


def test_without_contexts_there_are_no_kinds_of_errors() -> None:
    request = _request()
    for question in request.questions:
        question.ClearField("contexts")
    assert not _retrievers(request).errors


def test_a_retriever_that_is_never_wrong_leaves_ratios_undefined() -> None:
    request = pb.CompareRetrieversRequest(
        retrievers=["a", "b"], questions=[_Question(answers=["x", "y"], references=["x"])]
    )
    response = _retrievers(request)
    expected = ensemble.relative_win_ratio([[1], [0]])
    assert np.array_equal(
        [row.values for row in response.relative_win_ratio], expected.matrix, equal_nan=True
    )
    assert math.isnan(response.relative_win_ratio[1].values[0])
    assert math.isnan(response.mean_win_ratio[1])
    assert math.isnan(response.mean_lose_ratio[0])


@pytest.mark.parametrize(
    ("field", "broken"),
    [
        ("retrievers", lambda m: m.retrievers.pop()),
        ("retrievers", lambda m: m.retrievers.extend(f"r{i}" for i in range(19))),
        ("retrievers[1]", lambda m: m.retrievers.__setitem__(1, "bm25")),
        ("retrievers[1]", lambda m: m.retrievers.__setitem__(1, "")),
        ("questions", lambda m: m.ClearField("questions")),
        ("questions[1].answers", lambda m: m.questions[1].answers.pop()),
        ("questions[1].references", lambda m: m.questions[1].ClearField("references")),
        ("questions[1].contexts", lambda m: m.questions[1].ClearField("contexts")),
        ("questions[0].contexts", lambda m: m.questions[0].contexts.pop()),
    ],
)
def test_bounds_of_retrievers(field: str, broken: Callable[[pb.CompareRetrieversRequest], object]) -> None:
    request = _request()
    broken(request)
    with pytest.raises(InvalidField) as caught:
        measures.compare_retrievers(request)
    assert caught.value.field == field


def test_systems_that_are_right_or_wrong() -> None:
    first, second = [1, 1, 1, 0, 1, 1], [0, 1, 0, 1, 0, 0]
    request = pb.CompareSystemsRequest(
        first=first, second=second, bootstrap=pb.Bootstrap(num_resamples=500, seed=3)
    )
    response = _systems(request)
    assert response.difference.value == pytest.approx((5 - 2) / 6)
    # 4 against 1 tosses: 2 · (5 + 1)/2^5.
    assert (response.only_first, response.only_second) == (4, 1)
    assert response.mcnemar_p == pytest.approx(2 * (5 + 1) / 2**5)
    expected = paired_bootstrap(first, second, num_resamples=500, rng=3)
    assert response.bootstrap_p == expected.p_value
    # Of 6 queries 4 only the first gets right, 1 only the second.
    limits = paired_difference_interval(4, 1, 6)
    assert (response.difference.low, response.difference.high) == limits
    assert response.mcnemar_p == mcnemar(first, second).p_value


def test_systems_that_are_always_right_have_no_interval_of_a_share() -> None:
    response = _systems(pb.CompareSystemsRequest(first=[1, 1], second=[1, 1]))
    assert (response.difference.low, response.difference.high, response.only_first) == (0, 0, 0)


def test_other_values_have_no_mcnemar() -> None:
    request = pb.CompareSystemsRequest(first=[0.5, 1, 0], second=[0, 1, 0])
    request.bootstrap.method = pb.INTERVAL_METHOD_PERCENTILE
    response = _systems(request)
    assert not any(response.HasField(name) for name in ("mcnemar_p", "only_first", "only_second"))
    expected = paired_bootstrap([0.5, 1, 0], [0, 1, 0], method="percentile", rng=0)
    assert (response.difference.low, response.difference.high) == (
        expected.difference.low,
        expected.difference.high,
    )


def test_one_query_says_nothing_of_its_spread() -> None:
    response = _systems(pb.CompareSystemsRequest(first=[2], second=[1]))
    assert response.difference.value == 1
    assert not response.difference.HasField("low")
    assert math.isnan(response.bootstrap_p)


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("first", pb.CompareSystemsRequest(second=[1])),
        ("second", pb.CompareSystemsRequest(first=[1, 2], second=[1])),
        ("first[1]", pb.CompareSystemsRequest(first=[1, math.nan], second=[1, 1])),
        ("second[0]", pb.CompareSystemsRequest(first=[1], second=[math.inf])),
        ("bootstrap.level", pb.CompareSystemsRequest(first=[1], second=[1], bootstrap=pb.Bootstrap(level=0))),
    ],
)
def test_bounds_of_systems(field: str, request_: pb.CompareSystemsRequest) -> None:
    with pytest.raises(InvalidField) as caught:
        measures.compare_systems(request_, _never)
    assert caught.value.field == field


def test_an_abandoned_comparison_ends() -> None:
    class GoneError(Exception):
        pass

    def gone() -> None:
        raise GoneError

    with pytest.raises(GoneError):
        measures.compare_systems(pb.CompareSystemsRequest(first=[1, 2], second=[0, 3]), gone)
