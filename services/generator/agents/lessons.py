"""What an agent learns from: inputs with the passages that BM25 finds for them, and the answer to give."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.generator.agents.tasks import Task
from services.generator.training.examples import Example, Form, Kind, Passage, Shown
from services.generator.training.negatives import HardNegatives


@dataclass(frozen=True)
class Retrieved:
    """Examples of tasks, and how many inputs no passage shares a word with: those are left out."""

    examples: Sequence[Example]
    nothing_found: int


class Library:
    """A collection that is searched by BM25, a passage being its title and its text."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages
        self._search = HardNegatives(f"{one.title} {one.text}" for one in passages)

    def look_up(self, tasks: Sequence[Task], depth: int) -> Retrieved:
        """Every task with the ``depth`` best passages, or as many as share a word with its input."""
        found = [(task, self._search.best(task.input, depth)) for task in tasks]
        return Retrieved(
            [_example(task, [self._passages[at] for at in places]) for task, places in found if places],
            sum(not places for _, places in found),
        )


class Lessons:
    """Endless examples: all in an order of their own for each epoch, drawn from the seed."""

    def __init__(self, examples: Sequence[Example], seed: int) -> None:
        self._examples = examples
        self._seed = seed
        self._epoch = -1
        self._order: list[int] = []

    def __getitem__(self, index: int) -> Example:
        """Example number ``index``, from 0."""
        epoch, at = divmod(index, len(self._examples))
        if epoch != self._epoch:
            drawn = np.random.default_rng([self._seed, epoch])
            self._order = [int(place) for place in drawn.permutation(len(self._examples))]
            self._epoch = epoch
        return self._examples[self._order[at]]


def _example(task: Task, passages: Sequence[Passage]) -> Example:
    return Example(
        kind=Kind.RETRIEVAL_AUGMENTED_QA,
        source=task.agent,
        id=task.id,
        question=task.input,
        turns=(),
        # Which of them answers is not told: the agent learns its answer, from whatever was found.
        shown=tuple(Shown(one, gold=False, holds=True) for one in passages),
        answer=task.answers[0],
        answers=task.answers,
        form=Form.SHORT,
    )
