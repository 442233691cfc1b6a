"""How many earlier turns a search should have words of: the table in docs/guides/conversations.md.

``python -m benchmarks.history_turns`` takes one turn of each conversation of mtrag and doc2dial-val, searches
with the hybrid of an ask for the turn and words of the last 0, 5 and 10 user turns, as the mesh does and with
the turn once, and writes nDCG@10 into the page. It needs no mesh and no reranker; ``--home`` keeps vectors
of passages.
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
from evenmesh_core import asking, earlier_words
from evenmesh_core.arrays import FloatArray
from evenmesh_core.intervals import BootstrapInterval
from evenmesh_core.ranking_metrics import ranking_metrics
from evenmesh_generator.domain import Passage
from evenmesh_lab.studies import Bootstrap

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "guides" / "conversations.md"
DEPTHS: Final = {"0 (`none`)": 0, "5": 5, "10 (`words`)": 10, "10, the turn once": 10}
"""Earlier user turns whose words are searched for, by column."""
DEFAULT: Final = "10 (`words`)"
ONCE: Final = "10, the turn once"
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
        answers: what answers it.
    """

    conversation: str
    question: str
    earlier: Sequence[str]
    gold: Sequence[str]
    answers: Sequence[str] = ()


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
            answers = task.get("answers") or task.get("targets") or ()
            yield Turn(task["conversation_id"], last["text"], said, task["gold_passage_ids"], answers)


def drawn(of: Iterable[Turn], least: int, seed: int = SEED) -> list[Turn]:
    """Draw one turn of each conversation, after ``least`` user turns: those of one are not independent."""
    held: dict[str, list[Turn]] = defaultdict(list)
    for turn in of:
        if len(turn.earlier) >= least:
            held[turn.conversation].append(turn)
    rng = np.random.default_rng(seed)
    return [held[name][rng.integers(len(held[name]))] for name in sorted(held)]


def searched(turn: Turn, column: str) -> str:
    """Return what is searched for."""
    depth = DEPTHS[column]
    text = earlier_words.words(turn.question, turn.earlier[-depth:] if depth else ())
    return text if column == ONCE else asking.searched(turn.question, text)


def ndcg(part: Part, asked: Sequence[Turn], home: Path) -> dict[str, FloatArray]:
    """Return nDCG@10 of each turn, by column."""
    from benchmarks.rerank_table.judged_sets import JudgedSet
    from benchmarks.rerank_table.scoring import FirstStages, standardized  # imports PyTorch

    texts = {
        f"{place}/{column}": searched(turn, column) for place, turn in enumerate(asked) for column in DEPTHS
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
        column: ranking_metrics(
            {str(place): ranked(f"{place}/{column}") for place in range(len(asked))}, grades, k=K
        ).ndcg
        for column in DEPTHS
    }


def row(part: Part, found: Mapping[str, FloatArray]) -> dict[str, str]:
    """Return a row of the table: means, and what the default has beside the others."""
    after = "six" if part.least == 6 else "one"
    cells = {"": f"{part.name}, after at least {after}", "conversations": str(len(found[DEFAULT]))}
    cells |= {column: f"{found[column].mean():.3f}" for column in DEPTHS}
    for other in ("0 (`none`)", "5", ONCE):
        gap = Bootstrap().paired(f"{part.name} {part.least} {other}", found[DEFAULT], found[other]).difference
        cells[f"`words` beside {other.partition(' ')[0] if other != ONCE else 'once'}"] = shown(gap)
    return cells


def shown(found: BootstrapInterval) -> str:
    """Return a difference with its interval, or why it has none."""
    value, low, high = (f"{one:+.3f}".replace("-", "−") for one in (found.value, found.low, found.high))
    return f"{value}, {found.missing}" if found.missing else f"{value} [{low}, {high}]"


if __name__ == "__main__":
    main()
