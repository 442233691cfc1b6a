"""What a first stage finds for questions among other sentences: a table in docs/guides/retrievers.md.

``python -m benchmarks.question_searches`` searches with the hybrid of an ask, without a reranker, for the
questions of :mod:`benchmarks.question_stories` among all passages of squad-open's dev split, and for one turn
of each conversation of doc2dial-val that asks and says something else among all its documents, without and
with words of earlier turns. It searches for each as it stands and as the mesh does. It writes
nDCG@10, and how often a passage that answers is among the best 20, into the page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import command, question_stories
from benchmarks.history_turns import Part, drawn, read, shown
from benchmarks.page import fill, table
from benchmarks.question_stories import AS_IT_STANDS
from benchmarks.rerank_table.judged_sets import JudgedSet
from benchmarks.rerank_table.scoring import FirstStages, standardized
from benchmarks.shared_data import folder, rows
from evenmesh_core.arrays import FloatArray
from evenmesh_core.asking import asking_alone, searched
from evenmesh_core.earlier_words import EARLIER_TURNS, balanced, words
from evenmesh_core.ranking_metrics import ranking_metrics
from evenmesh_generator.domain import Passage
from evenmesh_lab.studies import Bootstrap

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "guides" / "retrievers.md"
REPEATED: Final = "what asks repeated"
DIALOGUES: Final = Part("doc2dial-val", ("turns",), "documents", 0)
SEED: Final = 1
K: Final = 10
BEST: Final = 20


@dataclass(frozen=True, slots=True)
class Searched:
    """A question, the same followed by words of earlier turns, and the passages that answer it."""

    kind: str
    question: str
    text: str
    gold: Sequence[str]


def main() -> None:
    """Search, and write the table into the page."""
    parser = command.parser("question_searches", __doc__)
    parser.add_argument("--questions", type=int, default=200, help="of SQuAD; drawn")
    parser.add_argument(
        "--home", type=Path, default=Path("build/question-searches"), help="where vectors are kept"
    )
    given = parser.parse_args()
    cells = [*of_squad(given.questions, given.home), *of_dialogues(given.home)]
    fill(PAGE, {"question searches": f"{table(cells)}\n\nMeasured on {datetime.now(UTC):%Y-%m-%d}."})


def of_squad(count: int, home: Path) -> list[dict[str, str]]:
    """Return the rows of so many questions of SQuAD, alone and after each kind of sentence."""
    data = folder("squad-open")
    passages = rows(data / "passages.dev.jsonl.gz")
    ids = {(one["title"], one["text"]): one["id"] for one in passages}
    rng = np.random.default_rng(question_stories.SEED)
    cases = question_stories.squad(rows(data / "questions.dev.jsonl.gz"), passages, count, rng)
    asked = [Searched(one.kind, one.question, one.question, [ids[one.passages[0]]]) for one in cases]
    return measured("squad-open", passages, asked, home)


def of_dialogues(home: Path) -> list[dict[str, str]]:
    """Return the rows of turns that ask and say something else, without and with words of earlier turns."""
    turns = drawn((one for one in read(DIALOGUES) if asking_alone(one.question) != one.question), 0, SEED)
    name = f"turns of {DIALOGUES.name}"
    asked = [Searched(name, one.question, one.question, one.gold) for one in turns]
    for one in turns:
        text = words(one.question, one.earlier[-EARLIER_TURNS:])
        asked.append(Searched(f"{name}, with words of earlier turns", one.question, text, one.gold))
    passages = rows(folder(DIALOGUES.name) / f"{DIALOGUES.passages}.jsonl.gz")
    return measured(DIALOGUES.name, passages, asked, home)


def measured(
    name: str, passages: Sequence[dict[str, str]], asked: Sequence[Searched], home: Path
) -> list[dict[str, str]]:
    """Return a row for each kind of question."""
    texts: dict[str, str] = {}
    for place, one in enumerate(asked):
        texts[f"{place}/{AS_IT_STANDS}"] = balanced(one.question, one.text)
        texts[f"{place}/{REPEATED}"] = searched(one.question, one.text)
    of_set = [Passage(one["id"], one.get("title", ""), one["text"]) for one in passages]
    stages = FirstStages(JudgedSet(name, of_set, texts, {}), home)
    of_kind: dict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(asked):
        of_kind[one.kind].append(place)

    def ranked(place: int, column: str) -> list[str]:
        found = stages.found(f"{place}/{column}")
        scores = standardized(found.bm25, found.dense)
        return sorted(scores, key=lambda passage: (-scores[passage], passage))

    table_rows = []
    for kind, places in of_kind.items():
        grades = {str(place): dict.fromkeys(asked[place].gold, 1) for place in places}
        ndcg: dict[str, FloatArray] = {}
        among: dict[str, float] = {}
        for column in (AS_IT_STANDS, REPEATED):
            orders = {str(place): ranked(place, column) for place in places}
            ndcg[column] = ranking_metrics(orders, grades, k=K).ndcg
            among[column] = np.mean([bool({*orders[one][:BEST]} & {*grades[one]}) for one in orders]).item()
        table_rows.append(row(kind, ndcg, among))
    return table_rows


def row(kind: str, ndcg: dict[str, FloatArray], among: dict[str, float]) -> dict[str, str]:
    """Return a row of the table: both measures of both texts, and the difference of nDCG."""
    gap = Bootstrap().paired(kind, ndcg[REPEATED], ndcg[AS_IT_STANDS]).difference
    return {
        "": kind,
        "questions": str(len(ndcg[REPEATED])),
        **{f"nDCG@{K}, {column}": f"{ndcg[column].mean():.3f}" for column in ndcg},
        "difference": shown(gap),
        **{f"among the best {BEST}, {column}": f"{among[column]:.3f}" for column in among},
    }


if __name__ == "__main__":
    main()
