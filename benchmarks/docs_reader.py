"""``python -m benchmarks.docs_reader``: ask the bundled reader what our own documentation answers.

Each of the forty questions is asked of the five sections that the reader itself ranks first among the best of
the hybrid, or with ``--gold`` of the section that answers it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.generation import BUNDLED, in_process
from benchmarks.rerank_table import judged_sets
from evenmesh.wire.errors import MeshError
from evenmesh_core.fusion import weighted_score_fusion
from evenmesh_core.text_metrics import token_f1
from evenmesh_generator.domain import Augmentation, GenerationRequest, Passage, RelevanceRequest
from evenmesh_generator.pointer.abstention import is_abstention
from evenmesh_generator.ports import Cancellation, LanguageModel
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.bm25.csr import CsrIndex
from evenmesh_retriever.backends.bm25.kernel import choose
from evenmesh_retriever.backends.bm25.postings import build
from evenmesh_retriever.backends.bm25.weighting import Lucene
from evenmesh_retriever.backends.dense.sentence_encoder import SentenceEncoder

FOUND: Final = 100
DEPTH: Final = 20
SHOWN: Final = 5
RIGHT, ABSTAINED, WRONG, SILENT, INVENTED = (
    "right",
    "rightly abstained",
    "wrong",
    "wrongly abstained",
    "invented",
)


class Sections:
    """The sections of the documentation, searched as the default hybrid does."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        # sections of one page may have the same heading: the first of each id is searched
        self._passages = {one.id: one for one in reversed(passages)}
        passages = list(self._passages.values())
        self._ids = list(self._passages)
        self._words = analyzer("english")
        contents = [f"{one.title} {one.text}" for one in passages]
        self._index = CsrIndex(build(self._words.tokens(one) for one in contents), Lucene(), choose())
        self._encoder = SentenceEncoder()
        self._vectors = self._encoder.encode_passages(contents, lambda _: None)

    def best(self, question: str) -> list[Passage]:
        """Return the best sections, best first."""
        found = self._index.search(self._words.tokens(question), min(FOUND, len(self._ids)))
        scored = zip(found.rows.tolist(), found.scores.tolist(), strict=True)
        lexical = {self._ids[row]: float(score) for row, score in scored if score > 0}
        values = self._vectors @ self._encoder.encode_query(question)
        dense = {
            self._ids[row]: float(values[row]) for row in np.argsort(-values, kind="stable")[:FOUND].tolist()
        }
        missing = [0.0 if len(lexical) < FOUND else min(lexical.values()), min(dense.values())]
        fused = weighted_score_fusion([lexical, dense], normalization="z-score", missing=missing)
        return [self._passages[one] for one, _ in fused[:DEPTH]]


async def answered(
    reader: LanguageModel, sections: Sections, row: dict[str, Any], gold: Sequence[Passage] = ()
) -> tuple[str, str, str, float]:
    """Return the kind of the answer, the answer, which sections shown are gold ones, and its confidence."""
    question = row["question"]
    found = list(gold) or sections.best(question)
    if not gold:
        judged = await reader.score_relevance(RelevanceRequest(question, tuple(found)), Cancellation())
        found = [found[at] for at in np.argsort(-np.asarray(judged), kind="stable")[:SHOWN]]
    request = GenerationRequest(question, tuple(found), augmentation=Augmentation.FUSION_IN_DECODER)
    (answer,) = await reader.generate_batch([request], Cancellation())
    if isinstance(answer, MeshError):
        raise answer
    text = answer.text
    if is_abstention(text):
        kind = SILENT if row["answer"] else ABSTAINED
    elif not any(text in one.text for one in found):
        kind = INVENTED
    elif not row["answer"]:
        kind = WRONG
    else:
        kind = RIGHT if token_f1(text, [row["answer"]]) >= 0.5 else WRONG
    shown = " ".join("*" if one.id in row["gold_passage_ids"] else "." for one in found)
    return kind, text, shown, answer.confidence or 0.0


def main() -> None:
    """Ask all questions; print each answer, and how many there are of each kind."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.docs_reader", description=__doc__)
    parser.add_argument("--gold", action="store_true", help="show the sections that hold the answer alone")
    options = parser.parse_args()
    passages = judged_sets.load("own-docs", 60).passages
    by_id = {one.id: one for one in passages}
    sections = Sections(passages)
    counts: Counter[str] = Counter()
    confidences: list[float] = []
    with asyncio.Runner() as runner, in_process(BUNDLED, None, cache_bytes=0) as reader:
        for row in judged_sets.own_questions():
            gold = [by_id[one] for one in row["gold_passage_ids"]] if options.gold else []
            kind, text, shown, sure = runner.run(answered(reader, sections, row, gold))
            counts[kind] += 1
            confidences.append(sure)
            print(f"{kind:18} {sure:4.0%} {shown:10} {row['question']} | {text!r} | {row['answer']}")
    print(dict(counts), counts[RIGHT] + counts[ABSTAINED], "of", counts.total())
    print(f"mean confidence {np.mean(confidences):.2f}")


if __name__ == "__main__":
    main()
