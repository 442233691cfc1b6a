"""``python -m benchmarks.splitting``: compare passages along the structure with fixed windows.

Of doc2dial's pages each answer is a span of the text. A question is answered where one of the five passages
that BM25 ranks first is of the right page and holds the answer whole; white space does not matter.

Of mtrag's pages each question has passages of the data set that answer it, longer ones than ours. One of them
is found where one of the five passages that BM25 ranks first lies in it with most of its words.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.mtrag_pages import Place, of_mtrag, rebuilt
from benchmarks.shared_data import folder, rows
from evenmesh_documents import Document, Source, Splitting, read, split
from evenmesh_documents.counting import bundled
from evenmesh_lab.studies.uncertainty import Bootstrap
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.bm25.csr import CsrIndex
from evenmesh_retriever.backends.bm25.postings import build
from evenmesh_retriever.backends.bm25.weighting import Okapi

K: Final = 5
WINDOW: Final = 100
"""Words of a fixed window. Its title is not counted."""
SIZES: Final = (60, 80, 100, 120, 160)
"""Words of our passages, with their titles."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A passage.

    Attributes:
        page: the page it is of.
        title: its title.
        text: its text.
        start: its first word in the text of the page, from 0.
    """

    page: str
    title: str
    text: str
    start: int = 0

    def inside(self, place: Place) -> int:
        """Return how many of its words are in a place."""
        if self.page != place.page:
            return 0
        end = self.start + len(self.text.split())
        return max(0, min(end, place.end) - max(self.start, place.start))


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of one way to split.

    Attributes:
        name: the way.
        passages: how many there are.
        words: words of a text at the median.
        recall: share of the questions that are answered among the first five, or of the passages that answer
            a question, by conversation, ``[C]``.
        held: share of the words of those passages that the first five hold, by conversation, ``[C]``; None
            where answers are spans.
    """

    name: str
    passages: int
    words: float
    recall: NDArray[np.float64]
    held: NDArray[np.float64] | None = None


Question = Mapping[str, Any]
Judge = Callable[[Question, Sequence[Piece]], tuple[float, float]]
"""Returns the recall of a question's first passages, and the share of words of what answers it in them."""


def windows(page: Document, size: int = WINDOW) -> Iterator[Piece]:
    """Yield the words of a page in runs of ``size``."""
    words = page.text.split()
    for start in range(0, len(words), size):
        yield Piece(page.address, page.title, " ".join(words[start : start + size]), start)


def passages(page: Document, how: Splitting) -> Iterator[Piece]:
    """Yield what our splitting makes of a page."""
    for chunk in split(page, how):
        yield Piece(page.address, chunk.title, chunk.text, len(page.text[: chunk.start].split()))


def answered(turn: Question, found: Sequence[Piece]) -> tuple[float, float]:
    """Return whether a passage of the right page holds the answer whole, as 1 or 0, twice."""
    (page,), answer = turn["gold_passage_ids"], " ".join(turn["answers"][0].split())
    hit = float(any(one.page == page and answer in " ".join(one.text.split()) for one in found))
    return hit, hit


def within(places: Mapping[str, Place]) -> Judge:
    """Return what judges by the passages of the data set that answer a question, given where they stand."""

    def judge(task: Question, found: Sequence[Piece]) -> tuple[float, float]:
        wanted = [places[name] for name in task["gold_passage_ids"]]
        met = [any(2 * one.inside(place) > len(one.text.split()) for one in found) for place in wanted]
        words = {(place.page, word) for place in wanted for word in range(place.start, place.end)}
        said = {
            (one.page, word) for one in found for word in range(one.start, one.start + len(one.text.split()))
        }
        return float(np.mean(met)), len(words & said) / len(words)

    return judge


def measure(
    pages: Sequence[Document], turns: Sequence[Question], *, history: bool, judge: Judge = answered
) -> list[Row]:
    """Return what each way to split finds.

    Args:
        pages: the documents.
        turns: questions, each with its conversation, the text of its answer and its page, or the passages
            that answer it.
        history: whether a query holds the turns before, too.
        judge: judges the five first passages of a question.
    """
    ways: list[tuple[str, Callable[[Document], Iterator[Piece]]]] = [(f"windows of {WINDOW} words", windows)]
    for size in SIZES:
        ways.append((f"ours, {size} words", lambda page, size=size: passages(page, Splitting(size))))  # type: ignore[misc]
    tokens = Splitting(128, 0, bundled())
    ways.append(("ours, 128 tokens (default)", lambda page: passages(page, tokens)))
    return [
        _row(name, [one for page in pages for one in way(page)], turns, judge, history=history)
        for name, way in ways
    ]


def _row(
    name: str, pieces: Sequence[Piece], turns: Sequence[Question], judge: Judge, *, history: bool
) -> Row:
    tokens = analyzer("english").tokens
    index = CsrIndex(build(tokens(f"{one.title} {one.text}") for one in pieces), Okapi())
    found: dict[str, list[tuple[float, float]]] = {}
    for turn in turns:
        said = [one["text"] for one in turn["history"]]
        ranked = index.search(tokens(" ".join(said if history else said[-1:])), K)
        judged = judge(turn, [pieces[row] for row in ranked.rows.tolist()])
        found.setdefault(turn["conversation_id"], []).append(judged)
    recall, held = np.array([np.mean(one, axis=0) for one in found.values()]).T
    words = float(np.median([len(one.text.split()) for one in pieces]))
    return Row(name, len(pieces), words, recall, None if judge is answered else held)


def read_pages() -> list[Document]:
    """Return the pages of doc2dial, each read as a text of its title."""
    return [
        replace(read(Source(f"{one['id']}.txt", one["text"].encode())), address=one["id"], title=one["title"])
        for one in rows(folder("doc2dial-val") / "documents.jsonl.gz")
    ]


def table(measured: Sequence[Row]) -> str:
    """Return a table of what was measured, each row against the windows."""
    bootstrap = Bootstrap()
    held = measured[0].held is not None
    names = ["splitting", "passages", "words of a text", f"recall@{K}, %", "minus windows, % points"]
    lines = [names + ["words held, %"] * held, ["---"] * (5 + held)]
    base = measured[0].recall
    for one in measured:
        mean = bootstrap.mean(one.name, one.recall)
        gap = ""
        if one is not measured[0]:
            pair = bootstrap.paired(one.name, one.recall, base).difference
            gap = f"{100 * pair.value:+.1f} ({100 * pair.low:+.1f} to {100 * pair.high:+.1f})"
        shown = f"{100 * mean.value:.1f} ({100 * mean.low:.1f} to {100 * mean.high:.1f})"
        more = [] if one.held is None else [f"{100 * float(np.mean(one.held)):.1f}"]
        lines.append([one.name, f"{one.passages:,}", f"{one.words:.0f}", shown, gap, *more])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _doc2dial() -> None:
    pages = read_pages()
    turns = rows(folder("doc2dial-val") / "turns.jsonl.gz")
    texts = {page.address: " ".join(page.text.split()) for page in pages}
    kept = [one for one in turns if " ".join(one["answers"][0].split()) in texts[one["gold_passage_ids"][0]]]
    print(json.dumps({"pages": len(pages), "questions": len(kept), "left_out": len(turns) - len(kept)}))
    _both(pages, kept, answered)


def _mtrag() -> None:
    pages, places = rebuilt(rows(folder("mtrag") / "passages.jsonl.gz"))
    tasks = of_mtrag(
        [one for name in ("un", "human_subset") for one in rows(folder("mtrag") / f"tasks.{name}.jsonl.gz")]
    )
    sizes = [len(page.text.split()) for page in pages]
    conversations = len({one["conversation_id"] for one in tasks})
    counts = {
        "parts": len(pages),
        "passages": len(places),
        "questions": len(tasks),
        "conversations": conversations,
    }
    print(json.dumps({**counts, "words_of_a_part": float(np.median(sizes)), "longest": max(sizes)}))
    _both(pages, tasks, within(places))


def _both(pages: Sequence[Document], turns: Sequence[Mapping[str, Any]], judge: Judge) -> None:
    for history in (False, True):
        print(f"\nQuery: {'all turns' if history else 'the last turn'}\n")
        print(table(measure(pages, turns, history=history, judge=judge)), flush=True)


_DATA: Final = {"doc2dial": _doc2dial, "mtrag": _mtrag}


def main() -> None:
    """Measure, and print two tables for each data set."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.splitting", description=__doc__)
    parser.add_argument("data", nargs="*", metavar="DATA", help=f"of {', '.join(_DATA)}; default: all")
    given = parser.parse_args().data
    if unknown := sorted(set(given) - set(_DATA)):
        parser.error(f"no such data: {', '.join(unknown)}")
    for name in given or _DATA:
        print(f"# {name}")
        _DATA[name]()


if __name__ == "__main__":
    main()
