"""Ranking examples of SQuAD 1.1 as an open-domain corpus (squad-open), and its dev questions to judge by."""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import bm25s
import numpy as np

from services.reranker.domain import Agent, Passage
from services.reranker.training.learning import Example

_DEPTH: Final = 20
"""Ranks of BM25 that negatives come from."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, what answers it, and the passages that hold the answer by annotation."""

    id: str
    text: str
    answers: tuple[str, ...]
    gold: frozenset[str]
    article: str


class Corpus:
    """Passages of a split, searched by BM25 (the method "lucene", k1 1.2, b 0.75, English stop words).

    Args:
        folder: of squad-open.
        split: train or dev.
        without: articles to leave out.
    """

    def __init__(self, folder: Path, split: str, without: Collection[str] = ()) -> None:
        self.passages = [
            Passage(row["id"], row["title"], row["text"])
            for row in lines(folder / f"passages.{split}.jsonl.gz")
            if row["title"] not in without
        ]
        self.questions = [
            Question(
                row["id"],
                row["question"],
                tuple(row["answers"]),
                frozenset(row["gold_passage_ids"]),
                row["title"],
            )
            for row in lines(folder / f"questions.{split}.jsonl.gz")
            if row["title"] not in without
        ]
        self._index = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
        texts = [f"{one.title} {one.text}" for one in self.passages]
        self._index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)

    def best(self, questions: Sequence[Question], depth: int) -> list[list[Passage]]:
        """BM25's best passages of each question, best first."""
        asked = bm25s.tokenize([one.text for one in questions], show_progress=False)
        found, _ = self._index.retrieve(asked, k=depth, show_progress=False)
        return [[self.passages[int(at)] for at in row] for row in found]


def ranking_examples(corpus: Corpus, *, questions: int, negatives: int, seed: int) -> list[Example]:
    """For each question drawn, its gold passage as useful and drawn hard negatives as not.

    Negatives are among BM25's best passages and hold none of the question's answers. All are for an unknown
    agent.
    """
    drawn = np.random.default_rng((seed, 1))
    chosen = [corpus.questions[at] for at in drawn.permutation(len(corpus.questions))[:questions]]
    by_id = {one.id: one for one in corpus.passages}
    found = []
    for question, best in zip(chosen, corpus.best(chosen, _DEPTH), strict=True):
        gold = by_id[min(question.gold)]
        answers = [answer.lower() for answer in question.answers]
        wrong = [one for one in best if not any(answer in one.text.lower() for answer in answers)]
        picked = drawn.permutation(len(wrong))[:negatives]
        for passage, usefulness in [(gold, 1.0), *((wrong[at], 0.0) for at in picked)]:
            found.append(Example(question.text, passage.title, passage.text, Agent(), usefulness))
    return found


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a gzipped file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)
