"""Ranking examples of SQuAD: what is useful, what is a hard negative, and what is left out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from evenmesh_reranker.domain import Agent
from evenmesh_training.bundled import reranker_squad as squad
from evenmesh_training.bundled import reranker_warm_start as warm_start

PASSAGES = [
    {"id": "a1", "title": "Oil", "text": "a chain wants oil every month"},
    {"id": "a2", "title": "Oil", "text": "oil for a chain is bought in shops"},
    {"id": "a3", "title": "Oil", "text": "a chain without oil squeaks within a month"},
    {"id": "b1", "title": "Birds", "text": "swifts sleep while they fly"},
]
QUESTIONS = [
    {
        "id": "q1",
        "question": "how often does a chain want oil",
        "answers": ["every month", "month"],
        "gold": "a1",
    },
    {"id": "q2", "question": "when do swifts sleep", "answers": ["while they fly"], "gold": "b1"},
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    def write(path: Path, rows: list[dict[str, object]]) -> None:
        path.parent.mkdir(exist_ok=True)
        with gzip.open(path, "wt", encoding="utf-8") as stream:
            stream.writelines(f"{json.dumps(row)}\n" for row in rows)

    titles = {one["id"]: one["title"] for one in PASSAGES}
    filler = [{"id": f"c{at}", "title": "Other", "text": f"number {at}"} for at in range(20)]
    write(tmp_path / "squad-open" / "passages.train.jsonl.gz", [*PASSAGES, *filler])
    questions: list[dict[str, object]] = [
        {**one, "gold_passage_ids": [one["gold"]], "title": titles[str(one["gold"])]} for one in QUESTIONS
    ]
    write(tmp_path / "squad-open" / "questions.train.jsonl.gz", questions)
    asked: list[dict[str, object]] = [
        {"id": "squad11-train-p1", "title": "Birds"},
        {"id": "qed-1", "title": "Oil"},
    ]
    write(tmp_path / "wiki-multitask" / "passages.jsonl.gz", asked)
    return tmp_path


def test_the_gold_passage_is_useful_and_negatives_hold_no_answer(data: Path) -> None:
    corpus = squad.Corpus(data / "squad-open", "train")
    found = squad.ranking_examples(corpus, questions=2, negatives=3, seed=1)
    assert all(one.agent == Agent() for one in found)
    of_oil = [one for one in found if "chain" in one.query]
    assert [one.text for one in of_oil if one.usefulness == 1.0] == [PASSAGES[0]["text"]]
    wrong = [one for one in of_oil if one.usefulness == 0.0]
    assert len(wrong) == 3
    assert not any("month" in one.text for one in wrong)
    assert squad.ranking_examples(corpus, questions=2, negatives=3, seed=1) == found


def test_bm25_finds_the_best_first(data: Path) -> None:
    corpus = squad.Corpus(data / "squad-open", "train")
    oil, swifts = corpus.best(corpus.questions, 3)
    assert {one.id for one in oil} == {"a1", "a2", "a3"}
    assert swifts[0].id == "b1"


def test_articles_that_are_asked_about_are_left_out(data: Path) -> None:
    without = warm_start.articles(data)
    assert without == {"Birds"}
    corpus = squad.Corpus(data / "squad-open", "train", without)
    assert [one.id for one in corpus.questions] == ["q1"]
    assert "b1" not in {one.id for one in corpus.passages}
