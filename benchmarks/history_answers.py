"""What the bundled model answers if it reads words of earlier turns: a table in docs/guides/conversations.md.

``python -m benchmarks.history_answers`` takes one turn of each conversation of mtrag and doc2dial-val, finds
five passages as ``benchmarks.history_turns`` does, and answers with words of the last 0, 1, 3 and 10 user
turns behind the question. It writes token F1 into the page. ``--home`` keeps vectors of passages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import command
from benchmarks.history_turns import PAGE, PARTS, Part, Turn, drawn, read, shown
from benchmarks.page import fill, table
from benchmarks.shared_data import folder, pieces, rows
from evenmesh_core import asking, earlier_words
from evenmesh_core.arrays import FloatArray
from evenmesh_core.text_metrics import token_f1
from evenmesh_generator.domain import Augmentation, Decoding, GenerationRequest, Passage
from evenmesh_generator.ports import Cancellation, LanguageModel
from evenmesh_lab.studies import Bootstrap

DEPTHS: Final = {"alone": 0, "1 turn": 1, "3": 3, "10 (`words`)": 10}
"""Earlier user turns whose words the model reads behind the question, by column."""
ALONE: Final = "alone"
DEFAULT: Final = "10 (`words`)"
K: Final = 5


def main() -> None:
    """Answer, and write the table into the page."""
    parser = command.parser("history_answers", __doc__)
    parser.add_argument(
        "--home", type=Path, default=Path("build/history-turns"), help="where vectors are kept"
    )
    given = parser.parse_args()
    from benchmarks.generation import BUNDLED, in_process  # imports PyTorch

    with in_process(BUNDLED, None, dtype="float32", home=given.home) as model:
        measured = [(part, f1(part, drawn(read(part), part.least), model, given.home)) for part in PARTS]
    date = f"Measured on {datetime.now(UTC):%Y-%m-%d}."
    fill(PAGE, {"history answers": f"{table([row(part, found) for part, found in measured])}\n\n{date}"})


def f1(part: Part, asked: Sequence[Turn], model: LanguageModel, home: Path) -> dict[str, FloatArray]:
    """Return token F1 of the answer to each turn, by column."""
    contexts = found(part, asked, home)
    answers = asyncio.run(answered(model, asked, contexts))
    return {
        column: np.array(
            [token_f1(text, list(turn.answers)) for text, turn in zip(texts, asked, strict=True)]
        )
        for column, texts in answers.items()
    }


def found(part: Part, asked: Sequence[Turn], home: Path) -> list[tuple[Passage, ...]]:
    """Return the passages for each turn, as a conversation with default options finds them."""
    from benchmarks.rerank_table.judged_sets import JudgedSet
    from benchmarks.rerank_table.scoring import FirstStages, standardized  # imports PyTorch

    searched = [
        asking.searched(one.question, contextual(one, DEPTHS[DEFAULT]) or one.question) for one in asked
    ]
    passages = [
        passage
        for document in rows(folder(part.name) / f"{part.passages}.jsonl.gz")
        for passage in split(document)
    ]
    by_id = {one.id: one for one in passages}
    texts = {str(place): text for place, text in enumerate(searched)}
    stages = FirstStages(JudgedSet(part.name, passages, texts, {}), home)

    def best(name: str) -> tuple[Passage, ...]:
        one = stages.found(name)
        scores = standardized(one.bm25, one.dense)
        return tuple(by_id[at] for at in sorted(scores, key=lambda at: (-scores[at], at))[:K])

    return [best(name) for name in texts]


def split(document: Mapping[str, Any]) -> list[Passage]:
    """Return a document as passages of about 100 words."""
    return [
        Passage(f"{document['id']}-{part}", document.get("title", ""), text)
        for part, text in enumerate(pieces(document["text"]))
    ]


def contextual(turn: Turn, depth: int) -> str:
    """Return the question followed by words of the newest earlier turns; empty where it has none of them."""
    text = earlier_words.words(turn.question, turn.earlier[-depth:] if depth else ())
    return "" if text == turn.question else text


async def answered(
    model: LanguageModel, asked: Sequence[Turn], contexts: Sequence[tuple[Passage, ...]]
) -> dict[str, list[str]]:
    """Return the greedy answers to all turns, by column."""

    async def answer(turn: Turn, passages: tuple[Passage, ...], depth: int) -> str:
        request = GenerationRequest(
            turn.question,
            passages,
            augmentation=Augmentation.FUSION_IN_DECODER,
            decoding=Decoding(),
            contextual_question=contextual(turn, depth),
        )
        return (await model.generate(request, Cancellation())).text

    return {
        column: [await answer(turn, passages, depth) for turn, passages in zip(asked, contexts, strict=True)]
        for column, depth in DEPTHS.items()
    }


def row(part: Part, values: Mapping[str, FloatArray]) -> dict[str, str]:
    """Return a row of the table: means, and what the default has beside the question alone."""
    after = "six" if part.least == 6 else "one"
    cells = {"": f"{part.name}, after at least {after}", "conversations": str(len(values[DEFAULT]))}
    cells |= {column: f"{values[column].mean():.3f}" for column in DEPTHS}
    gap = Bootstrap().paired(f"{part.name} {part.least}", values[DEFAULT], values[ALONE]).difference
    cells["`words` beside alone"] = shown(gap)
    return cells


if __name__ == "__main__":
    main()
