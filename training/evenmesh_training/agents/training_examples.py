"""Make an agent's examples: inputs with the passages that BM25 finds for them, and the right answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from evenmesh_generator.domain import Passage
from evenmesh_training.agents.tasks import Task
from evenmesh_training.rankrag.batches import EpochOrder
from evenmesh_training.rankrag.data.examples import Example, Form, Kind, Shown
from evenmesh_training.rankrag.data.negatives import Bm25Index


@dataclass(frozen=True)
class Retrieved:
    """Examples of tasks, and how many inputs no passage shares a word with: those are left out."""

    examples: Sequence[Example]
    nothing_found: int


class PassageIndex:
    """A collection that is searched by BM25, a passage being its title and its text."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages
        self._search = Bm25Index(f"{one.title} {one.text}" for one in passages)

    def retrieve(self, tasks: Sequence[Task], depth: int) -> Retrieved:
        """Return every task with its ``depth`` best passages, or as many as share a word with its input."""
        found = [(task, self._search.best(task.input, depth)) for task in tasks]
        return Retrieved(
            [_example(task, [self._passages[at] for at in places]) for task, places in found if places],
            sum(not places for _, places in found),
        )


class ShuffledExamples:
    """Endless examples: each epoch holds all of them once, in an order drawn from the seed."""

    def __init__(self, examples: Sequence[Example], seed: int) -> None:
        self._examples = examples
        self._order = EpochOrder(len(examples), seed)

    def __getitem__(self, index: int) -> Example:
        """Return example number ``index``, from 0."""
        return self._examples[self._order[index]]


def _example(task: Task, passages: Sequence[Passage]) -> Example:
    return Example(
        kind=Kind.RETRIEVAL_AUGMENTED_QA,
        source=task.agent,
        id=task.id,
        question=task.input,
        turns=(),
        # No passage is marked as the one that answers: the agent learns from whatever was found.
        shown=tuple(Shown(one, gold=False, holds=True) for one in passages),
        answer=task.answers[0],
        answers=task.answers,
        form=Form.SHORT,
    )
