"""Votes at once, votes as answers come in, and the search for weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_core import ensemble
from evenmesh_core.text_metrics import token_f1
from evenmesh_evaluator import cost, measures
from evenmesh_lab.similarities import MissingModel, Models, Similarities, Similarity

_START = pb.VoteAnytimeRequest.Start
_Question = pb.SearchVoteWeightsRequest.Question
_WORDS = st.lists(st.sampled_from(["rhine", "elbe", "river", "the"]), max_size=3).map(" ".join)
_POOLINGS = {
    pb.VoteRequest.POOLING_MEAN: "mean",
    pb.VoteRequest.POOLING_MAX: "max",
    pb.VoteRequest.POOLING_MAJORITY: "majority",
    pb.VoteRequest.POOLING_PLURALITY: "plurality",
}


class Counting(Similarities):
    """Token F1 that remembers how many pairs each call compared."""

    def __init__(self) -> None:
        super().__init__(Models())
        self.calls: list[int] = []
        outer, real = self, super().get("token_f1")

        class Counted(type(real)):  # type: ignore[misc]  # the real one, counted
            def pairs(self, pairs: Sequence[tuple[str, str]], **options: Any) -> object:
                outer.calls.append(len(pairs))
                return super().pairs(pairs, **options)

        self._counted = Counted()

    def get(self, name: str) -> Similarity:
        assert name == "token_f1"
        return self._counted


def _vote(request: pb.VoteRequest, similarities: Similarities | None = None) -> pb.VoteResponse:
    return measures.vote(request, similarities or Similarities(Models()))


def _started(
    vote: pb.VoteRequest, answers: int, similarities: Similarities | None = None
) -> measures.AnytimeVote:
    start = pb.VoteAnytimeRequest(start=_START(vote=vote, num_answers=answers))
    return measures.AnytimeVote(start, similarities or Similarities(Models()))


def _arrive(session: measures.AnytimeVote, index: int, text: str | None) -> pb.VoteAnytimeResponse:
    answer = pb.VoteAnytimeRequest.Answer(index=index, text=text or "", missing=text is None)
    return session.add(pb.VoteAnytimeRequest(answer=answer))


# --- at once


def test_pooled_similarities_and_agreement() -> None:
    response = _vote(pb.VoteRequest(answers=["rhine", "rhine", "the river rhine", "elbe"]))
    # To each other: 1, 2/3, 0; the third has 2/3, 2/3, 0.
    assert response.winner == 0
    assert list(response.pooled) == pytest.approx([(1 + 2 / 3) / 3, (1 + 2 / 3) / 3, (2 / 3 * 2) / 3, 0])
    # Above 0.8 is one of three others.
    assert response.agreement == pytest.approx(1 / 3)
    assert _vote(pb.VoteRequest(answers=["rhine", "the river rhine"], threshold=0.5)).agreement == 1.0


def test_filtered_answers_leave_the_pool_where_that_is_wanted() -> None:
    request = pb.VoteRequest(
        answers=["rhine", "rhine", "elbe", "oder"], retriever_weights=[0.1, 0.5, 0.5, 0.05]
    )
    assert _vote(request).pooled[1] == pytest.approx(1 / 3)
    request.drop_filtered = True
    dropped = _vote(request)
    assert dropped.pooled[1] == 0.0
    assert dropped.winner == 1


@pytest.mark.parametrize(("pooling", "name"), _POOLINGS.items(), ids=_POOLINGS.values())
@given(
    answers=st.lists(_WORDS, min_size=2, max_size=6),
    weights=st.lists(st.sampled_from([0.05, 0.3, 1.0]), min_size=6, max_size=6),
)
def test_the_wire_changes_no_bit(
    pooling: pb.VoteRequest.Pooling.ValueType,
    name: ensemble.Pooling,
    answers: list[str],
    weights: list[float],
) -> None:
    weights = [*weights[: len(answers) - 1], 0.9]
    request = pb.VoteRequest(
        answers=answers,
        retriever_weights=weights,
        similarities=["containment_em", "token_f1"],
        similarity_weights=[0.2, 0.5],
        pooling=pooling,
        threshold=0.6,
    )
    response = pb.VoteResponse.FromString(_vote(request).SerializeToString())
    similarity = np.stack(
        [ensemble.similarity_matrix(answers, one) for one in (ensemble.containment_em, token_f1)]
    )
    expected = ensemble.vote(similarity, [0.2, 0.5], weights, pooling=name, threshold=0.6)
    assert response.winner == expected.winner
    assert np.array_equal(response.scores, expected.scores, equal_nan=True)
    assert np.array_equal(response.pooled, expected.pooled, equal_nan=True)


def test_a_similarity_without_a_model_names_the_setting() -> None:
    similarities = Similarities(Models(called={"nli": "EVENMESH_EVALUATOR_NLI_MODEL"}))
    with pytest.raises(MissingModel, match=r"^EVENMESH_EVALUATOR_NLI_MODEL: not set, and nli needs it"):
        _vote(pb.VoteRequest(answers=["a", "b"], similarities=["token_f1", "nli"]), similarities)


@pytest.mark.parametrize("name", ["nli_question", "answer_equivalence"])
def test_what_reads_the_question_is_refused_without(name: str) -> None:
    with pytest.raises(InvalidField) as caught:
        measures.vote(
            pb.VoteRequest(answers=["a", "b"], similarities=["token_f1", name], question=" "),
            Similarities(Models()),
        )
    assert caught.value.field == "question"


# --- as answers come in


def test_every_answer_is_met_with_the_winner_so_far() -> None:
    session = _started(pb.VoteRequest(retriever_weights=[1, 1, 0.05]), 3)
    first = _arrive(session, 2, "elbe")
    assert not first.HasField("winner")  # filtered: it may not win
    assert (first.decided, first.num_arrived, first.num_waiting) == (False, 1, 2)
    second = _arrive(session, 1, "rhine")
    assert (second.winner, second.decided) == (1, False)
    last = _arrive(session, 0, "elbe")
    # elbe: (1 + 0)/2; rhine: 0.
    assert (last.winner, last.decided, last.num_arrived, last.num_waiting) == (0, True, 3, 0)
    assert list(last.scores)[:2] == [1 / 2, 0]
    assert math.isnan(last.scores[2])


def test_a_missing_answer_is_waited_for_no_longer() -> None:
    session = _started(pb.VoteRequest(), 3)
    _arrive(session, 0, "rhine")
    _arrive(session, 1, "rhine")
    last = _arrive(session, 2, None)
    assert (last.winner, last.decided, last.num_arrived, last.num_waiting) == (0, True, 2, 0)
    assert math.isnan(last.scores[2])


def test_all_missing_has_no_winner() -> None:
    session = _started(pb.VoteRequest(), 2)
    _arrive(session, 0, None)
    last = _arrive(session, 1, None)
    assert not last.HasField("winner")
    assert (last.decided, last.num_waiting) == (True, 0)


def test_an_arrival_costs_its_own_comparisons() -> None:
    counting = Counting()
    session = _started(pb.VoteRequest(), 6, counting)
    for index in (3, 0, 5, 1, 4, 2):
        _arrive(session, index, f"answer {index}")
    assert counting.calls == [1, 2, 3, 4, 5]  # 15 in all, each pair once


@given(
    data=st.data(),
    answers=st.lists(_WORDS, min_size=2, max_size=5),
    pooling=st.sampled_from(list(_POOLINGS)),
)
def test_the_last_answer_gives_the_vote_and_decided_winners_stay(
    data: st.DataObject, answers: list[str], pooling: pb.VoteRequest.Pooling.ValueType
) -> None:
    order = data.draw(st.permutations(range(len(answers))), "order")
    request = pb.VoteRequest(
        similarities=["token_f1", "containment_em"],
        similarity_weights=[0.4, 0.7],
        pooling=pooling,
        threshold=0.5,
    )
    session = _started(request, len(answers))
    decided: int | None = None
    for index in order:
        response = _arrive(session, index, answers[index])
        if decided is not None:
            assert (response.winner, response.decided) == (decided, True)
        if response.decided:
            decided = response.winner
    request.answers.extend(answers)
    whole = _vote(request)
    assert (response.winner, response.decided) == (whole.winner, True)
    assert np.array_equal(response.scores, whole.scores)


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("start", pb.VoteAnytimeRequest()),
        ("start", pb.VoteAnytimeRequest(answer=pb.VoteAnytimeRequest.Answer(text="x"))),
        ("start.num_answers", pb.VoteAnytimeRequest(start=_START(num_answers=1))),
        ("start.num_answers", pb.VoteAnytimeRequest(start=_START(num_answers=101))),
        (
            "start.vote.answers",
            pb.VoteAnytimeRequest(start=_START(vote=pb.VoteRequest(answers=["x"]), num_answers=2)),
        ),
        (
            "start.vote.retriever_weights",
            pb.VoteAnytimeRequest(start=_START(vote=pb.VoteRequest(retriever_weights=[1]), num_answers=2)),
        ),
        (
            "start.vote.retriever_weights",
            pb.VoteAnytimeRequest(
                start=_START(vote=pb.VoteRequest(retriever_weights=[0.1, 0.05]), num_answers=2)
            ),
        ),
        (
            "start.vote.similarities[0]",
            pb.VoteAnytimeRequest(start=_START(vote=pb.VoteRequest(similarities=["bleu"]), num_answers=2)),
        ),
        (
            "start.vote.question",
            pb.VoteAnytimeRequest(
                start=_START(vote=pb.VoteRequest(similarities=["nli_question"]), num_answers=2)
            ),
        ),
        (
            "start.vote.threshold",
            pb.VoteAnytimeRequest(start=_START(vote=pb.VoteRequest(threshold=2), num_answers=2)),
        ),
    ],
)
def test_bounds_of_a_start(field: str, request_: pb.VoteAnytimeRequest) -> None:
    with pytest.raises(InvalidField) as caught:
        measures.AnytimeVote(request_, Similarities(Models()))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("start", pb.VoteAnytimeRequest(start=_START(num_answers=2))),
        ("event", pb.VoteAnytimeRequest()),
        ("answer.index", pb.VoteAnytimeRequest(answer=pb.VoteAnytimeRequest.Answer(index=3, text="x"))),
        ("answer.index", pb.VoteAnytimeRequest(answer=pb.VoteAnytimeRequest.Answer(index=0, text="x"))),
        ("answer.index", pb.VoteAnytimeRequest(answer=pb.VoteAnytimeRequest.Answer(index=1, missing=True))),
        (
            "answer.text",
            pb.VoteAnytimeRequest(answer=pb.VoteAnytimeRequest.Answer(index=2, text="x", missing=True)),
        ),
    ],
)
def test_bounds_of_an_answer(field: str, request_: pb.VoteAnytimeRequest) -> None:
    session = _started(pb.VoteRequest(), 3)
    _arrive(session, 0, "rhine")
    _arrive(session, 1, None)
    with pytest.raises(InvalidField) as caught:
        session.add(request_)
    assert caught.value.field == field
    assert _arrive(session, 2, "elbe").num_waiting == 0  # nothing was taken


# --- the search for weights


def _training() -> pb.SearchVoteWeightsRequest:
    """Two retrievers agree on what is wrong; a third is right when it is asked alone."""
    return pb.SearchVoteWeightsRequest(
        questions=[
            _Question(question="q", answers=["elbe", "elbe", "rhine"], correctness=[0, 0, 1]),
            _Question(question="r", answers=["oder", "the oder", "main"], correctness=[0, 0, 1]),
        ],
        vote=pb.VoteRequest(similarities=["token_f1", "containment_em"], drop_filtered=True),
    )


def _never() -> None:
    pass


def _search(
    request: pb.SearchVoteWeightsRequest, check: Callable[[], None] = _never
) -> pb.SearchVoteWeightsResponse:
    return measures.search_weights(request, Similarities(Models()), check)


def test_a_search_is_that_of_the_science() -> None:
    response = _search(_training())
    similarity = [
        [ensemble.similarity_matrix(one.answers, compare) for compare in (token_f1, ensemble.containment_em)]
        for one in _training().questions
    ]
    expected = ensemble.search_weights(similarity, [[0, 0, 1], [0, 0, 1]], drop_filtered=True)
    assert list(response.retriever_weights) == expected.retriever_weights.tolist()
    assert list(response.similarity_weights) == expected.metric_weights.tolist()
    assert response.correctness == expected.correctness
    assert list(response.trace) == expected.trace.tolist()


def test_weights_stay_below_their_bound() -> None:
    request = _training()
    request.max_weight = 0.3
    response = _search(request)
    assert max([*response.retriever_weights, *response.similarity_weights]) <= 0.3


def test_an_abandoned_search_ends() -> None:
    asked = []

    class GoneError(Exception):
        pass

    def gone() -> None:
        asked.append(None)
        if len(asked) == 5:
            raise GoneError

    with pytest.raises(GoneError):
        _search(_training(), gone)
    assert len(asked) == 5


@pytest.mark.parametrize(
    ("field", "broken"),
    [
        ("questions", lambda m: m.ClearField("questions")),
        ("questions[0].answers", lambda m: m.questions[0].answers.__delitem__(slice(1, 3))),
        ("questions[1].answers", lambda m: m.questions[1].answers.append("x")),
        ("questions[1].correctness", lambda m: m.questions[1].correctness.append(1)),
        ("questions[1].correctness[2]", lambda m: m.questions[1].correctness.__setitem__(2, 1.5)),
        ("questions[1].question", lambda m: setattr(m.questions[1], "question", "x" * 8193)),
        ("vote.similarities[1]", lambda m: m.vote.similarities.__setitem__(1, "bleu")),
        ("vote.similarities[1]", lambda m: m.vote.similarities.__setitem__(1, "token_f1")),
        ("vote.pooling", lambda m: setattr(m.vote, "pooling", 9)),
        ("vote.retriever_filter", lambda m: setattr(m.vote, "retriever_filter", 0.3)),
        ("max_weight", lambda m: setattr(m, "max_weight", 0)),
        ("max_weight", lambda m: setattr(m, "max_weight", 1.5)),
    ],
)
def test_bounds_of_a_search(field: str, broken: Callable[[pb.SearchVoteWeightsRequest], object]) -> None:
    request = _training()
    broken(request)
    with pytest.raises(InvalidField) as caught:
        _search(request)
    assert caught.value.field == field


def test_a_search_reads_the_questions_where_a_similarity_does() -> None:
    request = _training()
    request.vote.similarities.append("nli_question")
    with pytest.raises(MissingModel):  # the request itself is valid
        _search(request)
    request.questions[1].question = ""
    with pytest.raises(InvalidField) as caught:
        _search(request)
    assert caught.value.field == "questions[1].question"


def test_a_search_of_more_than_memory_holds_is_refused() -> None:
    question = _Question(answers=["x"] * 1000, correctness=[0] * 1000)
    with pytest.raises(InvalidField, match="send fewer of either") as caught:
        cost.of(pb.SearchVoteWeightsRequest(questions=[question] * 135))
    assert caught.value.field == "questions"
    with pytest.raises(InvalidField) as caught:
        _search(pb.SearchVoteWeightsRequest(questions=[_Question()] * 10_001))
    assert caught.value.field == "questions"
