"""What the bundled model makes of questions among other sentences: a table in docs/guides/prompts.md.

``python -m benchmarks.question_stories`` asks questions of SQuAD 1.1 (dev) alone and after another sentence,
and one turn of each conversation of doc2dial-val that asks and says something else. Each is read as it stands
and as the mesh reads it, what asks first, with the passage that answers it and four others of its article. It
writes token F1 of the greedy answers, and how often that passage has the highest P(true), into the page.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

import evenmesh_models
from benchmarks import command
from benchmarks.history_turns import shown
from benchmarks.page import fill, table
from benchmarks.shared_data import folder, pieces, rows
from evenmesh_core.arrays import FloatArray
from evenmesh_core.asking import asking_first
from evenmesh_core.text_metrics import token_f1
from evenmesh_generator.pointer import artifact
from evenmesh_generator.pointer.reader import PointerReader
from evenmesh_generator.pointer.tokenization import MAX_QUESTION, PairTokenizer
from evenmesh_lab.studies import Bootstrap

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "guides" / "prompts.md"
SEED: Final = 0
OTHERS: Final = 4
COURTESY: Final = "I have a quick question for you."
AS_IT_STANDS: Final = "as it stands"
ASKS_FIRST: Final = "what asks first"
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+")

Texts = Sequence[tuple[str, str]]
"""Title and text of each passage."""


@dataclass(frozen=True, slots=True)
class Case:
    """A question and what it is answered from.

    Attributes:
        kind: row of the table.
        question: what is asked, with what is said beside it.
        passages: the one that answers it comes first.
        answers: what answers it.
    """

    kind: str
    question: str
    passages: Texts
    answers: Sequence[str]


class WholeQuestions(PairTokenizer):
    """Reads a question as it stands."""

    def question(self, text: str) -> tuple[int, ...]:
        """Return the first tokens of a question."""
        return self.ids(text)[:MAX_QUESTION]


def main() -> None:
    """Ask, and write the table into the page."""
    parser = command.parser("question_stories", __doc__)
    parser.add_argument("--questions", type=int, default=200, help="of SQuAD; drawn")
    given = parser.parse_args()
    torch.set_num_threads(1)
    model, base = artifact.load(None), evenmesh_models.minilm()
    readers = {
        name: PointerReader(model, kind(base), bfloat16=True)
        for name, kind in ((AS_IT_STANDS, WholeQuestions), (ASKS_FIRST, PairTokenizer))
    }
    found: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for case in cases(given.questions):
        for name, reader in readers.items():
            found[case.kind][name].append(measured(reader, case))
    cells = [
        row(kind, {name: np.array(values) for name, values in of_kind.items()})
        for kind, of_kind in found.items()
    ]
    fill(PAGE, {"question stories": f"{table(cells)}\n\nMeasured on {datetime.now(UTC):%Y-%m-%d}."})


def cases(count: int) -> Iterator[Case]:
    """Yield those of so many drawn questions of SQuAD, then those of doc2dial-val."""
    rng = np.random.default_rng(SEED)
    data, dialogues = folder("squad-open"), folder("doc2dial-val")
    yield from squad(rows(data / "questions.dev.jsonl.gz"), rows(data / "passages.dev.jsonl.gz"), count, rng)
    yield from doc2dial(rows(dialogues / "turns.jsonl.gz"), rows(dialogues / "documents.jsonl.gz"), rng)


def squad(
    questions: Sequence[Mapping[str, Any]],
    passages: Sequence[Mapping[str, Any]],
    count: int,
    rng: np.random.Generator,
) -> Iterator[Case]:
    """Yield so many drawn questions, each alone and after each kind of sentence."""
    by_id = {one["id"]: one for one in passages}
    articles: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for one in passages:
        articles[one["title"]].append(one)
    titles = sorted(articles)
    for at in rng.choice(len(questions), count, replace=False):
        asked = questions[at]
        gold = by_id[asked["gold_passage_ids"][0]]
        near = [one for one in articles[gold["title"]] if one is not gold]
        elsewhere = titles[(titles.index(gold["title"]) + rng.integers(1, len(titles))) % len(titles)]
        shown_beside = [near[place] for place in rng.permutation(len(near))[:OTHERS]]
        texts = [(one["title"], one["text"]) for one in (gold, *shown_beside)]
        sentences = {
            "alone": "",
            "after a courtesy": COURTESY,
            "after what it is about": f"I read about {gold['title']}.",
            "after a sentence of its passage": _drawn([gold], rng),
            "after a sentence of its article": _drawn(near, rng),
            "after a sentence of another article": _drawn(articles[elsewhere], rng),
        }
        for kind, before in sentences.items():
            yield Case(f"SQuAD, {kind}", f"{before} {asked['question']}".strip(), texts, asked["answers_all"])


def doc2dial(
    turns: Sequence[Mapping[str, Any]], documents: Sequence[Mapping[str, Any]], rng: np.random.Generator
) -> Iterator[Case]:
    """Yield one turn of each conversation that asks and says something else."""
    by_id = {one["id"]: one for one in documents}
    held: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for turn in turns:
        if (
            asking_first(turn["history"][-1]["text"]) != turn["history"][-1]["text"]
            and turn["gold_passage_ids"]
        ):
            held[turn["conversation_id"]].append(turn)
    for conversation in sorted(held):
        turn = held[conversation][rng.integers(len(held[conversation]))]
        document = by_id[turn["gold_passage_ids"][0]]
        parts = pieces(document["text"])
        gold = piece_at(parts, len(document["text"][: turn["answer_start"][0]].split()))
        others = [one for one in rng.permutation(len(parts)).tolist() if one != gold][:OTHERS]
        texts = [(document["title"], parts[one]) for one in (gold, *others)]
        yield Case("turns of doc2dial-val", turn["history"][-1]["text"], texts, turn["answers"])


def piece_at(parts: Sequence[str], word: int) -> int:
    """Return the place of the piece that has a text's word of that place."""
    ends = np.cumsum([len(part.split()) for part in parts])
    return min(int(np.searchsorted(ends, word, side="right")), len(parts) - 1)


def _drawn(passages: Sequence[Mapping[str, Any]], rng: np.random.Generator) -> str:
    """Draw a sentence of a drawn passage."""
    sentences = _SENTENCE_END.split(passages[int(rng.integers(len(passages)))]["text"])
    return sentences[rng.integers(len(sentences))]


def measured(reader: PointerReader, case: Case) -> tuple[float, float]:
    """Return token F1 of the answer, and whether the passage that answers has the highest P(true)."""
    encoded = reader.encode(case.question, case.passages)
    (verdicts,) = reader.verdicts([encoded])
    best = max(range(len(verdicts)), key=verdicts.__getitem__)
    return token_f1(reader.answer(encoded).text, list(case.answers)), float(best == 0)


def row(kind: str, found: Mapping[str, FloatArray]) -> dict[str, str]:
    """Return a row of the table: means of both readings, and their difference."""
    cells = {"": kind, "questions": str(len(found[ASKS_FIRST]))}
    for at, measure in enumerate(("F1", "gold first")):
        stands, first = (found[name][:, at] for name in (AS_IT_STANDS, ASKS_FIRST))
        gap = Bootstrap().paired(f"{kind} {measure}", first, stands).difference
        cells[f"{measure}, {AS_IT_STANDS}"] = f"{stands.mean():.3f}"
        cells[f"{measure}, {ASKS_FIRST}"] = f"{first.mean():.3f}"
        cells[f"difference of {measure}"] = shown(gap)
    return cells


if __name__ == "__main__":
    main()
