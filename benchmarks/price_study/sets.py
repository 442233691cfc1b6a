"""What the study asks: questions with accepted answers and useful passages, in the order of the seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import evenmesh_models
from benchmarks.rerank_table.judged_sets import JudgedSet
from benchmarks.shared_data import folder, rows
from evenmesh_generator.domain import Passage
from evenmesh_lab.files.trained_texts import find_trained_texts

SEED: Final = 28


@dataclass(frozen=True)
class Asked:
    """A data set as it is asked.

    Attributes:
        judged: its passages, and its questions with their useful passages.
        answers: accepted answers of each question.
        order: ids of the questions, in the order in which they are asked.
    """

    judged: JudgedSet
    answers: Mapping[str, Sequence[str]]
    order: Sequence[str]


def _bioasq() -> Asked:
    """Return the factoid and list questions of bioasq-golden; any item of a list is an answer."""
    found = [
        row
        for row in rows(folder("bioasq-golden") / "questions.jsonl.gz")
        if row["type"] in ("factoid", "list") and row["answers"] and row["gold_passage_ids"]
    ]
    return _asked("bioasq-golden", found)


def _multihop() -> Asked:
    """Return the questions of multihop-small that the bundled reader was not trained on."""
    trained = find_trained_texts(evenmesh_models.reader())
    if trained is None:
        raise FileNotFoundError("the bundled reader has no hashes of what it was trained on")
    found = rows(folder("multihop-small") / "questions.jsonl.gz")
    return _asked("multihop-small", [row for row in found if not trained.has_question(row["question"])])


def _asked(name: str, questions: Sequence[Mapping[str, Any]]) -> Asked:
    passages = [
        Passage(row["id"], row.get("title", ""), row["text"])
        for row in rows(folder(name) / "passages.jsonl.gz")
    ]
    queries = {row["id"]: row["question"] for row in questions}
    judgements = {row["id"]: dict.fromkeys(row["gold_passage_ids"], 1) for row in questions}
    order = np.random.default_rng(SEED).permutation(sorted(queries)).tolist()
    answers = {row["id"]: [one for some in row["answers"] for one in _synonyms(some)] for row in questions}
    return Asked(JudgedSet(name, passages, queries, judgements), answers, order)


def _synonyms(answer: str | Sequence[str]) -> Sequence[str]:
    return [answer] if isinstance(answer, str) else answer


SETS: Final[Mapping[str, Callable[[], Asked]]] = {"bioasq-golden": _bioasq, "multihop-small": _multihop}
