"""Which questions and relevant passages of the data sets the bundled models were trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import evenmesh_models
from benchmarks import page
from benchmarks.rerank_table.judged_sets import CROSS_ENCODER, READER, JudgedSet
from evenmesh_lab.files.trained_texts import TrainedTexts, find_trained_texts

_INTRODUCTION: Final = """
## Seen in training

Questions and relevant passages of each data set that are in the training of `rankrag` (the reader) and of the
cross-encoder, by the hashes beside their weights: case, white space and punctuation do not count, and one
text in a thousand is there by chance. The data sets with `*` are of the domain of the training, and need not
have a question of it.

"""


def section(sets: Mapping[str, JudgedSet]) -> str:
    """Return the part of the page, a row for each model and kind of text."""
    models = {
        READER: find_trained_texts(evenmesh_models.reader()),
        CROSS_ENCODER: find_trained_texts(evenmesh_models.cross_encoder()),
    }
    return _INTRODUCTION + page.table([row for name, one in models.items() for row in rows(name, one, sets)])


def rows(model: str, texts: TrainedTexts | None, sets: Mapping[str, JudgedSet]) -> list[dict[str, str]]:
    """Return how many of the questions, and of their relevant passages, a model was trained on."""
    questions = {"model": model, "texts": "questions"}
    passages = {"model": model, "texts": "relevant passages"}
    for name, judged in sets.items():
        if texts is None:
            questions[name] = passages[name] = "unknown"
            continue
        asked = list(judged.queries.values())
        questions[name] = f"{sum(map(texts.has_question, asked)):,} of {len(asked):,}"
        wanted = {
            id_ for query in judged.queries for id_, grade in judged.judgements[query].items() if grade > 0
        }
        shown = [one.text for one in judged.passages if one.id in wanted]
        passages[name] = f"{sum(map(texts.has_passage, shown)):,} of {len(shown):,}"
    return [questions, passages]
