"""Draw the rankings of a data set, or have a reader answer from them; continues where it was stopped.

    python -m benchmarks.price_study rankings bioasq-golden
    python -m benchmarks.price_study answers bioasq-golden bundled --questions 300

A reader answers 13 questions a minute on one core of a Xeon of 2.5 GHz. ``--questions`` counts those answered
before.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks import command, two_readers
from benchmarks.price_study import records
from benchmarks.price_study.rankings import STAGES, Shown, oracle, pools, shown
from benchmarks.price_study.sets import SETS, Asked
from benchmarks.rerank_table.scoring import FirstStages
from evenmesh_core.text_metrics import exact_match, token_f1

_SAVED_EVERY_S: Final = 60.0


def main() -> None:
    """Do one of the two."""
    parser = command.parser("price_study", __doc__)
    parser.add_argument("--home", type=Path, default=Path("build/price-study"), help="for vectors and models")
    steps = parser.add_subparsers(dest="step", required=True)
    drawing = steps.add_parser("rankings")
    drawing.add_argument("set", choices=SETS)
    answering = steps.add_parser("answers")
    answering.add_argument("set", choices=SETS)
    answering.add_argument("reader", choices=two_readers.READERS)
    answering.add_argument("--questions", type=int, default=1_000_000, help="default: all")
    given = parser.parse_args()
    torch.set_num_threads(1)
    asked = SETS[given.set]()
    if given.step == "rankings":
        records.write_rankings(given.set, rankings(asked, given.home))
    else:
        answer(asked, given.reader, given.questions, given.home)


def rankings(asked: Asked, home: Path) -> dict[str, list[Shown]]:
    """Return what every first stage shows at every dial, for each question."""
    stages = FirstStages(asked.judged, home)
    found = {}
    for query in asked.order:
        useful = set(asked.judged.judgements[query])
        of_stage = pools(stages.found(query))
        found[query] = [one for name, pool in of_stage.items() for one in shown(query, name, pool, useful)]
        found[query].append(oracle(query, STAGES[0], of_stage[STAGES[0]], useful))
    return found


def answer(asked: Asked, reader: str, most: int, home: Path) -> None:
    """Have a reader answer the questions of a data set in their order, up to so many of them."""
    name = asked.judged.name
    contexts = records.read_contexts(name)
    rows: list[dict[str, Any]] = records.read_answers(name, reader)
    known = {row["question"] for row in rows}
    passages = {one.id: one for one in asked.judged.passages}
    saved = time.monotonic()
    with two_readers.reading(reader, home) as model:
        for number, query in enumerate(asked.order[:most], 1):
            if query in known:
                continue
            texts = two_readers.answered(model, asked.judged.queries[query], contexts[query], passages)
            accepted = asked.answers[query]
            rows += [
                {
                    "question": query,
                    "context": place,
                    "answer": text,
                    "f1": token_f1(text, accepted),
                    "exact": exact_match(text, accepted),
                }
                for place, text in enumerate(texts)
            ]
            if time.monotonic() - saved > _SAVED_EVERY_S:
                records.write_answers(name, reader, rows)
                print(f"{number} questions", flush=True)
                saved = time.monotonic()
    records.write_answers(name, reader, rows)


if __name__ == "__main__":
    main()
