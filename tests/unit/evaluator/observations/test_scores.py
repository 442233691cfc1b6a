"""What one observation measures, with every value derived by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evenmesh.wire.errors import InvalidField
from evenmesh_core.ensemble import similarities, votes
from evenmesh_core.group_fairness import Attribute, Nugget
from evenmesh_core.text_metrics import normalize_answer
from evenmesh_evaluator.domain import (
    CONVERSATION,
    MEASURED,
    Exposed,
    JudgedConversation,
    Labels,
    Observation,
    ObservedConversation,
    SampledAnswer,
    UtilityMetric,
)
from evenmesh_evaluator.observations import scores
from evenmesh_evaluator.observations.scores import measure


def _observation(
    shown: list[list[int]],
    *,
    providers: str = "PQQR",
    labels: Labels | None = None,
    answers: tuple[SampledAnswer, ...] = (),
    texts: tuple[str, ...] = (),
    vote_winner: int | None = None,
    conversation: ObservedConversation | None = None,
) -> Observation:
    return Observation(
        id="o",
        run_id="run",
        query_id="q",
        observed_at_us=0,
        passage_ids=["a", "b", "c", "d"][: len(providers)],
        providers=list(providers),
        shown=np.array(shown, dtype=np.int64).reshape(len(shown), -1),
        answers=answers,
        labels=labels or Labels(),
        texts=texts,
        vote_winner=vote_winner,
        conversation=conversation,
    )


def _rows(exposed: Exposed | None) -> dict[str, tuple[float, float | None]]:
    assert exposed is not None
    target = [None] * len(exposed.names) if exposed.target is None else exposed.target.tolist()
    return dict(zip(exposed.names, zip(exposed.exposure.tolist(), target, strict=True), strict=True))


def test_exposure_of_two_samples() -> None:
    # Contexts {a, b} and {a, c}: ε = (1, 1/2, 1/2, 0). EE-D = 1 + 1/4 + 1/4, its bound k = 2.
    # a and d are useful, m = k = 2: ε* = (1, 0, 0, 1), so EE-R = 1·1 = 1 and its bound is 1 + 1.
    measured = measure(_observation([[0, 1], [0, 2]], labels=Labels(useful=frozenset("ad"))))
    defined = {name: value for name, value in measured.quantities.items() if value is not None}
    assert defined == pytest.approx({"ee_d": 3 / 2, "ee_d_norm": 3 / 4, "ee_r": 1.0, "ee_r_norm": 1 / 2})
    assert measured.quantities.keys() == MEASURED.keys()
    assert measured.num_rankings == 2
    # P provides a, Q b and c, R d.
    assert _rows(measured.providers) == {"P": (1.0, 1.0), "Q": (1.0, 0.0), "R": (0.0, 1.0)}
    assert _rows(measured.passages) == {"a": (1.0, 1.0), "b": (0.5, 0.0), "c": (0.5, 0.0), "d": (0.0, 1.0)}


def test_without_labels_only_disparity_is_defined() -> None:
    measured = measure(_observation([[0, 1]]))
    assert measured.quantities["ee_d_norm"] == 1.0
    assert measured.quantities["ee_r"] is None
    assert measured.quantities["ee_r_norm"] is None
    assert _rows(measured.providers) == {"P": (1.0, None), "Q": (1.0, None), "R": (0.0, None)}
    # c and d were neither shown nor deserved anything that is known of.
    assert _rows(measured.passages) == {"a": (1.0, None), "b": (1.0, None)}


def test_nothing_useful_is_known_and_leaves_relevance_undefined() -> None:
    # m = 0, but known: the target is uniform, min(k, n) / n = 2/4 each.
    measured = measure(_observation([[0, 1]], labels=Labels(useful=frozenset())))
    assert measured.quantities["ee_r"] is None
    assert _rows(measured.providers)["Q"] == (1.0, 1.0)
    assert _rows(measured.passages)["d"] == (0.0, 0.5)


def test_a_useful_passage_that_was_no_candidate_counts_as_not_shown() -> None:
    # Useful are a and z, z was never retrieved: items (a, b, c, d, z), ε = (1, 1, 0, 0, 0), ε* = (1, 0, 0, 0,
    # 1). EE-R = 1 of 2; had z been ignored, ε* = (1, 1/3, 1/3, 1/3) and EE-R would be 4/3.
    measured = measure(_observation([[0, 1]], labels=Labels(useful=frozenset("az"))))
    assert measured.quantities["ee_r"] == 1.0
    assert measured.quantities["ee_r_norm"] == 0.5
    assert measured.quantities["ee_d_norm"] == 1.0
    assert _rows(measured.passages) == {"a": (1.0, 1.0), "b": (1.0, 0.0), "z": (0.0, 1.0)}
    assert _rows(measured.providers)["P"] == (1.0, 1.0)


def test_expected_utility_is_the_mean_over_answered_samples() -> None:
    # Exact match: samples 0 and 2 are right, sample 1 is wrong, sample 3 has no answer: (1 + 0 + 1) / 3.
    labels = Labels(references=("the Rhine",), metric=UtilityMetric.EXACT_MATCH)
    answers = (SampledAnswer("Rhine", (0, 2)), SampledAnswer("Elbe", (1,)))
    measured = measure(_observation([[0], [1], [0], [2]], labels=labels, answers=answers))
    assert measured.quantities["expected_utility"] == pytest.approx(2 / 3)
    assert measured.largest_utility == 1.0
    assert measured.num_unanswered == 1


def test_token_f1_takes_the_best_reference() -> None:
    # "river rhine" against "rhine": precision 1/2, recall 1, F1 = 2/3; against "elbe river valley": 2/5.
    labels = Labels(references=("elbe river valley", "rhine"))
    answers = (SampledAnswer("river Rhine", (0,)),)
    measured = measure(_observation([[0]], labels=labels, answers=answers))
    assert measured.quantities["expected_utility"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("answers", [(), (SampledAnswer("anything", (0,)),)])
def test_without_references_utility_is_undefined(answers: tuple[SampledAnswer, ...]) -> None:
    measured = measure(_observation([[0]], answers=answers))
    assert measured.quantities["expected_utility"] is None
    assert measured.largest_utility is None


def test_nothing_shown_leaves_exposure_undefined() -> None:
    measured = measure(_observation([[]], answers=(SampledAnswer("from memory", (0,)),)))
    assert set(measured.quantities.values()) == {None}
    assert measured.providers is None
    assert measured.passages is None
    assert (measured.num_rankings, measured.num_unanswered) == (1, 0)


@pytest.mark.parametrize(
    ("winner", "agreement"),
    [
        # "Rhine" is held by "river Rhine", twice, and not by "Elbe": 2 of the 3 other samples.
        (0, 2 / 3),
        # "river Rhine" speaks for two samples: of the others, its own second and "Rhine" agree.
        (1, 2 / 3),
        (2, 0 / 3),
        (None, None),
    ],
)
def test_agreement_is_over_the_other_samples(winner: int | None, agreement: float | None) -> None:
    answers = (
        SampledAnswer("Rhine", (0,)),
        SampledAnswer("the river Rhine!", (1, 2)),
        SampledAnswer("Elbe", (3,)),
    )
    measured = measure(_observation([[0], [1], [2], [3]], answers=answers, vote_winner=winner))
    assert measured.quantities["vote_agreement"] == (
        agreement if agreement is None else pytest.approx(agreement)
    )


def test_utility_after_a_vote_is_that_of_the_winner() -> None:
    answers = (SampledAnswer("Rhine", (0,)), SampledAnswer("Elbe", (1, 2)))
    shown: list[list[int]] = [[], [], []]
    labels = Labels(references=("the Rhine",))
    utilities = {
        winner: measure(_observation(shown, labels=labels, answers=answers, vote_winner=winner)).quantities[
            "expected_utility"
        ]
        for winner in (0, 1, None)
    }
    assert utilities == {0: 1.0, 1: 0.0, None: pytest.approx((1 + 0 + 0) / 3)}


def test_a_vote_shows_nothing_by_itself() -> None:
    answers = (SampledAnswer("Rhine", (0,)), SampledAnswer("Elbe", (2,)))
    measured = measure(_observation([[], [], []], answers=answers, vote_winner=0))
    assert (measured.num_rankings, measured.num_unanswered) == (3, 1)
    assert measured.quantities["ee_d"] is None
    assert (measured.providers, measured.passages) == (None, None)
    # The one other answer is another.
    assert measured.quantities["vote_agreement"] == 0.0


def test_the_agreement_of_many_votes_takes_no_square_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 samples of one answer would be 10 GB as a square."""
    sizes, checked = [], votes.float_array

    def noted(name: str, given: Any, **how: Any) -> Any:
        sizes.append(np.size(given))
        return checked(name, given, **how)

    monkeypatch.setattr(votes, "float_array", noted)
    many = 1000
    answers = (SampledAnswer("yes", tuple(range(many))),)
    measured = measure(_observation([[0]] * many, answers=answers, vote_winner=0))
    assert measured.quantities["vote_agreement"] == 1.0
    assert sizes == [many]


def test_the_agreement_of_one_vote_is_undefined() -> None:
    answers = (SampledAnswer("Rhine", (0,)),)
    assert measure(_observation([[0]], answers=answers, vote_winner=0)).quantities["vote_agreement"] is None


ERRORS = ("retriever_error", "hallucination_error", "extraction_error", "lucky_guess")


def _errors(observation: Observation) -> tuple[float | None, ...]:
    quantities = measure(observation).quantities
    return tuple(quantities[name] for name in ERRORS)


def test_kinds_of_errors_are_shares_of_answered_samples() -> None:
    # Right is "Rhine". a holds Rhine and Elbe, b holds Elbe only, c nothing of either.
    texts = ("From the Rhine to the Elbe", "the Elbe, which", "rivers", "-")
    answers = (
        SampledAnswer("Rhine", (0, 3)),  # context a: right; context c: right, held by nothing: lucky
        SampledAnswer("Elbe", (1,)),  # context a holds both: extraction
        SampledAnswer("Oder", (2,)),  # context b: neither held: retriever error and hallucination
    )
    observation = _observation(
        [[0], [0], [1], [2], [0]], labels=Labels(references=("Rhine",)), answers=answers, texts=texts
    )
    # Samples 2 and 3 lack the right answer and the one given; sample 4 has no answer and does not count.
    assert _errors(observation) == (2 / 4, 2 / 4, 1 / 4, 1 / 4)


def test_words_are_held_whole() -> None:
    # "Rhineland" does not hold "Rhine": retriever error; it does not hold the answer either.
    observation = _observation(
        [[0]],
        labels=Labels(references=("Rhine",)),
        answers=(SampledAnswer("Rhine", (0,)),),
        texts=("Rhineland", "", "", ""),
    )
    assert _errors(observation) == (1.0, 1.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("references", "texts", "shown"),
    [
        ((), ("Rhine",) * 4, [[0]]),  # nothing is known to be right
        (("Rhine",), (), [[0]]),  # no texts at all
        (("Rhine",), ("Rhine", "", "", ""), [[0, 1]]),  # one that was shown has none
        (("Rhine",), ("Rhine",) * 4, [[]]),  # no context
    ],
)
def test_errors_need_references_and_texts(
    references: tuple[str, ...], texts: tuple[str, ...], shown: list[list[int]]
) -> None:
    answers = (SampledAnswer("Rhine", (0,)),)
    observation = _observation(shown, labels=Labels(references=references), answers=answers, texts=texts)
    assert _errors(observation) == (None,) * 4


def _conversation(groups: int = 2) -> ObservedConversation:
    nugget = Nugget(word_count=1, gain=1.0, membership={"g": [1.0] + [0.0] * (groups - 1)})
    judged = JudgedConversation(
        turns=[[nugget]], attributes={"g": Attribute([0.5, 0.5], "jsd")}, patience=1, alpha=0.5
    )
    return ObservedConversation("c", judged)


def test_a_conversation_is_measured() -> None:
    # L = 1: R = 2/(1+1)·1·1 = 1. JSD of (1, 0) and (1/2, 1/2): m = (3/4, 1/4), 1/2·log2(4/3) +
    # 1/2·(1/2·log2(2/3) + 1/2·log2(2)).
    jsd = 0.5 * np.log2(4 / 3) + 0.5 * (0.5 * np.log2(2 / 3) + 0.5 * np.log2(2))
    quantities = measure(_observation([[0]], conversation=_conversation())).quantities
    assert [quantities[name] for name in CONVERSATION] == pytest.approx(
        [1.0, 1 - jsd, 0.5 * 1.0 + 0.5 * (1 - jsd)]
    )


def test_a_conversation_that_does_not_fit_names_its_field() -> None:
    with pytest.raises(InvalidField) as caught:
        measure(_observation([[0]], conversation=_conversation(groups=3)))
    assert caught.value.field is not None
    assert caught.value.field.startswith("conversation.judged.turns[0].nuggets[0].membership")


def test_a_vote_normalises_each_answer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(text: str) -> str:
        read.append(text)
        return normalize_answer(text)

    monkeypatch.setattr(scores, "normalize_answer", counted)
    monkeypatch.setattr(similarities, "normalize_answer", counted)
    answers = tuple(SampledAnswer(f"answer {at}", (at,)) for at in range(5))
    measure(_observation([[0]] * 5, answers=answers, vote_winner=0))
    assert sorted(read) == [f"answer {at}" for at in range(5)]
