"""Online IUM for the agents of an offline run: what Algorithm 2 adds where Algorithm 1 ended.

Every agent is asked the tasks that the run is measured on, one by one. The model of the last round ranks for
it, with changes of the agent's own that are trained after every b tasks, as the trainer of a mesh would.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from meshkit.placement import Placement
from raglab.files.agent_runs import AgentRunRecord, write_agent_runs
from services.reranker.backends.encoder import Encoder, EncoderLoader
from services.reranker.online.maximisation import ADAPTER_RATE
from services.reranker.online.replay import Plan as Replay
from services.reranker.online.replay import Query, record_of, replay
from services.reranker.training.inquiry import Inquiry
from services.reranker.training.learning import Options
from services.reranker.training.offline import RUNS
from services.reranker.training.plan import AgentTable, Plan, Task
from services.reranker.training.ranking import Ranker
from services.reranker.training.recipe import Recipe

FOLDER: Final = "online"
_DRAWN: Final = 11
"""Sets the order of a stream apart from other draws of the same seed."""
_PAIRS: Final = 32


class Streams:
    """The agents of a run as they are served.

    Args:
        plan: agents and tasks.
        recipe: of the run.
        model: folder of the model that serves all of them.
        seed: of the order in which tasks come, and of learning.
        folder: of the run.
        inquiry: asks the mesh.
        placement: where the model computes.
    """

    def __init__(
        self,
        plan: Plan,
        recipe: Recipe,
        *,
        model: Path,
        seed: int,
        folder: Path,
        inquiry: Inquiry,
        placement: Placement,
    ) -> None:
        self._plan = plan
        self._recipe = recipe
        self._model = model
        self._seed = seed
        self._folder = folder
        self._inquiry = inquiry
        self._placement = placement

    async def run(self, batches: Sequence[int]) -> None:
        """Serves all agents with each b; a stream that was served before is not served again.

        Raises:
            StoppedError: it was asked to stop; of a stream that was not at its end answers are kept.
            ModelError: the model cannot be loaded.
            MeshError: the mesh refuses, or was away for too long.
        """
        todo = [
            (batch, agent, path)
            for batch in batches
            for at, agent in enumerate(self._plan.agents)
            if not (path := self._folder / FOLDER / f"{batch}-{at:03d}.{RUNS}").exists()
        ]
        if not todo:
            return
        version = Ranker.version_of(self._model)
        base = EncoderLoader(self._placement).full(
            self._model, version, provenance="offline training", created_at=datetime.now(UTC)
        )
        for batch, agent, path in todo:
            records = await self._serve(agent, base, batch)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_agent_runs(records, path)

    async def _serve(self, agent: AgentTable, base: Encoder, batch: int) -> list[AgentRunRecord]:
        tasks = self._tasks(agent)
        what = f"online, b = {batch}, {agent.name}"
        found = await self._inquiry.candidates(tasks, what)
        stream = [Query(task.question, tuple(passages)) for task, passages in zip(tasks, found, strict=True)]
        self._inquiry.watcher.begins(what, len(tasks), 0)
        plan = Replay(
            batch,
            agent.passages,
            Options(
                epochs=2,
                batch_size=_PAIRS,
                micro_batch=_PAIRS,
                learning_rate=ADAPTER_RATE,
                max_length=self._recipe.max_length,
                unknown_share=0.0,
                seed=self._seed,
            ),
        )
        audience = _Agent(agent, tasks, stream, self._inquiry)
        records = []
        async for step in replay(stream, audience, agent.agent, base, plan, stop=self._inquiry.stop):
            self._inquiry.check_stop()
            task, shown = tasks[step.position], list(step.ranking[: agent.passages])
            await self._inquiry.answer([(agent, task, [shown])])
            utility, answer = self._inquiry.utility(agent, task, shown)
            record = record_of(step, agent.agent, plan, dataset=agent.group, version=base.version)
            told = {"query_id": task.id, "utility": utility, "answer": answer}
            records.append(record.model_copy(update=told))
            self._inquiry.watcher.advances()
        return records

    def _tasks(self, agent: AgentTable) -> list[Task]:
        """The tasks that an agent is measured on, in the order in which they come."""
        tasks = self._plan.of(agent, self._recipe.evaluation_split, self._recipe.evaluation)
        order = np.random.default_rng((self._seed, _DRAWN)).permutation(len(tasks))
        return [tasks[at] for at in order]


class _Agent:
    """An agent of the mesh, as the audience of its stream."""

    def __init__(
        self, agent: AgentTable, tasks: Sequence[Task], stream: Sequence[Query], inquiry: Inquiry
    ) -> None:
        self._agent = agent
        self._tasks = tasks
        self._stream = stream
        self._inquiry = inquiry

    async def usefulness(self, position: int, shown: Sequence[int]) -> list[float | None]:
        task = self._tasks[position]
        alone = [[self._stream[position].passages[at].id] for at in shown]
        await self._inquiry.answer([(self._agent, task, alone)])
        return [self._inquiry.utility(self._agent, task, one)[0] for one in alone]
