"""``python -m benchmarks.docs_reader``: ask a mesh what our own documentation answers.

Each of the forty questions is asked as a user asks it: the mesh finds, ranks and reads sections of these
pages. With ``--gold`` the model is given the section that answers it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.rerank_table import judged_sets
from evenmesh import Addresses, AskResult, Client, Passage
from evenmesh.types.request import AskOptions
from evenmesh_core.text_metrics import token_f1
from evenmesh_generator.pointer.abstention import is_abstention
from evenmesh_mesh import MeshSettings, launch, stop

COLLECTION: Final = "docs"
RIGHT, ABSTAINED, WRONG, SILENT, INVENTED = (
    "right",
    "rightly abstained",
    "wrong",
    "wrongly abstained",
    "invented",
)


def kind_of(result: AskResult, answer: str, texts: Sequence[str]) -> str:
    """Return what an answer is.

    Args:
        result: of the ask.
        answer: the right one; empty: no section has one.
        texts: of the passages that the model was given.
    """
    text = result.text
    if is_abstention(text):
        return SILENT if answer else ABSTAINED
    if not any(text in one for one in texts):
        return INVENTED
    return RIGHT if answer and token_f1(text, [answer]) >= 0.5 else WRONG


def main() -> None:
    """Ask all questions; print each answer, and how many there are of each kind."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.docs_reader", description=__doc__)
    parser.add_argument("--gold", action="store_true", help="show the sections that hold the answer alone")
    parser.add_argument("--k", type=int, default=5, help="sections that the model is given; default: 5")
    given = parser.parse_args()
    passages: dict[str, Passage] = {}
    for one in judged_sets.load("own-docs", 60).passages:
        # Sections of one page may have the same heading: the first counts.
        passages.setdefault(one.id, Passage(one.id, one.text, title=one.title))
    with tempfile.TemporaryDirectory(prefix="evenmesh-docs-") as folder:
        home = Path(folder)
        state = launch(MeshSettings(home=home, port=0, start_s=600))
        try:
            with Client(Addresses(**state.addresses)) as client:
                client.ingest(passages.values(), COLLECTION)
                client.until_embedded(COLLECTION)
                _ask(client, passages, gold=given.gold, k=given.k)
        finally:
            stop(home)


def _ask(client: Client, passages: dict[str, Passage], *, gold: bool, k: int) -> None:
    counts: Counter[str] = Counter()
    confidences: list[float] = []
    for row in judged_sets.own_questions():
        ids: list[str] = row["gold_passage_ids"]
        options: AskOptions = {"collection": COLLECTION, "k": k}
        if gold and ids:
            options = {"passages": [passages[one] for one in ids], "reranker": "none", "retriever": "bm25"}
        result = client.answer(row["question"], **options)
        if result.retrieved is None or result.ranked is None:
            raise RuntimeError(f"nothing was found for {row['question']!r}")
        shown = [result.retrieved.passages[at].id for at in result.ranked.contexts[0]]
        kind = kind_of(result, row["answer"], [passages[one].text for one in shown])
        confidence = result.answers[0].confidence or 0.0
        counts[kind] += 1
        confidences.append(confidence)
        marks = " ".join("*" if one in ids else "." for one in shown)
        print(f"{kind:18} {confidence:4.0%} {marks:10} {row['question']} | {result.text!r} | {row['answer']}")
    print(dict(counts), counts[RIGHT] + counts[ABSTAINED], "of", counts.total())
    print(f"mean confidence {np.mean(confidences):.2f}")


if __name__ == "__main__":
    main()
