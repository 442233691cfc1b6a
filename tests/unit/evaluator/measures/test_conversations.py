"""Conversations as turns and as transcripts: options, attributes per turn, and bounds."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_core.group_fairness import Attribute, Nugget, conversation
from evenmesh_evaluator import measures
from tests.unit.core.group_fairness.conftest import BING

_Request = pb.EvaluateConversationRequest
_COUNTRIES = (58, 26.5, 2, 36.5, 23.5, 47.5, 19, 24)


def _conversation(request: pb.EvaluateConversationRequest) -> pb.EvaluateConversationResponse:
    return measures.conversation(request)


def _figure_5() -> pb.EvaluateConversationRequest:
    return _Request(
        transcript=BING,
        attributes={
            "RATINGS": pb.AttributeTarget(gold=pb.Distribution(shares=[1 / 4] * 4)),
            "ORIGIN": pb.AttributeTarget(
                gold=pb.Distribution(shares=[share / 237 for share in _COUNTRIES]),
                divergence=pb.AttributeTarget.DIVERGENCE_JSD,
            ),
        },
    )


def _turns(*entities: str) -> pb.EvaluateConversationRequest:
    """Three turns: a nugget of the first group, none, and one of the second, with the entities given."""
    first, second = entities or ("", "")
    return _Request(
        turns=[
            pb.ConversationTurn(
                nuggets=[
                    pb.Nugget(
                        word_count=1, gain=1, membership={"g": pb.Distribution(shares=[1, 0])}, entity=first
                    )
                ]
            ),
            pb.ConversationTurn(),
            pb.ConversationTurn(
                nuggets=[
                    pb.Nugget(
                        word_count=626,
                        gain=0.5,
                        membership={"g": pb.Distribution(shares=[0, 1])},
                        entity=second,
                    )
                ]
            ),
        ],
        attributes={"g": pb.AttributeTarget(gold=pb.Distribution(shares=[0.5, 0.5]))},
    )


def test_figure_5_gives_the_papers_tables() -> None:
    response = _conversation(_figure_5())
    assert [f"{weight:.4f}" for weight in response.position_weights] == [
        "0.9728", "0.9696", "0.9664", "0.9640", "0.9600", "0.9280", "0.9240", "0.9216", "0.9176", "0.9152",
    ]  # fmt: skip
    assert f"{response.relevance:.4f}" == "0.0143"
    ratings, origin = response.attributes["RATINGS"], response.attributes["ORIGIN"]
    assert [f"{one:.4f}" for one in ratings.similarity] == ["0.6773", "0.4796"]
    assert [f"{one:.4f}" for one in origin.similarity] == ["0.4303", "0.4682"]
    assert (f"{ratings.group_fairness:.4f}", f"{origin.group_fairness:.4f}") == ("0.5784", "0.4492")
    assert list(ratings.achieved[0].shares) == pytest.approx([0, 0, 3 / 5, 2 / 5])


def test_turns_without_relevant_nuggets_are_left_out() -> None:
    response = _conversation(_turns())
    part = response.attributes["g"]
    # (1, 0) against (1/2, 1/2): √(1/4); (0, 1) alike.
    assert part.similarity[0] == part.similarity[2] == 1 / 2
    assert math.isnan(part.similarity[1])
    assert [list(one.shares) for one in part.achieved] == [[1, 0], [], [0, 1]]
    # pw: 1 and 1 - 625/1250; R = 2/1251 · (1 + 1/2 · 1/2).
    assert list(response.position_weights) == [1.0, 1 / 2]
    assert response.relevance == pytest.approx(2 / 1251 * (1 + 1 / 4))


def test_or_count_as_uniform_or_go_on_from_before() -> None:
    request = _turns()
    request.irrelevant_turns = _Request.IRRELEVANT_TURNS_UNIFORM
    assert list(_conversation(request).attributes["g"].similarity) == [1 / 2, 1, 1 / 2]
    request = _turns()
    request.method = _Request.METHOD_CUMULATIVE
    similarity = _conversation(request).attributes["g"].similarity
    assert (similarity[0], similarity[2]) == (1 / 2, 1)  # (1, 0), then the mean of both
    assert math.isnan(similarity[1])


def test_an_entity_that_came_before_is_not_relevant_again() -> None:
    again = _conversation(_turns("the Rhine", "the Rhine"))
    assert again.relevance == pytest.approx(2 / 1251)
    assert math.isnan(again.attributes["g"].similarity[2])
    other = _conversation(_turns("the Rhine", "the Elbe"))
    assert other.relevance == _conversation(_turns("", "")).relevance


@pytest.mark.parametrize(
    ("field", "broken"),
    [
        ("method", lambda m: setattr(m, "method", 9)),
        ("irrelevant_turns", lambda m: setattr(m, "irrelevant_turns", 9)),
        ("transcript", lambda m: setattr(m, "transcript", BING)),
        ("turns", lambda m: m.ClearField("turns")),
        ("patience", lambda m: setattr(m, "patience", 1_000_001)),
        ("alpha", lambda m: setattr(m, "alpha", 1.01)),
        ("attributes['g'].gold", lambda m: m.attributes["g"].gold.shares.__setitem__(slice(None), [1])),
        ("attributes['g'].gold[0]", lambda m: m.attributes["g"].gold.shares.__setitem__(0, -0.5)),
        ("turns[2].nuggets[0].membership['g']", lambda m: _shares(m).__setitem__(1, 0.5)),
        ("turns[2].nuggets[0].membership['g'][1]", lambda m: _shares(m).__setitem__(1, math.nan)),
        ("turns[2].nuggets[0].membership['g']", lambda m: _shares(m).append(0)),
    ],
)
def test_bounds_of_turns(field: str, broken: Callable[[pb.EvaluateConversationRequest], object]) -> None:
    request = _turns()
    broken(request)
    with pytest.raises(InvalidField) as caught:
        _conversation(request)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("transcript", "message"),
    [
        (BING.replace("#L1", "#LEVEL"), "transcript:20 is '#LEVEL'"),
        (BING.replace("(0,0,0,1) #2M", "(0,0,0,2)"), "transcript:21 .*sum to 1"),
        (BING.replace("#L1", "#L3"), "a gain for level 3"),
        (BING + BING, "one conversation, it has 2"),
        ("##### M002\n### U1\nhello\n", "at least one system turn"),
        (BING.replace("#RATINGS: (0,0,0,1) #2M\n", ""), "a membership for attribute 'RATINGS'"),
        ("  \n", "one conversation, it has 0"),
    ],
)
def test_an_error_in_a_transcript_names_its_line(transcript: str, message: str) -> None:
    request = _figure_5()
    request.transcript = transcript
    with pytest.raises(InvalidField, match=message) as caught:
        _conversation(request)
    assert caught.value.field == "transcript"


@given(data=st.data())
def test_the_wire_changes_no_bit(data: st.DataObject) -> None:
    turns: list[list[Nugget]] = []
    place = 1
    for _ in range(data.draw(st.integers(1, 4), "turns")):
        turn = []
        for _ in range(data.draw(st.integers(0, 3), "nuggets")):
            place += data.draw(st.integers(0, 300), "words")
            share = data.draw(st.sampled_from([0.0, 0.1, 1 / 3, 1.0]), "share")
            gain = data.draw(st.sampled_from([0.0, 0.3, 1.0]), "gain")
            entity = data.draw(st.sampled_from([None, "x", "y"]), "entity")
            turn.append(Nugget(place, gain, {"g": [share, 1 - share]}, entity))
        turns.append(turn)
    method = data.draw(st.sampled_from(["independent", "cumulative"]), "method")
    rest = data.draw(st.sampled_from(["ignore", "uniform"]), "irrelevant turns")
    expected = conversation(
        turns,
        {"g": Attribute([0.3, 0.7], "nmd")},
        patience=777,
        method=method,
        irrelevant_turns=rest,
        alpha=0.3,
    )
    request = _Request(
        turns=[
            pb.ConversationTurn(
                nuggets=[
                    pb.Nugget(
                        word_count=one.word_count,
                        gain=one.gain,
                        membership={"g": pb.Distribution(shares=one.membership["g"])},
                        entity=one.entity or "",
                    )
                    for one in turn
                ]
            )
            for turn in turns
        ],
        attributes={
            "g": pb.AttributeTarget(
                gold=pb.Distribution(shares=[0.3, 0.7]), divergence=pb.AttributeTarget.DIVERGENCE_NMD
            )
        },
        patience=777,
        method=getattr(_Request, f"METHOD_{method.upper()}"),
        irrelevant_turns=getattr(_Request, f"IRRELEVANT_TURNS_{rest.upper()}"),
        alpha=0.3,
    )
    response = pb.EvaluateConversationResponse.FromString(_conversation(request).SerializeToString())
    assert (response.relevance, response.group_fairness, response.combined) == (
        expected.relevance,
        expected.group_fairness,
        expected.combined,
    )
    assert list(response.position_weights) == expected.position_weights.tolist()
    part, wanted = response.attributes["g"], expected.by_attribute["g"]
    assert part.group_fairness == wanted.group_fairness
    assert [None if math.isnan(one) else one for one in part.similarity] == list(wanted.similarity)
    assert [list(one.shares) for one in part.achieved] == [
        [] if one is None else one.tolist() for one in wanted.achieved
    ]


def _shares(request: pb.EvaluateConversationRequest) -> list[float]:
    return request.turns[2].nuggets[0].membership["g"].shares  # type: ignore[return-value]
