"""Have the bundled reader answer the asks of the simulation, from the contexts that each policy drew.

``nice -n 10 python -m benchmarks.over_time.answers`` goes on where it was stopped. Asks are those of
``python -m benchmarks.over_time`` on bioasq-golden; those of factoid questions are answered, of as many
questions as ``--questions`` says, in an order drawn once. It writes ``docs/studies/over-time/answers.csv``: a
row for each policy and question.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from benchmarks.over_time.policies import (
    SEED,
    STRENGTHS,
    EqualDials,
    Outcome,
    Policy,
    Shown,
    context,
    controller,
    dial,
    follow,
    most_useful,
    program,
)
from benchmarks.over_time.sets import SETS, Judged, Pool, pools
from benchmarks.over_time.stream import OUT, asks
from benchmarks.shared_data import folder, rows
from evenmesh_core.text_metrics import exact_match, token_f1
from evenmesh_generator.pointer.reader import PointerReader

SET: Final = "bioasq-golden"
QUESTIONS: Final = 400
ANSWERED_DIALS: Final = (2.0, 4.0, 8.0, 16.0)
ANSWERED_SLACKS: Final = (0.0, 0.5, 1.0)
ANSWERED_STRENGTHS: Final = STRENGTHS[:3]
ROOT: Final = Path(__file__).resolve().parents[2]
COLUMNS: Final = ("policy", "setting", "question", "asks", "exact_match", "f1", "useful")

_BATCH: Final = 32


class Drawn(NamedTuple):
    """What a policy showed for an ask: which question, and which places of its pool."""

    pool: Pool
    places: tuple[int, ...]


@dataclass(frozen=True)
class Followed:
    """A policy on all asks: what came of it, and its contexts; ``beside`` is what a dial is matched with."""

    outcome: Outcome
    drawn: Sequence[Drawn]
    beside: str = ""


def followed(asked: Sequence[Pool]) -> list[Followed]:
    """Return dials, programs and controllers on the asks, and a dial of equal disparity for each of these."""
    dials = EqualDials(asked)
    made = [_follow(asked, "dial", one, dial(one)) for one in ANSWERED_DIALS]
    for name, policy, values in (
        ("program", program, ANSWERED_SLACKS),
        ("controller", controller, ANSWERED_STRENGTHS),
    ):
        for setting in values:
            found = _follow(asked, name, setting, policy(setting))
            alpha = dials.find(found.outcome.disparity)
            made += [found, _follow(asked, "dial", alpha, dial(alpha), beside=f"{name} {setting:g}")]
    return made


def _follow(asked: Sequence[Pool], name: str, setting: float, policy: Policy, beside: str = "") -> Followed:
    drawn: list[Drawn] = []

    def seen(number: int, pool: Pool, shown: Shown) -> None:
        drawn.append(Drawn(pool, context(shown, number)))

    return Followed(follow(asked, policy, seen).outcome(name, setting), drawn, beside)


def gold() -> dict[str, list[str]]:
    """Return the accepted answers of factoid questions, by id."""
    found = rows(folder(SET) / "questions.jsonl.gz")
    return {row["id"]: row["answers"] for row in found if row["type"] == "factoid" and row["answers"]}


class Journal:
    """Answers that are known, one line for each question, so that a stopped run goes on.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.known: dict[str, dict[str, str]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                self.known.setdefault(row["question"], {}).update(row["answers"])

    def add(self, question: str, answers: dict[str, str]) -> None:
        """Keep answers, by context."""
        self.known.setdefault(question, {}).update(answers)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"question": question, "answers": answers}) + "\n")


def key(places: Sequence[int]) -> str:
    """Return the name of a context in the journal."""
    return "-".join(map(str, places))


def answer(reader: PointerReader, found: Judged, pool: Pool, contexts: Sequence[Sequence[int]]) -> list[str]:
    """Return the answers from contexts of one question; each passage is encoded once."""
    places = sorted({one for some in contexts for one in some})
    passages = [found.passages[pool.passages[one]] for one in places]
    encoded = reader.encode(found.questions[pool.question], [(one["title"], one["text"]) for one in passages])
    texts: list[str] = []
    for first in range(0, len(contexts), _BATCH):
        some = [
            encoded.pick([places.index(one) for one in places_])
            for places_ in contexts[first : first + _BATCH]
        ]
        texts += [one.text for one in reader.answer_many(some)]
    return texts


def table(
    policies: Sequence[Followed], journal: Journal, accepted: dict[str, list[str]], questions: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a row for each policy and question that was asked: means over its asks."""
    chosen, found = set(questions), []
    for policy in policies:
        scores: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
        for pool, places in policy.drawn:
            if pool.question in chosen:
                text, right = journal.known[pool.question][key(places)], accepted[pool.question]
                useful = float(pool.useful[list(places)].sum()) / most_useful(pool)
                scores[pool.question].append((exact_match(text, right), token_f1(text, right), useful))
        for question in questions:
            em, f1, useful = np.mean(scores[question], axis=0).tolist()
            found.append(
                dict(
                    zip(
                        COLUMNS,
                        (
                            policy.outcome.policy,
                            f"{policy.outcome.setting:g}",
                            question,
                            len(scores[question]),
                            f"{em:.4g}",
                            f"{f1:.4g}",
                            f"{useful:.4g}",
                        ),
                        strict=True,
                    )
                )
            )
    return found


def main() -> None:
    """Answer, and write the rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.over_time.answers", description=__doc__)
    parser.add_argument("--questions", type=int, default=QUESTIONS, help=f"default: {QUESTIONS}")
    parser.add_argument("--journal", type=Path, default=ROOT / "build" / "over-time-answers.jsonl")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = SETS[SET][1]()
    asked = asks(pools(found))
    policies = followed(asked)
    accepted = gold()
    by_question = {pool.question: pool for pool in asked if pool.question in accepted}
    order = np.random.default_rng(SEED).permutation(sorted(by_question)).tolist()[: given.questions]
    wanted: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for policy in policies:
        for pool, places in policy.drawn:
            wanted[pool.question].add(places)
    journal = Journal(given.journal)
    reader = PointerReader.from_folder()
    print(f"{len(order)} questions, {sum(len(wanted[one]) for one in order)} contexts", flush=True)
    for number, question in enumerate(order, 1):
        known = journal.known.get(question, {})
        contexts = sorted(one for one in wanted[question] if key(one) not in known)
        if contexts:
            texts = answer(reader, found, by_question[question], contexts)
            journal.add(question, dict(zip(map(key, contexts), texts, strict=True)))
        if number % 20 == 0:
            print(f"{number} questions", flush=True)
            write(policies, journal, accepted, order[:number])
    write(policies, journal, accepted, order)


def write(
    policies: Sequence[Followed], journal: Journal, accepted: dict[str, list[str]], questions: Sequence[str]
) -> None:
    """Write the rows of questions that are answered, and what came of the policies on all asks."""
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / "answers.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table(policies, journal, accepted, questions))
    outcomes = [
        {
            "policy": one.outcome.policy,
            "setting": one.outcome.setting,
            "beside": one.beside,
            "disparity": one.outcome.disparity,
            "unfairness": one.outcome.unfairness[-1],
        }
        for one in policies
    ]
    (OUT / "answers.json").write_text(json.dumps(outcomes, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
