"""What the study asks, and the sources that its retrievers search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

import evenmesh_models
from benchmarks.shared_data import folder, rows
from evenmesh_generator.domain import Passage
from evenmesh_lab.files.trained_texts import TrainedTexts, find_trained_texts

SEED: Final = 28
TRAINED: Final = 435
"""Questions of a data set that weights are learned on, the first of its order."""
TESTED: Final = 870
"""The next ones."""
SOURCES: Final = ("squad", "nq", "google-re")
_FILES: Final = {
    "squad": ("squad-open", "passages.dev.jsonl.gz"),
    "nq": ("nq-passages", "passages.jsonl.gz"),
    "google-re": ("google-re", "passages.jsonl.gz"),
}
_SLOTS: Final = {
    "date of birth": "When was {} born?",
    "academic degree": "What academic degree does {} have?",
}


@dataclass(frozen=True)
class Question:
    """A question with its accepted answers.

    Attributes:
        id: within its data set.
        text: of the question.
        answers: any of them is right.
    """

    id: str
    text: str
    answers: tuple[str, ...]


def passages() -> dict[str, list[Passage]]:
    """Return the passages of each source."""
    return {
        source: [Passage(row["id"], row.get("title", ""), row["text"]) for row in rows(folder(data) / file)]
        for source, (data, file) in _FILES.items()
    }


def _squad() -> list[Question]:
    found = rows(folder("squad-open") / "questions.dev.jsonl.gz")
    return _ordered(Question(row["id"], row["question"], tuple(row["answers"])) for row in found)


def _google_re() -> list[Question]:
    """Return questions made of the slots whose judges agree and whose passage has the answer."""
    found = rows(folder("google-re") / "slots.jsonl.gz")
    return _ordered(
        Question(row["id"], _SLOTS[row["relation"]].format(row["subject"]), tuple(row["answers"]))
        for row in found
        if row["label"] == "yes" and row["answer_in_text"] and not _trained(row["query"])
    )


def _ordered(questions: Iterable[Question]) -> list[Question]:
    """Return those that no reader was trained on, as many as are asked, in the order of the seed."""
    unseen = sorted((one for one in questions if not _trained(one.text)), key=lambda one: one.id)
    order = np.random.default_rng(SEED).permutation(len(unseen))[: TRAINED + TESTED]
    return [unseen[place] for place in order.tolist()]


def _trained(text: str) -> bool:
    return _hashes().has_question(text)


@cache
def _hashes() -> TrainedTexts:
    known = find_trained_texts(evenmesh_models.reader())
    if known is None:
        raise FileNotFoundError("the bundled reader has no hashes of what it was trained on")
    return known


SETS: Final[Mapping[str, Callable[[], Sequence[Question]]]] = {"squad-open": _squad, "google-re": _google_re}
KNOWN_BY: Final = {"squad-open": "squad", "google-re": "google-re"}
"""The source that knows the answers of a data set."""
