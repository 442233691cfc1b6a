"""Gains over a baseline, and bounds of utility questions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_core.text_metrics import token_f1
from evenmesh_core.utility import expected_utility, utility_gains
from evenmesh_evaluator import measures

_ANSWERS = st.lists(
    st.sampled_from(["rhine", "elbe", "the river rhine", "", "rhine elbe"]), min_size=1, max_size=5
)


def _utility(request: pb.EvaluateUtilityRequest) -> pb.EvaluateUtilityResponse:
    return measures.utility(request)


def test_gains_over_the_answer_without_passages() -> None:
    response = _utility(
        pb.EvaluateUtilityRequest(
            answers=["Rhine", "river Rhine", "Elbe"], references=["Rhine"], baseline_answer="river Rhine"
        )
    )
    # Token F1 1, 2/3, 0; the baseline's 2/3. The baseline is no sample.
    assert list(response.utilities) == [1, 2 / 3, 0]
    assert list(response.gains) == [1 - 2 / 3, 0, 0 - 2 / 3]
    assert response.expected_utility == (1 + 2 / 3 + 0) / 3


def test_an_empty_baseline_is_an_answer() -> None:
    response = _utility(pb.EvaluateUtilityRequest(answers=["a b"], references=["b"], baseline_answer=""))
    assert list(response.gains) == [1.0]


def test_without_a_baseline_there_are_no_gains() -> None:
    response = _utility(pb.EvaluateUtilityRequest(answers=["x"], references=["x"]))
    assert list(response.gains) == []
    assert not response.HasField("normalized_expected_utility")


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("answers", pb.EvaluateUtilityRequest(references=["x"])),
        ("references", pb.EvaluateUtilityRequest(answers=["x"])),
        ("metric", pb.EvaluateUtilityRequest(answers=["x"], references=["x"], metric=99)),  # type: ignore[arg-type]
        ("weights", pb.EvaluateUtilityRequest(answers=["x"], references=["x"], weights=[1, 1])),
        ("weights", pb.EvaluateUtilityRequest(answers=["x"], references=["x"], weights=[0])),
        ("weights[0]", pb.EvaluateUtilityRequest(answers=["x"], references=["x"], weights=[1.5])),
        ("u_max", pb.EvaluateUtilityRequest(answers=["x"], references=["x"], u_max=0)),
        ("u_max", pb.EvaluateUtilityRequest(answers=["x"], references=["x"], u_max=math.nan)),
    ],
)
def test_bounds(field: str, request_: pb.EvaluateUtilityRequest) -> None:
    with pytest.raises(InvalidField) as caught:
        measures.utility(request_)
    assert caught.value.field == field


@given(answers=_ANSWERS, references=_ANSWERS, baseline=st.sampled_from(["", "rhine", "oder"]))
def test_the_wire_changes_no_bit(answers: list[str], references: list[str], baseline: str) -> None:
    request = pb.EvaluateUtilityRequest(answers=answers, references=references, baseline_answer=baseline)
    response = pb.EvaluateUtilityResponse.FromString(_utility(request).SerializeToString())
    utilities = [token_f1(answer, references) for answer in answers]
    assert list(response.utilities) == utilities
    assert response.expected_utility == expected_utility(utilities)
    assert list(response.gains) == utility_gains(utilities, token_f1(baseline, references)).tolist()
