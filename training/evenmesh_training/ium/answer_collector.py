"""Collect candidates and answers from the mesh; each is asked for once and kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Protocol, TypeVar

from evenmesh_reranker.domain import Passage
from evenmesh_training.ium.plan import AgentTable, Task
from evenmesh_training.ium.recipe import IumRecipe
from evenmesh_training.ium.result_cache import Candidates, ResultCache

_T = TypeVar("_T")


class Mesh(Protocol):
    """Source of candidates and answers. It retries by itself: the errors it raises will not pass."""

    async def candidates(self, question: str, *, retriever: str, depth: int) -> Candidates:
        """Return a retriever's best passages of the collection."""
        ...

    async def answers(
        self, agent: AgentTable, question: str, contexts: Sequence[Sequence[Passage]], *, beams: int
    ) -> list[str | None]:
        """Return an agent's answer from each context; None where it rejects one."""
        ...


class Progress(Protocol):
    """Shows the progress of a run."""

    def begins(self, what: str, total: int, done: int) -> None:
        """Begin a part of the work, of which ``done`` of ``total`` units are done already."""
        ...

    def advances(self, by: int = 1) -> None:
        """Add units that are done."""
        ...

    def note(self, line: str) -> None:
        """Show a line."""
        ...


class StoppedError(Exception):
    """Raised when the run was asked to stop; finished work is kept."""


@dataclass(eq=False)
class AnswerCollector:
    """Asks the mesh for what the cache does not have.

    Args:
        recipe: number of candidates, and how agents answer.
        cache: results so far.
        mesh: asked for the rest.
        progress: shows the progress.
        stop: returns whether to end early.
        in_flight: questions at the mesh at a time, [1, inf).
    """

    recipe: IumRecipe
    _: KW_ONLY
    cache: ResultCache
    mesh: Mesh
    progress: Progress
    stop: Callable[[], bool]
    in_flight: int

    async def candidates(
        self, tasks: Sequence[Task], what: str, *, retriever: str | None = None
    ) -> list[Candidates]:
        """Return a retriever's best passages for each task, the recipe's by default, as many as that says.

        Raises:
            StoppedError: it was asked to stop.
            MeshError: the mesh rejects a call, or was away for too long.
        """
        depth = self.recipe.depth
        name = self.recipe.retriever if retriever is None else retriever
        questions = list(dict.fromkeys(task.question for task in tasks))
        todo = [one for one in questions if self.cache.candidates(name, one, depth) is None]
        self.progress.begins(f"{what}: candidates", len(questions), len(questions) - len(todo))

        async def find(question: str) -> None:
            found = await self.mesh.candidates(question, retriever=name, depth=depth)
            self.cache.keep_candidates(name, question, depth, found)

        await self._each(todo, find, self.progress.advances)
        nothing = Candidates((), ())
        return [self.cache.candidates(name, task.question, depth) or nothing for task in tasks]

    async def answer(
        self, wanted: Sequence[tuple[AgentTable, Task, list[list[str]]]], what: str = ""
    ) -> None:
        """Let agents answer from lists of passages, where the cache has no answer.

        Args:
            wanted: agents, their tasks, and the lists of passage ids to answer from.
            what: name of this part of the work; empty: it is not shown.

        Raises:
            StoppedError: it was asked to stop.
            MeshError: the mesh rejects a call, or was away for too long.
        """
        todo = []
        for agent, task, lists in wanted:
            writer = self._writer(agent)
            lacking = [one for one in lists if one and self.cache.answer(writer, task.question, one) is None]
            if lacking:
                todo.append((agent, task, lacking))
        if what:
            self.progress.begins(what, len(wanted), len(wanted) - len(todo))

        async def ask(unit: tuple[AgentTable, Task, list[list[str]]]) -> None:
            agent, task, lists = unit
            contexts = [self.cache.passages(one) for one in lists]
            answers = await self.mesh.answers(agent, task.question, contexts, beams=self.recipe.beams)
            for shown, answer in zip(lists, answers, strict=True):
                self.cache.keep_answer(self._writer(agent), task.question, shown, answer)

        await self._each(todo, ask, self.progress.advances if what else lambda: None)

    def utility(self, agent: AgentTable, task: Task, shown: Sequence[str]) -> tuple[float | None, str | None]:
        """Return the utility of the agent's answer from a list, and the answer; None where it has none."""
        found = self.cache.answer(self._writer(agent), task.question, shown)
        if found is None or found[0] is None:
            return None, None
        return agent.utility_of(found[0], task.answers), found[0]

    def check_stop(self) -> None:
        """Raise :class:`StoppedError` if the run was asked to stop."""
        if self.stop():
            raise StoppedError

    async def _each(
        self, units: Sequence[_T], work: Callable[[_T], Awaitable[None]], done: Callable[[], None]
    ) -> None:
        """Do units a few at a time; the first failure ends the others."""
        todo: Iterator[_T] = iter(units)

        async def worker() -> None:
            for unit in todo:
                self.check_stop()
                await work(unit)
                done()

        if not units:
            return
        tasks = [asyncio.create_task(worker()) for _ in range(min(self.in_flight, len(units)))]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in ended:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _writer(self, agent: AgentTable) -> str:
        return f"{agent.writer} {self.recipe.beams}"
