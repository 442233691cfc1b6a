"""The promises that the card of the demo corpus makes, each checked on the shipped files."""

import re
from collections import Counter
from functools import cache
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest
from rank_bm25 import BM25Okapi

from evenmesh.types.passage import Passage
from evenmesh_studies import demo

MISCELLANY = "miscellany"
"""The topic of the passages that answer nothing."""

# Answers that also occur in a passage about something else. A person has read each pair: the passage does not
# answer the question ("ten minutes on the village green" is not how long oil soaks in).
READ_AND_HARMLESS = {
    ("bike-q02", "bike-0073"),
    ("bike-q08", "bike-0059"),
    ("bike-q10", "bike-0199"),
    ("bike-q25", "bike-0113"),
    ("bike-q28", "bike-0141"),
    ("bike-q47", "bike-0029"),
}

PASSAGES = demo.passages()
QUESTIONS = demo.questions()
BY_ID = {passage.id: passage for passage in PASSAGES}


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def occurs(answer: str, passage: Passage) -> bool:
    """Whether the answer stands in the text as whole words, so that "5 psi" is not found in "25 psi"."""
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", passage.text, re.IGNORECASE) is not None


def topic_of(question: demo.Question) -> str:
    topics = {BY_ID[i].attributes[demo.TOPIC] for i in question.useful_passage_ids}
    assert len(topics) == 1
    return topics.pop()


@cache
def bm25_rankings() -> dict[str, list[str]]:
    index = BM25Okapi([words(f"{p.title} {p.text}") for p in PASSAGES])
    ids = [p.id for p in PASSAGES]
    return {
        q.id: [ids[i] for i in np.argsort(-index.get_scores(words(q.question)), kind="stable")]
        for q in QUESTIONS
    }


def test_about_two_hundred_passages_with_ordered_ids_from_seven_providers() -> None:
    assert [p.id for p in PASSAGES] == [f"bike-{n:04d}" for n in range(1, 210)]
    assert len({p.provider for p in PASSAGES}) == 7
    assert all(set(p.attributes) == {"provider", "topic"} and all(p.attributes.values()) for p in PASSAGES)


def test_sixty_questions_with_ordered_ids() -> None:
    assert [q.id for q in QUESTIONS] == [f"bike-q{n:02d}" for n in range(1, 61)]
    assert len({q.question for q in QUESTIONS}) == 60
    assert all(q.question.endswith("?") for q in QUESTIONS)


def test_passages_are_short_and_titled() -> None:
    lengths = {p.id: len(p.text.split()) for p in PASSAGES}
    assert {i: n for i, n in lengths.items() if not 60 <= n <= 110} == {}
    titles = Counter(p.title for p in PASSAGES)
    assert titles.most_common(1)[0][1] == 1
    assert all(p.title == p.title.strip() != "" and p.text == p.text.strip() for p in PASSAGES)


def test_no_provider_has_more_than_a_quarter_of_the_passages() -> None:
    assert max(Counter(p.provider for p in PASSAGES).values()) <= len(PASSAGES) / 4


def test_a_provider_covers_a_topic_at_most_once() -> None:
    pairs = Counter((p.provider, p.attributes[demo.TOPIC]) for p in PASSAGES)
    assert {pair for pair, n in pairs.items() if n > 1 and pair[1] != MISCELLANY} == set()


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.id)
def test_labels_of_a_question(question: demo.Question) -> None:
    useful = [BY_ID[i] for i in question.useful_passage_ids]  # a missing id raises
    assert list(question.useful_passage_ids) == sorted(set(question.useful_passage_ids))
    assert question.answers
    assert all(
        answer in passage.text.lower() for passage in useful for answer in map(str.lower, question.answers)
    )
    # Providers are listed beside their passages and are all different.
    assert [p.provider for p in useful] == list(question.providers)
    assert len(set(question.providers)) == len(question.providers)
    # No passage of the same topic that has the answer was forgotten.
    same_topic = [p for p in PASSAGES if p.attributes[demo.TOPIC] == topic_of(question)]
    having_answer = [p.id for p in same_topic if any(occurs(a, p) for a in question.answers)]
    assert having_answer == list(question.useful_passage_ids)


def test_answers_in_passages_of_other_topics_were_read_by_a_person() -> None:
    elsewhere = {
        (q.id, p.id)
        for q in QUESTIONS
        for p in PASSAGES
        if p.attributes[demo.TOPIC] != topic_of(q) and any(occurs(a, p) for a in q.answers)
    }
    assert elsewhere == READ_AND_HARMLESS


def test_most_questions_have_three_to_six_useful_passages_and_a_few_have_fewer() -> None:
    counts = Counter(len(q.useful_passage_ids) for q in QUESTIONS)
    assert sum(counts[n] for n in (3, 4, 5, 6)) >= 0.75 * len(QUESTIONS)
    assert counts[1] + counts[2] >= 1
    assert max(counts) <= 6


def test_every_topic_is_asked_about_except_the_miscellany() -> None:
    asked = {topic_of(q) for q in QUESTIONS}
    assert {p.attributes[demo.TOPIC] for p in PASSAGES} - asked == {MISCELLANY}


def test_no_two_passages_share_wording() -> None:
    # Jaccard similarity of word 8-grams. Two passages of one fact may share a phrase, not a sentence.
    shingles = {
        p.id: {tuple(w[i : i + 8]) for i in range(len(w) - 7)} for p in PASSAGES for w in [words(p.text)]
    }
    alike = {
        (a, b)
        for a, b in combinations(shingles, 2)
        if len(shingles[a] & shingles[b]) > 0.02 * len(shingles[a] | shingles[b])
    }
    assert alike == set()


def test_bm25_finds_the_useful_passages() -> None:
    rankings = bm25_rankings()
    recall = [
        len(set(q.useful_passage_ids) & set(rankings[q.id][:20])) / len(q.useful_passage_ids)
        for q in QUESTIONS
    ]
    first_is_useful = [rankings[q.id][0] in q.useful_passage_ids for q in QUESTIONS]
    assert np.mean(recall) >= 0.9
    assert np.mean(first_is_useful) >= 0.8


def test_a_deterministic_ranking_favours_one_provider() -> None:
    # What makes exposure worth measuring here: equal usefulness, one winner.
    rankings = bm25_rankings()
    first, useful = Counter[str](), Counter[str]()
    for q in QUESTIONS:
        useful.update(q.providers)
        first[BY_ID[next(i for i in rankings[q.id] if i in q.useful_passage_ids)].provider] += 1
    provider, wins = first.most_common(1)[0]
    assert wins / len(QUESTIONS) >= 0.6
    assert useful[provider] / useful.total() <= 0.25


def test_the_card_states_the_statistics_of_the_files() -> None:
    card = (files(demo) / "README.md").read_text(encoding="utf-8")
    lengths = [len(p.text.split()) for p in PASSAGES]
    spread = f"{min(lengths)} / {np.median(lengths):.0f} / {max(lengths)}"
    answering_nothing = sum(p.attributes[demo.TOPIC] == MISCELLANY for p in PASSAGES)
    topics = {p.attributes[demo.TOPIC] for p in PASSAGES} - {MISCELLANY}
    useful = Counter(len(q.useful_passage_ids) for q in QUESTIONS)
    counts = Counter(p.provider for p in PASSAGES)
    answering = Counter(provider for q in QUESTIONS for provider in q.providers)
    expected = [
        f"| passages | {len(PASSAGES)} |",
        f"| passages that answer no question | {answering_nothing} |",
        f"| topics | {len(topics)} |",
        f"| words per passage, least / median / most | {spread} |",
        f"| questions | {len(QUESTIONS)} |",
        *(f"| questions with {n} useful passage{'s' * (n > 1)} | {useful[n]} |" for n in range(1, 7)),
        *(f"| {provider} | {n} | {answering[provider]} |" for provider, n in counts.items()),
    ]
    assert [line for line in expected if line not in card.splitlines()] == []
