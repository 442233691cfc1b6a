"""Agents whose taste is a rule, and what they are asked: a mesh for offline training without a wire."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from evenmesh_kit.compute.placement import Placement
from evenmesh_reranker.domain import Passage
from evenmesh_training.ium.plan import AgentTable, AgentTasks, Task
from evenmesh_training.ium.recipe import IumRecipe
from evenmesh_training.ium.result_cache import Candidates
from tests.support.tiny_models import SENTENCES

PLACEMENT = Placement(torch.device("cpu"), torch.float32)
PASSAGES = [Passage(f"p{at}", "", text) for at, text in enumerate(SENTENCES)]
EVEN = AgentTable(task_id="qa", model_id="even", model="even", dataset="d", passages=1)
ODD = AgentTable(task_id="qa", model_id="odd", model="odd", dataset="d", passages=1)
TASKS = tuple(
    Task(f"{split}{at}", "qa", f"water {word}", ("yes",), split)
    for split, words in (("train", ["celsius", "boils", "sea"]), ("test", ["level", "point"]))
    for at, word in enumerate(words)
)
PLAN = AgentTasks((EVEN, ODD), "tiny", TASKS)
RECIPE = IumRecipe(
    name="tiny",
    rounds=2,
    depth=6,
    k=4,
    epochs=1,
    batch_size=8,
    micro_batch=8,
    learning_rate=1e-3,
    max_length=48,
    bf16=False,
    evaluation_split="test",
)


class RuleMesh:
    """A mesh whose retriever finds the passages in their order, and whose agents answer by a rule.

    "even" answers "yes" from a passage of an even number if it is the first it is shown, "odd" of an odd one.
    """

    def __init__(self, *, refuses: str = "") -> None:
        self.asked: list[tuple[str, str, tuple[str, ...]]] = []
        self.found: list[str] = []
        self._refuses = refuses

    async def candidates(self, question: str, *, retriever: str, depth: int) -> Candidates:
        self.found.append(question)
        found = PASSAGES[:depth] if retriever == "bm25" else PASSAGES[:depth][::-1]
        return Candidates(tuple(found), tuple(float(depth - at) for at in range(len(found))))

    async def answers(
        self, agent: AgentTable, question: str, contexts: Sequence[Sequence[Passage]], *, beams: int
    ) -> list[str | None]:
        assert beams == RECIPE.beams
        answers: list[str | None] = []
        for shown in contexts:
            self.asked.append((agent.model, question, tuple(one.id for one in shown)))
            number = int(shown[0].id[1:])
            answer = "yes" if (number % 2 == 0) is (agent.model == "even") else "no"
            answers.append(None if shown[0].id == self._refuses else answer)
        return answers


class NoProgress:
    def begins(self, what: str, total: int, done: int) -> None:
        pass

    def advances(self, by: int = 1) -> None:
        pass

    def note(self, line: str) -> None:
        pass
