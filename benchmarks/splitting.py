"""``python -m benchmarks.splitting``: compare passages along the structure with fixed windows.

Of doc2dial's pages each answer is a span of the text. A question is answered where one of the five passages
that BM25 ranks first is of the right page and holds the answer whole; white space does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.shared_data import folder, rows
from evenmesh_documents import Document, Source, Splitting, read, split
from evenmesh_documents.counting import bundled
from evenmesh_lab.studies.uncertainty import Bootstrap
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.bm25.csr import CsrIndex
from evenmesh_retriever.backends.bm25.kernel import choose
from evenmesh_retriever.backends.bm25.postings import build
from evenmesh_retriever.backends.bm25.weighting import Okapi

K: Final = 5
WINDOW: Final = 100
"""Words of a fixed window. Its title is not counted."""
SIZES: Final = (60, 80, 100, 120, 160)
"""Words of our passages, with their titles."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A passage: the page it is of, its title and its text."""

    page: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of one way to split.

    Attributes:
        name: the way.
        passages: how many there are.
        words: words of a text at the median.
        recall: share of the questions that are answered among the first five, by conversation, ``[C]``.
    """

    name: str
    passages: int
    words: float
    recall: NDArray[np.float64]


def windows(page: Document, size: int = WINDOW) -> Iterator[Piece]:
    """Yield the words of a page in runs of ``size``."""
    words = page.text.split()
    for start in range(0, len(words), size):
        yield Piece(page.address, page.title, " ".join(words[start : start + size]))


def passages(page: Document, how: Splitting) -> Iterator[Piece]:
    """Yield what our splitting makes of a page."""
    for chunk in split(page, how):
        yield Piece(page.address, chunk.title, chunk.text)


def measure(pages: Sequence[Document], turns: Sequence[dict[str, Any]], *, history: bool) -> list[Row]:
    """Return what each way to split finds.

    Args:
        pages: the documents.
        turns: questions, each with its conversation, the text of its answer and its page.
        history: whether a query holds the turns before, too.
    """
    ways: list[tuple[str, Callable[[Document], Iterator[Piece]]]] = [(f"windows of {WINDOW} words", windows)]
    for size in SIZES:
        ways.append((f"ours, {size} words", lambda page, size=size: passages(page, Splitting(size))))  # type: ignore[misc]
    tokens = Splitting(128, 0, bundled())
    ways.append(("ours, 128 tokens (default)", lambda page: passages(page, tokens)))
    return [
        _row(name, [one for page in pages for one in way(page)], turns, history=history) for name, way in ways
    ]


def _row(name: str, pieces: Sequence[Piece], turns: Sequence[dict[str, Any]], *, history: bool) -> Row:
    tokens = analyzer("english").tokens
    index = CsrIndex(build(tokens(f"{one.title} {one.text}") for one in pieces), Okapi(), choose())
    plain = [" ".join(one.text.split()) for one in pieces]
    found: dict[str, list[float]] = {}
    for turn in turns:
        said = [one["text"] for one in turn["history"]]
        ranked = index.search(tokens(" ".join(said if history else said[-1:])), K)
        (page,), answer = turn["gold_passage_ids"], " ".join(turn["answers"][0].split())
        hit = any(pieces[row].page == page and answer in plain[row] for row in ranked.rows.tolist())
        found.setdefault(turn["conversation_id"], []).append(float(hit))
    recall = np.array([np.mean(one) for one in found.values()])
    return Row(name, len(pieces), float(np.median([len(one.text.split()) for one in pieces])), recall)


def read_pages() -> list[Document]:
    """Return the pages of doc2dial, each read as a text of its title."""
    return [
        replace(read(Source(f"{one['id']}.txt", one["text"].encode())), address=one["id"], title=one["title"])
        for one in rows(folder("doc2dial-val") / "documents.jsonl.gz")
    ]


def table(measured: Sequence[Row]) -> str:
    """Return a table of what was measured, each row against the windows."""
    bootstrap = Bootstrap()
    lines = [
        f"| splitting | passages | words of a text | recall@{K}, % | minus windows, % points |",
        "|---|---|---|---|---|",
    ]
    base = measured[0].recall
    for one in measured:
        mean = bootstrap.mean(one.name, one.recall)
        gap = ""
        if one is not measured[0]:
            pair = bootstrap.paired(one.name, one.recall, base).difference
            gap = f"{100 * pair.value:+.1f} ({100 * pair.low:+.1f} to {100 * pair.high:+.1f})"
        lines.append(
            f"| {one.name} | {one.passages:,} | {one.words:.0f} "
            f"| {100 * mean.value:.1f} ({100 * mean.low:.1f} to {100 * mean.high:.1f}) | {gap} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, and print two tables."""
    pages = read_pages()
    turns = rows(folder("doc2dial-val") / "turns.jsonl.gz")
    texts = {page.address: " ".join(page.text.split()) for page in pages}
    kept = [one for one in turns if " ".join(one["answers"][0].split()) in texts[one["gold_passage_ids"][0]]]
    print(json.dumps({"pages": len(pages), "questions": len(kept), "left_out": len(turns) - len(kept)}))
    for history in (False, True):
        print(f"\nQuery: {'all turns' if history else 'the last turn'}\n")
        print(table(measure(pages, kept, history=history)))


if __name__ == "__main__":
    main()
