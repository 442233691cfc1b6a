"""Data sets with judged passages, in one form; questions that no bundled model has seen, where possible."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.shared_data import folder, rows
from evenmesh_generator.domain import Passage
from evenmesh_training.rankrag.data.datasets import Item, Request, Split, reader
from evenmesh_training.rankrag.data.examples import Kind
from evenmesh_training.rankrag.recipe import Context

_ROOT: Final = Path(__file__).resolve().parents[2]
_SEED: Final = 19
_RELEVANT_DL: Final = "dl19"
_QUESTION_WORDS: Final = 32
_TABLES: Final = frozenset({"leave-one-out.md", "reranking.md"})
"""Pages with what is measured here: they may not change what is measured."""


@dataclass(frozen=True)
class JudgedSet:
    """Passages, and questions with the passages that answer them.

    Attributes:
        name: of the data set.
        passages: all that are searched.
        queries: questions by id.
        judgements: for each question the grades of judged passages, from 1 relevant.
        trained: models that were trained on questions of this data set or on its domain.
        pools: for each question the ids of the passages to rank; None: those that the first stages find.
    """

    name: str
    passages: Sequence[Passage]
    queries: Mapping[str, str]
    judgements: Mapping[str, Mapping[str, int]]
    trained: frozenset[str] = frozenset()
    pools: Mapping[str, Sequence[str]] | None = None


def load(name: str, most: int) -> JudgedSet:
    """Return a data set with at most so many of its questions, drawn by a fixed seed.

    Raises:
        KeyError: there is none of this name.
        FileNotFoundError: it is not there.
    """
    return NAMES[name](most)


def _drawn(ids: Iterable[str], most: int) -> list[str]:
    ordered = sorted(ids)
    chosen = np.random.default_rng(_SEED).permutation(len(ordered))[:most]
    return [ordered[at] for at in sorted(chosen.tolist())]


def _of_items(
    name: str,
    dataset: str,
    kind: Kind,
    asked: Callable[[Item], str],
    trained: frozenset[str],
    most: int,
) -> JudgedSet:
    """Return the held-out questions that the training's reader of a data set gives."""
    found = reader(dataset).read(Request(folder(dataset).parent, Split.HELD_OUT, kind, Context()))
    items = {one.id: one for one in found.items if one.gold}
    chosen = _drawn(items, most)
    judgements = {id_: {found.passages[place].id: 1 for place in items[id_].gold} for id_ in chosen}
    return JudgedSet(name, found.passages, {id_: asked(items[id_]) for id_ in chosen}, judgements, trained)


def _question(item: Item) -> str:
    return item.question


def _with_what_was_asked(item: Item) -> str:
    """Return what the user said, the last first: a search of the conversation, as long as can be read."""
    said = " ".join([item.question, *(turn.question for turn in reversed(item.turns))])
    return " ".join(said.split()[:_QUESTION_WORDS])


def _passages(path: Path) -> list[Passage]:
    return [Passage(row["id"], row.get("title", ""), row["text"]) for row in rows(path)]


def with_judgements(
    name: str,
    most: int,
    *,
    passages: str = "documents.jsonl.gz",
    queries: str = "queries.jsonl.gz",
    judged: str = "qrels.jsonl.gz",
    question: str = "query",
    wanted: Callable[[Mapping[str, Any]], bool] = lambda _: True,
    trained: frozenset[str] = frozenset(),
) -> JudgedSet:
    """Return a data set that has a file each of passages, queries and judgements."""
    data = folder(name)
    judgements: dict[str, dict[str, int]] = defaultdict(dict)
    for row in rows(data / judged):
        judgements[row["query_id"]][row["doc_id"]] = max(0, int(row["relevance"]))
    asked = {
        row["id"]: row[question]
        for row in rows(data / queries)
        if wanted(row) and any(judgements[row["id"]].values())
    }
    chosen = _drawn(asked, most)
    return JudgedSet(
        name,
        _passages(data / passages),
        {id_: asked[id_] for id_ in chosen},
        {id_: judgements[id_] for id_ in chosen},
        trained,
    )


def _dl19(most: int) -> JudgedSet:
    """Return the judged questions of TREC's deep learning track 2019; 50 passages of BM25 each to rank."""
    data = folder("msmarco-dl-rerank")
    queries = {
        row["id"]: row["query"] for row in rows(data / "queries.jsonl.gz") if row["split"] == _RELEVANT_DL
    }
    pools = {
        row["query_id"]: [str(hit[0]) for hit in row["hits"][:50]]
        for row in rows(data / "runs.jsonl.gz")
        if row["run"] == "BM25" and row["query_id"] in queries
    }
    judgements: dict[str, dict[str, int]] = defaultdict(dict)
    for row in rows(data / "qrels.jsonl.gz"):
        judgements[row["query_id"]][str(row["doc_id"])] = max(0, int(row["relevance"]))
    chosen = _drawn(pools, most)
    wanted = {id_ for pool in pools.values() for id_ in pool}
    passages = [one for one in _passages(data / "passages.jsonl.gz") if one.id in wanted]
    return JudgedSet(
        "msmarco-dl19",
        passages,
        {id_: queries[id_] for id_ in chosen},
        {id_: judgements[id_] for id_ in chosen},
        pools={id_: pools[id_] for id_ in chosen},
    )


def _bioasq(most: int) -> JudgedSet:
    data = folder("bioasq-golden")
    asked = {row["id"]: row for row in rows(data / "questions.jsonl.gz") if row["gold_passage_ids"]}
    return _with_gold("bioasq", _passages(data / "passages.jsonl.gz"), asked, most)


def _clapnq(most: int) -> JudgedSet:
    data = folder("nq-passages")
    asked = {row["id"]: row for row in rows(data / "clapnq_questions.jsonl.gz") if row["answerable"]}
    return _with_gold("clapnq", _passages(data / "clapnq_passages.jsonl.gz"), asked, most, _BOTH)


def _mtrag(most: int) -> JudgedSet:
    data = folder("mtrag")
    asked = {}
    for row in rows(data / "tasks.un.jsonl.gz"):
        said = [turn["text"] for turn in row["history"] if turn.get("role", turn.get("speaker")) == "user"]
        if row["gold_passage_ids"] and said:
            asked[row["id"]] = {**row, "question": said[-1]}
    return _with_gold("mtrag", _passages(data / "passages.jsonl.gz"), asked, most)


def _with_gold(
    name: str,
    passages: Sequence[Passage],
    asked: Mapping[str, Mapping[str, Any]],
    most: int,
    trained: frozenset[str] = frozenset(),
) -> JudgedSet:
    chosen = _drawn(asked, most)
    return JudgedSet(
        name,
        passages,
        {id_: asked[id_]["question"] for id_ in chosen},
        {id_: dict.fromkeys(asked[id_]["gold_passage_ids"], 1) for id_ in chosen},
        trained,
    )


def _own_docs(most: int) -> JudgedSet:
    """Return the sections of this project's documentation and the questions in ``docs_questions.jsonl``."""
    passages = [passage for page, text in own_pages().items() for passage in sections(page, text)]
    known = {one.id for one in passages}
    asked = {}
    for number, row in enumerate(own_questions()):
        if missing := [one for one in row["gold_passage_ids"] if one not in known]:
            raise ValueError(f"docs_questions.jsonl, line {number + 1}: the docs have no section {missing}")
        if row["gold_passage_ids"]:
            asked[f"{number:02}"] = row
    return _with_gold("own-docs", passages, asked, most)


def own_pages() -> dict[str, str]:
    """Return the pages of this project's documentation by their path."""
    return {
        page.relative_to(_ROOT).as_posix(): page.read_text(encoding="utf-8")
        for page in sorted((_ROOT / "docs").rglob("*.md"))
        if page.parent.name != "science" or page.name not in _TABLES
    }


def own_questions() -> list[dict[str, Any]]:
    """Return the questions about this project's documentation: ``answer`` is empty where it has none.

    ``also`` are other right answers: the pages say some things in words and in numbers.
    """
    text = (Path(__file__).parent / "docs_questions.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def sections(page: str, text: str) -> list[Passage]:
    """Return the sections of a page in Markdown, each with the headings above it as its title."""
    found: list[Passage] = []
    headings: list[str] = []
    body: list[str] = []
    in_code = False

    def end() -> None:
        if said := "\n".join(body).strip():
            found.append(Passage(f"{page}#{headings[-1] if headings else ''}", " › ".join(headings), said))
        body.clear()

    for line in text.splitlines():
        in_code ^= line.startswith("```")
        level = len(line) - len(line.lstrip("#"))
        if in_code or not 1 <= level <= 4 or not line[level:].startswith(" "):
            body.append(line)
            continue
        end()
        del headings[level - 1 :]
        headings.append(line[level:].strip())
    end()
    return found


READER: Final = "reader"
CROSS_ENCODER: Final = "cross-encoder"
_BOTH: Final = frozenset({READER, CROSS_ENCODER})

NAMES: Final[Mapping[str, Callable[[int], JudgedSet]]] = {
    "squad-open": partial(_of_items, "squad-open", "squad-open", Kind.CONTEXT_RICH_QA, _question, _BOTH),
    "nq-passages": partial(_of_items, "nq-passages", "nq-passages", Kind.CONTEXT_RICH_QA, _question, _BOTH),
    "clapnq": _clapnq,
    "nfcorpus": partial(
        with_judgements,
        "nfcorpus",
        judged="qrels.dev.jsonl.gz",
        wanted=lambda row: row["split"] == "dev",
    ),
    "cranfield": partial(with_judgements, "cranfield"),
    "vaswani": partial(with_judgements, "vaswani"),
    "climate-fever": partial(
        with_judgements,
        "climate-fever",
        passages="passages.jsonl.gz",
        queries="claims.jsonl.gz",
        question="claim",
        trained=frozenset({CROSS_ENCODER}),
    ),
    "bioasq": _bioasq,
    "msmarco-dl19": _dl19,
    "doc2dial": partial(
        _of_items, "doc2dial", "doc2dial-val", Kind.CONTEXT_RICH_QA, _with_what_was_asked, frozenset()
    ),
    "mtrag": _mtrag,
    "fever-symmetric": partial(
        _of_items, "fever-symmetric", "fever-symmetric", Kind.CONTEXT_RICH_QA, _question, _BOTH
    ),
    "own-docs": _own_docs,
}
"""How each data set is read, by its name in the table."""
