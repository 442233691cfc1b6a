"""How many earlier turns a search should have words of: the table in docs/guides/conversations.md.

``python -m benchmarks.history_turns`` takes one turn of each conversation of mtrag and doc2dial-val, searches
with the hybrid of an ask for the turn and words of the last 0, 5 and 10 user turns, and writes nDCG@10 into
the page. It needs no mesh and no reranker; ``--home`` keeps the vectors of passages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import command
from benchmarks.page import fill, table
from benchmarks.shared_data import folder, rows
from evenmesh_core.arrays import FloatArray
from evenmesh_core.intervals import BootstrapInterval
from evenmesh_core.ranking_metrics import ranking_metrics
from evenmesh_generator.domain import Passage
from evenmesh_lab.studies import Bootstrap
from evenmesh_orchestrator.conversations import history

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "guides" / "conversations.md"
DEPTHS: Final = (0, 5, 10)
"""Earlier user turns whose words are searched for."""
K: Final = 10
SEED: Final = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's turn, and what answers it.

    Attributes:
        conversation: its conversation's id.
        question: what the user says.
        earlier: the user's turns before it, oldest first.
        gold: ids of the passages that answer it.
    """

    conversation: str
    question: str
    earlier: Sequence[str]
    gold: Sequence[str]


@dataclass(frozen=True, slots=True)
class Part:
    """A row of the table: turns of a data set after at least so many others."""

    name: str
    files: Sequence[str]
    passages: str
    least: int


PARTS: Final = (
    Part("mtrag", ("tasks.un", "tasks.human_subset"), "passages", 1),
    Part("mtrag", ("tasks.un", "tasks.human_subset"), "passages", 6),
    Part("doc2dial-val", ("turns",), "documents", 1),
    Part("doc2dial-val", ("turns",), "documents", 6),
)


def main() -> None:
    """Search, and write the table into the page."""
    parser = command.parser("history_turns", __doc__)
    parser.add_argument(
        "--home", type=Path, default=Path("build/history-turns"), help="where vectors are kept"
    )
    given = parser.parse_args()
    measured = [(part, ndcg(part, drawn(read(part), part.least), given.home)) for part in PARTS]
    date = f"Measured on {datetime.now(UTC):%Y-%m-%d}."
    fill(PAGE, {"history turns": f"{table([row(part, found) for part, found in measured])}\n\n{date}"})


def read(part: Part) -> list[Turn]:
    """Return the user turns of a data set that some passages answer."""
    data = folder(part.name)
    return list(turns(one for name in part.files for one in rows(data / f"{name}.jsonl.gz")))


def turns(tasks: Iterable[Mapping[str, Any]]) -> Iterable[Turn]:
    """Yield the user turn that each task ends with, if passages answer it."""
    for task in tasks:
        *before, last = task["history"]
        if last["role"] == "user" and task["gold_passage_ids"]:
            said = [one["text"] for one in before if one["role"] == "user"]
            yield Turn(task["conversation_id"], last["text"], said, task["gold_passage_ids"])


def drawn(of: Iterable[Turn], least: int, seed: int = SEED) -> list[Turn]:
    """Draw one turn of each conversation, after ``least`` user turns: those of one are not independent."""
    held: dict[str, list[Turn]] = defaultdict(list)
    for turn in of:
        if len(turn.earlier) >= least:
            held[turn.conversation].append(turn)
    rng = np.random.default_rng(seed)
    return [held[name][rng.integers(len(held[name]))] for name in sorted(held)]


def ndcg(part: Part, asked: Sequence[Turn], home: Path) -> dict[int, FloatArray]:
    """Return nDCG@10 of each turn, by the number of earlier turns whose words are searched for."""
    from benchmarks.rerank_table.judged_sets import JudgedSet
    from benchmarks.rerank_table.scoring import FirstStages, standardized  # imports PyTorch

    texts = {
        f"{place}/{depth}": history.words(turn.question, turn.earlier[-depth:] if depth else ())
        for place, turn in enumerate(asked)
        for depth in DEPTHS
    }
    passages = [
        Passage(one["id"], one.get("title", ""), one["text"])
        for one in rows(folder(part.name) / f"{part.passages}.jsonl.gz")
    ]
    stages = FirstStages(JudgedSet(part.name, passages, texts, {}), home)

    def ranked(name: str) -> list[str]:
        found = stages.found(name)
        scores = standardized(found.bm25, found.dense)
        return sorted(scores, key=lambda one: (-scores[one], one))

    grades = {str(place): dict.fromkeys(turn.gold, 1) for place, turn in enumerate(asked)}
    return {
        depth: ranking_metrics(
            {str(place): ranked(f"{place}/{depth}") for place in range(len(asked))}, grades, k=K
        ).ndcg
        for depth in DEPTHS
    }


def row(part: Part, found: Mapping[int, FloatArray]) -> dict[str, str]:
    """Return a row of the table: means, and what the default has beside the other numbers of turns."""
    after = "six" if part.least == 6 else "one"
    cells = {"": f"{part.name}, after at least {after}", "conversations": str(len(found[DEPTHS[0]]))}
    cells |= {"0 (`none`)" if depth == 0 else str(depth): f"{found[depth].mean():.3f}" for depth in DEPTHS}
    for other in (0, 10):
        gap = Bootstrap().paired(f"{part.name} {part.least} {other}", found[5], found[other]).difference
        cells[f"5 beside {other}"] = shown(gap)
    return cells


def shown(found: BootstrapInterval) -> str:
    """Return a difference with its interval, or why it has none."""
    value, low, high = (f"{one:+.3f}".replace("-", "−") for one in (found.value, found.low, found.high))
    return f"{value}, {found.missing}" if found.missing else f"{value} [{low}, {high}]"


if __name__ == "__main__":
    main()
