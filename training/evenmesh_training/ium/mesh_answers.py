"""A mesh as offline training asks it: candidates of its retrievers, answers of its agents, with retries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from evenmesh import AsyncClient
from evenmesh.generation import LARGEST_BATCH, Generation
from evenmesh.long_runs import RetryObserver, may_pass, with_retries
from evenmesh.types.events import Failed
from evenmesh.types.passage import Passage as ClientPassage
from evenmesh.types.request import Augmentation, Decoding
from evenmesh.wire.errors import MeshError, Unavailable
from evenmesh_reranker.domain import Passage
from evenmesh_training.ium.functions import Functions
from evenmesh_training.ium.plan import AgentTable, PlanError
from evenmesh_training.ium.result_cache import Candidates

AUGMENTATIONS: Final[dict[str, Augmentation | None]] = {
    "fid": "fusion_in_decoder",
    "in-prompt": "in_prompt",
    "": None,
}
"""Names of the ways to give passages to a model in an agents' file."""

Note = Callable[[str, str], None]
"""Receives name and version of each model and index that results are made with. It may raise."""


@dataclass(eq=False)
class MeshAnswers:
    """Asks one collection and the models of a mesh; a :class:`evenmesh_training.ium.answer_collector.Mesh`.

    Args:
        client: finds candidates.
        generation: answers.
        collection: collection of the candidates.
        note: receives versions of models and indexes.
        watcher: called with every pause before a retry.
        functions: agents that are functions of the user's.
        batch: answers of one call, 1 to 256.
        timeout: longest call. Seconds.
        retry_for_s: longest time that the mesh may fail one call. Seconds.
    """

    client: AsyncClient
    generation: Generation
    collection: str
    _: KW_ONLY
    note: Note
    watcher: RetryObserver
    functions: Functions
    batch: int = 32
    timeout: float = 600.0
    retry_for_s: float = 600.0

    async def candidates(self, question: str, *, retriever: str, depth: int) -> Candidates:
        """Return a retriever's best passages for a question.

        Raises:
            MeshError: the mesh rejects the call, or was away for too long.
        """

        async def ask() -> Candidates:
            found = await self.client.retrieve(
                question,
                collection=self.collection,
                retriever=retriever,
                depth=depth,
                k=depth,
                timeout=self.timeout,
            )
            self.note(f"index of {retriever or 'the default retriever'}", found.index_version)
            places = found.rankings[0]
            ranked = (found.passages[at] for at in places)
            return Candidates(
                tuple(Passage(one.id, one.title, one.text) for one in ranked),
                tuple(found.scores[at] for at in places),
            )

        return await with_retries(ask, f"query {question!r}", self.watcher, retry_for_s=self.retry_for_s)

    async def answers(
        self, agent: AgentTable, question: str, contexts: Sequence[Sequence[Passage]], *, beams: int = 1
    ) -> list[str | None]:
        """Return an agent's answer from each context; None where it rejects that context alone.

        Args:
            agent: its model, augmentation and template answer.
            question: the question.
            contexts: passages for each answer.
            beams: 1 is greedy.

        Raises:
            MeshError: the mesh rejects all of them, or was away for too long.
            PlanError: the agent is a function, and failed.
        """
        if agent.function:
            self.note(f"function {agent.function}", self.functions.versions[agent.function])
            return await self.functions.answers(agent, question, contexts)
        found: list[str | None] = []
        size = min(self.batch, LARGEST_BATCH)
        for begin in range(0, len(contexts), size):
            part = contexts[begin : begin + size]

            async def ask(part: Sequence[Sequence[Passage]] = part) -> list[str | None]:
                return await self._ask(agent, question, part, beams)

            what = f"query {question!r} for {agent.model}"
            found += await with_retries(ask, what, self.watcher, retry_for_s=self.retry_for_s)
        return found

    async def _ask(
        self, agent: AgentTable, question: str, contexts: Sequence[Sequence[Passage]], beams: int
    ) -> list[str | None]:
        shown = [[ClientPassage(one.id, one.text, one.title) for one in part] for part in contexts]
        outcomes = await self.generation.answers(
            question,
            shown,
            model=agent.model,
            augmentation=AUGMENTATIONS[agent.augmentation],
            template=agent.template or None,
            decoding=Decoding(num_beams=beams),
            timeout=self.timeout,
        )
        if len(outcomes) != len(shown):
            raise Unavailable("CUT_OFF", "the generator did not answer everything")
        texts: list[str | None] = []
        for outcome in outcomes:
            if isinstance(outcome, Failed):
                if may_pass(outcome.code, outcome.reason):
                    raise Unavailable("NO_ANSWER", outcome.message)
                texts.append(None)
                continue
            self.note(f"version of {outcome.model}", outcome.model_version)
            texts.append(outcome.text)
        return texts


async def problems(
    mesh: MeshAnswers, question: str, agents: Sequence[AgentTable], *, retriever: str = "bm25"
) -> list[str]:
    """Ask each agent once, and return what the mesh would reject of a run, a line each.

    Args:
        mesh: the mesh.
        question: a question of the run.
        agents: the agents of the run.
        retriever: finds candidates.

    Raises:
        MeshError: the mesh does not answer.
    """
    try:
        found = await mesh.candidates(question, retriever=retriever, depth=1)
    except MeshError as error:
        if may_pass(error.code.name, error.reason):
            raise
        return [str(error)]
    wrong: list[str] = []
    for agent in {one.writer: one for one in agents}.values():
        try:
            await mesh.answers(agent, question, [found.passages])
        except PlanError as error:
            wrong.extend(error.problems)
        except MeshError as error:
            if may_pass(error.code.name, error.reason):
                raise
            wrong.append(f"model {agent.model}: {error.message}")
    return wrong
