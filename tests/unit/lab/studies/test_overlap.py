"""What of a study its models were trained on: seen, unseen and unknown, the unseen first."""

from __future__ import annotations

import pytest

from evenmesh_lab.files.trained_texts import TrainedTexts, TrainingTexts
from evenmesh_lab.studies.known_models import involved, trained
from evenmesh_lab.studies.overlap import measure

QUESTIONS = {"a": ("Who wrote it?",), "b": ("Where is it?",), "c": ("Why?", "Why? And when?")}
TEXTS = TrainedTexts(
    (TrainingTexts.of("x", ["who wrote it", "why and when"], ["A passage."]),), ("a language model",)
)


def test_seen_and_unseen_questions_are_parted_the_unseen_first() -> None:
    found = measure(QUESTIONS, {"mine": TEXTS, "theirs": None}, ["a passage", "another"])
    assert found.parts == (("unseen", frozenset("b")), ("seen", frozenset("ac")))
    assert found.statement == (
        "2 of the 3 questions are in the training of mine: the 1 unseen ones come first. Unknown of theirs."
    )
    counted = [(row.model, row.what, row.total, row.seen, row.besides) for row in found.rows]
    assert counted == [
        ("mine", "questions", 3, 2, "a language model"),
        ("mine", "passages", 2, 1, "a language model"),
        ("theirs", "questions", 3, None, ""),
        ("theirs", "passages", 2, None, ""),
    ]
    assert [row[:4] for row in found.table().rows][2] == ("theirs", "questions", 3, "unknown")


def test_a_model_without_hashes_is_unknown_and_not_unseen() -> None:
    found = measure(QUESTIONS, {"theirs": None})
    assert (found.known, found.parts, found.unseen) == (False, (), frozenset())
    assert found.statement == (
        "Whether a model was trained on these 3 questions is unknown: none (theirs) carries hashes of its "
        "training."
    )
    assert "unknown" in measure(QUESTIONS, {}).statement


def test_nothing_and_everything_seen_have_sentences_of_their_own() -> None:
    none = measure({"b": QUESTIONS["b"]}, {"mine": TEXTS})
    assert none.statement == "None of the 1 questions is in the training of mine."
    assert none.parts == ()
    every = measure({"a": QUESTIONS["a"]}, {"mine": TEXTS})
    assert every.statement == "All 1 questions are in the training of mine."
    assert [name for name, _ in every.parts] == ["seen"]


def test_models_are_found_in_the_facts_of_a_run() -> None:
    facts = {
        "version of m": "v1",
        "version of rankrag": "m@v1",
        "reranker of bm25": "cross-encoder 12ab",
        "reranker of dense": "none",
        "reranker of x": "",
        "model of chat": "llama",
        "index of bm25": "7",
    }
    assert involved(facts) == {"m": "v1", "rankrag": "m@v1", "cross-encoder": "12ab", "llama": ""}
    assert involved({"reranker": "rankrag m@v1"}) == {"rankrag": "m@v1"}


def test_what_is_given_goes_before_the_bundled_models() -> None:
    facts = {"version of mine": "1", "reranker": "cross-encoder 12ab"}
    assert trained(facts, {"mine": TEXTS, "cross-encoder": TEXTS}) == {"mine": TEXTS, "cross-encoder": TEXTS}


@pytest.mark.parametrize("passages", [None, []])
def test_passages_are_left_out_where_they_are_not_known(passages: list[str] | None) -> None:
    rows = measure(QUESTIONS, {"mine": TEXTS}, passages).rows
    assert len(rows) == (1 if passages is None else 2)
