"""Have a reader answer the questions of a data set from what each retriever shows.

``python -m benchmarks.vote_study squad-open bundled``; continues where it was stopped. A reader answers some
45 questions a minute on one Zen 4 core.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import torch

from benchmarks import command, two_readers
from benchmarks.vote_study import records
from benchmarks.vote_study.retrievers import Retrievers
from benchmarks.vote_study.sets import SETS, passages
from evenmesh_core.text_metrics import contains_answer, exact_match

_SAVED_EVERY_S: Final = 60.0


def main() -> None:
    """Do it."""
    parser = command.parser("vote_study", __doc__)
    parser.add_argument("--home", type=Path, default=Path("build/vote-study"), help="for vectors and models")
    parser.add_argument("set", choices=SETS)
    parser.add_argument("reader", choices=two_readers.READERS)
    parser.add_argument("--questions", type=int, default=1_000_000, help="default: all")
    given = parser.parse_args()
    torch.set_num_threads(1)
    answer(given.set, given.reader, given.questions, given.home)


def answer(name: str, reader: str, most: int, home: Path) -> None:
    """Have a reader answer the questions of a data set in their order, up to so many of them."""
    rows = records.read(name, reader)
    known = {row["question"] for row in rows}
    retrievers, saved = Retrievers(passages(), home), time.monotonic()
    with two_readers.reading(reader, home) as model:
        for number, question in enumerate(SETS[name]()[:most], 1):
            if question.id in known:
                continue
            shown = [tuple(sorted(one)) for one in retrievers.show(question.text).values()]
            contexts = list(dict.fromkeys(one for one in shown if one))
            texts = dict(
                zip(
                    contexts,
                    two_readers.answered(model, question.text, contexts, retrievers.passages),
                    strict=True,
                )
            )
            answers = [texts.get(one, "") for one in shown]
            rows.append(
                {
                    "question": question.id,
                    "answers": answers,
                    "right": [
                        any(contains_answer(text, one) for one in question.answers) for text in answers
                    ],
                    "exact": [bool(exact_match(one, question.answers)) for one in answers],
                }
            )
            if time.monotonic() - saved > _SAVED_EVERY_S:
                records.write(name, reader, rows)
                print(f"{number} questions", flush=True)
                saved = time.monotonic()
    records.write(name, reader, rows)


if __name__ == "__main__":
    main()
