"""What is asked of the mesh for a run: candidates and answers, each asked for once and kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from services.reranker.domain import Passage
from services.reranker.training.evidence import Evidence
from services.reranker.training.plan import AgentTable, Task
from services.reranker.training.recipe import Recipe

_T = TypeVar("_T")


class Mesh(Protocol):
    """Where candidates and answers come from. Both are patient: what they raise will not pass."""

    async def candidates(self, question: str, *, retriever: str, depth: int) -> list[Passage]:
        """A retriever's best passages of the collection, best first."""
        ...

    async def answers(
        self, agent: AgentTable, question: str, contexts: Sequence[Sequence[Passage]], *, beams: int
    ) -> list[str | None]:
        """An agent's answer from each context; None where it refuses one."""
        ...


class Watcher(Protocol):
    """Is told how a run goes."""

    def begins(self, what: str, total: int, done: int) -> None:
        """A part of the work begins, so much of which was done before."""
        ...

    def advances(self, by: int = 1) -> None:
        """Some of it is done."""
        ...

    def says(self, line: str) -> None:
        """Something to know."""
        ...


class StoppedError(Exception):
    """The run was asked to stop; what was done is kept."""


class Inquiry:
    """Asks the mesh for what is not known yet.

    Args:
        recipe: how many candidates, and how agents answer.
        evidence: what was found out.
        mesh: asked for the rest.
        watcher: told how it goes.
        stop: asked whether to end early.
        in_flight: questions at the mesh at a time, [1, inf).
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        evidence: Evidence,
        mesh: Mesh,
        watcher: Watcher,
        stop: Callable[[], bool],
        in_flight: int,
    ) -> None:
        self.evidence = evidence
        self.watcher = watcher
        self.stop = stop
        self._recipe = recipe
        self._mesh = mesh
        self._in_flight = in_flight

    async def candidates(
        self, tasks: Sequence[Task], what: str, *, retriever: str = "bm25"
    ) -> list[list[Passage]]:
        """A retriever's best passages for each task, as many as the recipe says.

        Raises:
            StoppedError: it was asked to stop.
            MeshError: the mesh refuses, or was away for too long.
        """
        depth = self._recipe.depth
        questions = list(dict.fromkeys(task.question for task in tasks))
        todo = [one for one in questions if self.evidence.candidates(retriever, one, depth) is None]
        self.watcher.begins(f"{what}: candidates", len(questions), len(questions) - len(todo))

        async def find(question: str) -> None:
            found = await self._mesh.candidates(question, retriever=retriever, depth=depth)
            self.evidence.keep_candidates(retriever, question, depth, found)

        await self._each(todo, find, self.watcher.advances)
        return [self.evidence.candidates(retriever, task.question, depth) or [] for task in tasks]

    async def answer(
        self, wanted: Sequence[tuple[AgentTable, Task, list[list[str]]]], what: str = ""
    ) -> None:
        """Has agents answer from lists of passages, unless they did before.

        Args:
            wanted: who, what it is asked, and from which lists it is to answer.
            what: names this part of the work to the watcher; empty: it is not told.

        Raises:
            StoppedError: it was asked to stop.
            MeshError: the mesh refuses, or was away for too long.
        """
        todo = []
        for agent, task, lists in wanted:
            lacking = [
                one
                for one in lists
                if one and self.evidence.answer(self._writer(agent), task.question, one) is None
            ]
            if lacking:
                todo.append((agent, task, lacking))
        if what:
            self.watcher.begins(what, len(wanted), len(wanted) - len(todo))

        async def ask(unit: tuple[AgentTable, Task, list[list[str]]]) -> None:
            agent, task, lists = unit
            contexts = [self.evidence.passages(one) for one in lists]
            answers = await self._mesh.answers(agent, task.question, contexts, beams=self._recipe.beams)
            for shown, answer in zip(lists, answers, strict=True):
                self.evidence.keep_answer(self._writer(agent), task.question, shown, answer)

        await self._each(todo, ask, self.watcher.advances if what else lambda: None)

    def utility(self, agent: AgentTable, task: Task, shown: Sequence[str]) -> tuple[float | None, str | None]:
        """What the agent's answer from a list is worth, and the answer; None where there is none."""
        found = self.evidence.answer(self._writer(agent), task.question, shown)
        if found is None or found[0] is None:
            return None, None
        return agent.utility_of(found[0], task.answers), found[0]

    def check_stop(self) -> None:
        """Raises :class:`StoppedError` if it was asked to stop."""
        if self.stop():
            raise StoppedError

    async def _each(
        self, units: Sequence[_T], work: Callable[[_T], Awaitable[None]], done: Callable[[], None]
    ) -> None:
        """Does units a few at a time; when one fails the others are ended."""
        todo: Iterator[_T] = iter(units)

        async def worker() -> None:
            for unit in todo:
                self.check_stop()
                await work(unit)
                done()

        if not units:
            return
        tasks = [asyncio.create_task(worker()) for _ in range(min(self._in_flight, len(units)))]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in ended:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _writer(self, agent: AgentTable) -> str:
        return f"{agent.writer} {self._recipe.beams}"
