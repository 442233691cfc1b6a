"""``python -m benchmarks.docs_reader``: ask a mesh what our own documentation answers.

The pages are read and split as ``evenmesh ingest`` does it. Each of the forty questions is asked as a user
asks it: the mesh finds, ranks and reads passages. With ``--gold`` the model is given the passages of the
section that answers it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.rerank_table import judged_sets
from evenmesh import Addresses, AskResult, Client, Passage
from evenmesh.types.request import AskOptions
from evenmesh_core.text_metrics import token_f1
from evenmesh_documents import Source, Splitting, read, split
from evenmesh_documents.options import PassageOptions
from evenmesh_generator.pointer.abstention import is_abstention
from evenmesh_mesh import MeshSettings, launch, stop

COLLECTION: Final = "docs"
MOST_GIVEN: Final = 10
"""Most passages of a section that the model is given with ``--gold``."""
RIGHT, ABSTAINED, WRONG, SILENT, INVENTED = (
    "right",
    "rightly abstained",
    "wrong",
    "wrongly abstained",
    "invented",
)


def kind_of(result: AskResult, answers: Sequence[str], texts: Sequence[str]) -> str:
    """Return what an answer is.

    Args:
        result: of the ask.
        answers: the right ones; none: no section has one.
        texts: of the passages that the model was given.
    """
    text = result.text
    if is_abstention(text):
        return SILENT if answers else ABSTAINED
    if not any(text in one for one in texts):
        return INVENTED
    return RIGHT if answers and token_f1(text, answers) >= 0.5 else WRONG


def passages_of_docs(splitting: Splitting) -> tuple[dict[str, Passage], dict[str, str]]:
    """Return the passages of the pages by id, and the section that each is of."""
    passages, sections = {}, {}
    for name, text in judged_sets.own_pages().items():
        for one in split(read(Source(name, text.encode())), splitting):
            passages[one.id] = Passage(one.id, one.text, title=one.title)
            sections[one.id] = f"{name}#{one.headings[-1] if one.headings else ''}"
    return passages, sections


def main() -> None:
    """Ask all questions; print each answer, and how many there are of each kind."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.docs_reader", description=__doc__)
    parser.add_argument(
        "--gold", action="store_true", help="show the passages of the section that holds the answer alone"
    )
    parser.add_argument("--k", type=int, default=5, help="passages that the model is given; default: 5")
    parser.add_argument("--size", type=int, help="as `evenmesh ingest --size`")
    parser.add_argument("--tokenizer", help="as `evenmesh ingest --tokenizer`")
    given = parser.parse_args()
    splitting = PassageOptions(size=given.size, tokenizer=given.tokenizer).splitting("")
    passages, sections = passages_of_docs(splitting)
    with tempfile.TemporaryDirectory(prefix="evenmesh-docs-") as folder:
        home = Path(folder)
        state = launch(MeshSettings(home=home, port=0, start_s=600))
        try:
            with Client(Addresses(**state.addresses)) as client:
                client.ingest(passages.values(), COLLECTION)
                client.until_embedded(COLLECTION)
                _ask(client, passages, sections, gold=given.gold, k=given.k)
        finally:
            stop(home)


def _ask(
    client: Client, passages: Mapping[str, Passage], sections: Mapping[str, str], *, gold: bool, k: int
) -> None:
    counts: Counter[str] = Counter()
    confidences: list[float] = []
    for row in judged_sets.own_questions():
        wanted = set(row["gold_passage_ids"])
        options: AskOptions = {"collection": COLLECTION, "k": k}
        if gold and wanted:
            inside = [passages[one] for one, section in sections.items() if section in wanted]
            options = {"passages": inside[:MOST_GIVEN], "reranker": "none", "retriever": "bm25"}
        result = client.answer(row["question"], **options)
        if result.retrieved is None or result.ranked is None:
            raise RuntimeError(f"nothing was found for {row['question']!r}")
        shown = [result.retrieved.passages[at].id for at in result.ranked.contexts[0]]
        answers = [one for one in (row["answer"], *row.get("also", ())) if one]
        kind = kind_of(result, answers, [passages[one].text for one in shown])
        confidence = result.answers[0].confidence or 0.0
        counts[kind] += 1
        confidences.append(confidence)
        marks = " ".join("*" if sections[one] in wanted else "." for one in shown)
        print(f"{kind:18} {confidence:4.0%} {marks:10} {row['question']} | {result.text!r} | {row['answer']}")
    print(dict(counts), counts[RIGHT] + counts[ABSTAINED], "of", counts.total(), "passages", len(passages))
    print(f"mean confidence {np.mean(confidences):.2f}")


if __name__ == "__main__":
    main()
