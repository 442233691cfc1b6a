"""Ask a model the questions of every data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.ablation_study.sets import SETS, Question
from evenmesh_core.text_metrics import exact_match, token_f1
from evenmesh_generator.domain import Passage
from evenmesh_generator.pointer.reader import PointerReader
from evenmesh_kit.compute.placement import multiplies_bfloat16
from evenmesh_training.rankrag.starting_models import load_pointer

KEPT: Final = 5
"""Passages that are read."""
LONGEST: Final = 176
"""Tokens of a question with a passage, as in training."""
_TOGETHER: Final = 16


Found = Sequence[Sequence[Passage]]
Answering = Callable[[Sequence[Sequence[int]]], list[str]]
"""Returns the answer to each question from these of its passages."""
Judging = Callable[[Sequence[Question], Found], tuple[list[list[float]], Answering | None]]
"""Returns a score of every passage of every question, and what answers them; None if the model only ranks."""


def ask(judge: Judging) -> Iterator[dict[str, Any]]:
    """Yield what became of each question, as :func:`benchmarks.ablation_study.records.write` takes it."""
    for name, read in SETS.items():
        asked = read()
        found = asked.found()
        for begin in range(0, len(found), _TOGETHER):
            questions = asked.questions[begin : begin + _TOGETHER]
            for row in _asked(judge, questions, found[begin : begin + _TOGETHER]):
                yield {"data": name, **row}


def pointer(folder: Path, *, reads: bool) -> Judging:
    """Return a pointer model.

    Args:
        folder: of the model.
        reads: whether it learned to answer.
    """
    loaded, tokenizer = load_pointer(str(folder))
    narrow = multiplies_bfloat16(torch.device("cpu"))
    reader = PointerReader(loaded, tokenizer, limit=LONGEST, bfloat16=narrow)

    def judge(questions: Sequence[Question], found: Found) -> tuple[list[list[float]], Answering | None]:
        encodings = reader.encode_many(
            [
                (one.text, [(passage.title, passage.text) for passage in some])
                for one, some in zip(questions, found, strict=True)
            ]
        )

        def answer(kept: Sequence[Sequence[int]]) -> list[str]:
            contexts = [one.pick(places) for one, places in zip(encodings, kept, strict=True)]
            return [one.text for one in reader.answer_many(contexts)]

        return reader.verdicts(encodings), answer if reads else None

    return judge


def _asked(judge: Judging, questions: Sequence[Question], found: Found) -> list[dict[str, Any]]:
    """Return what became of some questions, given what BM25 found for each."""
    scores, answer = judge(questions, found)
    orders = [np.argsort(-np.asarray(values), kind="stable").tolist() for values in scores]
    rows: list[dict[str, Any]] = [
        {
            "question": one.id,
            "found": _first(one.gold, some),
            "ranked": _first(one.gold, [some[place] for place in order]),
        }
        for one, some, order in zip(questions, found, orders, strict=True)
    ]
    if answer is not None:
        for which, kept in (
            ("found", [list(range(min(KEPT, len(some)))) for some in found]),
            ("ranked", [order[:KEPT] for order in orders]),
        ):
            for row, one, text in zip(rows, questions, answer(kept), strict=True):
                row[f"{which}_exact"] = bool(exact_match(text, one.answers))
                row[f"{which}_f1"] = token_f1(text, one.answers)
    return rows


def _first(gold: Set[str], passages: Sequence[Passage]) -> int:
    """Return the place of the first gold passage, or -1."""
    return next((place for place, one in enumerate(passages) if one.id in gold), -1)
