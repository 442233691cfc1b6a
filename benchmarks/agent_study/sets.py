"""What the agents are asked, and the passages that all of them search together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar

import numpy as np

import evenmesh_models
from benchmarks.shared_data import folder, rows
from evenmesh_lab.files.trained_texts import find_trained_texts
from evenmesh_reranker.domain import Passage
from evenmesh_training.ium.plan import TRAIN, AgentTable, AgentTasks, Task

TEST: Final = "test"
MOST: Final = 520
"""Questions that an agent is tested with at most."""
WORDS: Final = 45
"""Words of a piece of a long passage, at most; a longer sentence is a piece of its own."""
SUPPORTS: Final = "SUPPORTS"
REFUTES: Final = "REFUTES"
_LEARNED: Final = 0.2
"""Share of climate-fever's claims that are trained on: few are refuted."""
_HISTORY: Final = 24
"""Words of a conversation that are asked with its last turn."""
_SEED: Final = 29
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+")

T = TypeVar("T")

READER: Final = "reader"
NEAREST: Final = "nearest-sentence"
LEXICAL: Final = "lexical-sentence"
PEOPLE: Final = "people"

AGENTS: Final = (
    AgentTable(task_id="spans", model_id=READER, model=READER, passages=1),
    AgentTable(task_id="lists", model_id=NEAREST, model=NEAREST, utility="answer-recall", passages=1),
    AgentTable(task_id="claims-for", model_id=PEOPLE, model=PEOPLE, utility="accuracy", passages=1),
    AgentTable(task_id="claims-against", model_id=PEOPLE, model=PEOPLE, utility="accuracy", passages=1),
    AgentTable(task_id="turns", model_id=LEXICAL, model=LEXICAL, utility="token-f1", passages=1),
)


@dataclass(frozen=True)
class World:
    """The agents' tasks, and what they share.

    Attributes:
        plan: agents and tasks.
        passages: that are searched.
        labels: by claim, what people say that a passage does, by its id.
    """

    plan: AgentTasks
    passages: Sequence[Passage]
    labels: Mapping[str, Mapping[str, str]]


@cache
def world() -> World:
    """Return everything that is asked."""
    passages = {one.id: one for one in _passages()}
    labels = _labels()
    tasks = [*_spans(), *_lists(), *_claims(labels), *_turns()]
    return World(AgentTasks(AGENTS, "all", tuple(tasks)), tuple(passages.values()), labels)


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, by their marks at the end."""
    return [one for one in _SENTENCE.split(text.strip()) if one]


def pieces(name: str, title: str, text: str) -> Iterator[Passage]:
    """Yield a long passage in whole sentences, of at most :data:`WORDS` words together."""
    part: list[str] = []
    number = 0
    for sentence in sentences(text):
        if part and sum(len(one.split()) for one in (*part, sentence)) > WORDS:
            yield Passage(f"{name}/{number}", title, " ".join(part))
            part, number = [], number + 1
        part.append(sentence)
    if part:
        yield Passage(f"{name}/{number}", title, " ".join(part))


def _passages() -> Iterator[Passage]:
    for name in ("bioasq-golden", "climate-fever", "fever-symmetric"):
        for row in rows(folder(name) / "passages.jsonl.gz"):
            yield Passage(row["id"], row["title"], row["text"])
    for name, file in (("squad-open", "passages.dev"), ("doc2dial-val", "documents")):
        for row in rows(folder(name) / f"{file}.jsonl.gz"):
            yield from pieces(row["id"], row["title"], row["text"])


def _spans() -> list[Task]:
    """Return dev questions of SQuAD; those of an article are all trained on, or all tested with."""
    found = rows(folder("squad-open") / "questions.dev.jsonl.gz")
    tested = _half({row["title"] for row in found})
    return _tasks(
        "spans",
        [(row["id"], row["question"], row["answers"], row["title"] in tested) for row in _shuffled(found)],
    )


def _lists() -> list[Task]:
    """Return factoid and list questions of BioASQ; of every item its first name."""
    found = [
        row
        for row in rows(folder("bioasq-golden") / "questions.jsonl.gz")
        if row["type"] in ("factoid", "list")
    ]
    return _tasks(
        "lists",
        [
            (row["id"], row["question"], _items(row), place < MOST)
            for place, row in enumerate(_shuffled(found))
            if _items(row)
        ],
    )


def _items(row: Mapping[str, Any]) -> list[str]:
    names = [one[0] for one in row["answers"]] if row["type"] == "list" else row["answers"][:1]
    return [one for one in names if any(letter.isalnum() for letter in one)]


def _labels() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for row in rows(folder("climate-fever") / "claims.jsonl.gz"):
        found[row["claim"]] = {one["doc_id"]: one["label"] for one in row["evidence"]}
    for row in rows(folder("fever-symmetric") / "claims.jsonl.gz"):
        for passage in row["gold_passage_ids"]:
            found.setdefault(row["claim"], {})[passage] = row["label"]
    return found


def _claims(labels: Mapping[str, Mapping[str, str]]) -> list[Task]:
    """Return claims with evidence of a kind; of fever-symmetric, its split test is tested with.

    Tested with are those that neither the reranker nor the reader that ship were trained on.
    """
    trained = [find_trained_texts(one) for one in (evenmesh_models.cross_encoder(), evenmesh_models.reader())]
    known = {claim for claim in labels if any(one is not None and one.has_question(claim) for one in trained)}
    climate = [(row["id"], row["claim"]) for row in rows(folder("climate-fever") / "claims.jsonl.gz")]
    climate = _shuffled(climate)
    learned = {claim for _, claim in climate[: round(_LEARNED * len(climate))]}
    general = [
        (row["id"], row["claim"], row["split"] == TEST)
        for row in rows(folder("fever-symmetric") / "claims.jsonl.gz")
    ]
    asked = _shuffled([*((name, claim, claim not in learned) for name, claim in climate), *general])
    return [
        task
        for agent, label in (("claims-for", SUPPORTS), ("claims-against", REFUTES))
        for task in _tasks(
            agent,
            [
                (f"{name}/{agent}", claim, [label], tested)
                for name, claim, tested in asked
                if label in labels[claim].values() and not (tested and claim in known)
            ],
        )
    ]


def _turns() -> list[Task]:
    """Return turns of conversations; those about a document are all trained on, or all tested with."""
    found = [row for row in rows(folder("doc2dial-val") / "turns.jsonl.gz") if row["gold_passage_ids"]]
    tested = _half({row["gold_passage_ids"][0] for row in found})
    return _tasks(
        "turns",
        [
            (row["id"], _asked(row["history"]), row["answers"], row["gold_passage_ids"][0] in tested)
            for row in _shuffled(found)
        ],
    )


def _asked(history: Sequence[Mapping[str, str]]) -> str:
    """Return the last turn, and before it what was said, the latest first, as far as it fits."""
    words = " ".join(turn["text"] for turn in reversed(history)).split()
    return " ".join(words[:_HISTORY])


def _tasks(agent: str, found: Sequence[tuple[str, str, Sequence[str], bool]]) -> list[Task]:
    """Return tasks of an agent: all that may be trained on, and :data:`MOST` to be tested with.

    A question that stands there twice counts once.
    """
    known: dict[str, Task] = {}
    for name, question, answers, tested in found:
        if question.strip() and answers:
            task = Task(name, agent, question, tuple(answers), TEST if tested else TRAIN)
            known.setdefault(question, task)
    tested_with = [one for one in known.values() if one.split == TEST][:MOST]
    return [one for one in known.values() if one.split == TRAIN] + tested_with


def _half(names: set[str]) -> set[str]:
    return set(_shuffled(sorted(names))[: len(names) // 2])


def _shuffled(items: Sequence[T]) -> list[T]:
    return [items[at] for at in np.random.default_rng(_SEED).permutation(len(items)).tolist()]
