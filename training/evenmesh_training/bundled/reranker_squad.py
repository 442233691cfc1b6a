"""Ranking examples of SQuAD 1.1 as an open-domain corpus (squad-open), and its dev questions for tests."""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import bm25s
import numpy as np

from evenmesh_reranker.domain import Agent, Passage
from evenmesh_training.ium.learning import Example

_DEPTH: Final = 20
"""Ranks of BM25 that negatives come from."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its answers, and the passages annotated to hold an answer."""

    id: str
    text: str
    answers: tuple[str, ...]
    gold: frozenset[str]


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
            )
            for row in lines(folder / f"questions.{split}.jsonl.gz")
            if row["title"] not in without
        ]
        self._index = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
        texts = [f"{one.title} {one.text}" for one in self.passages]
        self._index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)

    def best(self, questions: Sequence[Question], depth: int) -> list[list[Passage]]:
        """Return BM25's best passages for each question, best first."""
        queries = bm25s.tokenize([one.text for one in questions], show_progress=False)
        found, _ = self._index.retrieve(queries, k=depth, show_progress=False)
        return [[self.passages[int(at)] for at in row] for row in found]


def ranking_examples(corpus: Corpus, *, questions: int, negatives: int, seed: int) -> list[Example]:
    """Return, for random questions, the gold passage as useful and random hard negatives as useless.

    Negatives are among BM25's best passages and hold none of the question's answers. All examples are for an
    unknown agent.
    """
    rng = np.random.default_rng((seed, 1))
    chosen = [corpus.questions[at] for at in rng.permutation(len(corpus.questions))[:questions]]
    by_id = {one.id: one for one in corpus.passages}
    found = []
    for question, best in zip(chosen, corpus.best(chosen, _DEPTH), strict=True):
        gold = by_id[min(question.gold)]
        answers = [answer.lower() for answer in question.answers]
        wrong = [one for one in best if not any(answer in one.text.lower() for answer in answers)]
        picked = rng.permutation(len(wrong))[:negatives]
        for passage, usefulness in [(gold, 1.0), *((wrong[at], 0.0) for at in picked)]:
            found.append(Example(question.text, passage.title, passage.text, Agent(), usefulness))
    return found


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a gzipped file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)
