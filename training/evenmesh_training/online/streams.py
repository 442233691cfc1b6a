"""Online IUM for the agents of an offline run: what Algorithm 2 adds to the end of Algorithm 1.

Every agent is asked the run's evaluation tasks one by one. The model of the last round ranks for it, with an
adapter of the agent's own that is trained after every b tasks, as the trainer of a mesh would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from evenmesh_kit.compute import model_files
from evenmesh_kit.compute.placement import Placement
from evenmesh_lab.files.agent_runs import AgentRunRecord, write_agent_runs
from evenmesh_reranker.backends.encoder import Encoder, EncoderLoader
from evenmesh_training.ium.answer_collector import AnswerCollector
from evenmesh_training.ium.learning import Options
from evenmesh_training.ium.offline import RUNS
from evenmesh_training.ium.plan import AgentTable, AgentTasks, Task
from evenmesh_training.ium.recipe import IumRecipe
from evenmesh_training.online.maximisation import ADAPTER_RATE
from evenmesh_training.online.replay import Query, ReplayOptions, record_of, replay

FOLDER: Final = "online"
_ORDER: Final = 11
"""Sets the random order of a stream apart from other draws of the same seed."""
_PAIRS: Final = 32


@dataclass(eq=False)
class Streams:
    """Replays the agents of a run.

    Args:
        plan: agents and tasks.
        recipe: recipe of the run.
        model: folder of the model that serves all of them.
        seed: of the order of the tasks, and of learning.
        folder: folder of the run.
        collector: asks the mesh.
        placement: device and number type of the model.
    """

    plan: AgentTasks
    recipe: IumRecipe
    _: KW_ONLY
    model: Path
    seed: int
    folder: Path
    collector: AnswerCollector
    placement: Placement

    async def run(self, batches: Sequence[int]) -> None:
        """Replay all agents with each b; a finished stream is not replayed again.

        Raises:
            StoppedError: it was asked to stop; answers of an unfinished stream are kept.
            ModelError: the model cannot be loaded.
            MeshError: the mesh rejects a call, or was away for too long.
        """
        todo = [
            (batch, agent, path)
            for batch in batches
            for at, agent in enumerate(self.plan.agents)
            if not (path := self.folder / FOLDER / f"{batch}-{at:03d}.{RUNS}").exists()
        ]
        if not todo:
            return
        version = model_files.version(self.model)
        base = EncoderLoader(self.placement).full(
            self.model, version, provenance="offline training", created_at=datetime.now(UTC)
        )
        for batch, agent, path in todo:
            records = await self._replay(agent, base, batch)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_agent_runs(records, path)

    async def _replay(self, agent: AgentTable, base: Encoder, batch: int) -> list[AgentRunRecord]:
        collector, tasks = self.collector, self._tasks(agent)
        name = f"online, b = {batch}, {agent.name}"
        found = await collector.candidates(tasks, name)
        stream = [
            Query(task.question, one.passages, one.scores) for task, one in zip(tasks, found, strict=True)
        ]
        collector.progress.begins(name, len(tasks), 0)
        settings = ReplayOptions(
            batch,
            agent.passages,
            Options(
                epochs=2,
                batch_size=_PAIRS,
                micro_batch=_PAIRS,
                learning_rate=ADAPTER_RATE,
                max_length=self.recipe.max_length,
                unknown_share=0.0,
                seed=self.seed,
            ),
        )

        async def judge(position: int, shown: Sequence[int]) -> list[float | None]:
            alone = [[stream[position].passages[at].id] for at in shown]
            await collector.answer([(agent, tasks[position], alone)])
            return [collector.utility(agent, tasks[position], one)[0] for one in alone]

        records = []
        async for step in replay(stream, judge, agent.agent, base, settings, stop=collector.stop):
            collector.check_stop()
            task, shown = tasks[step.position], list(step.ranking[: agent.passages])
            await collector.answer([(agent, task, [shown])])
            utility, answer = collector.utility(agent, task, shown)
            record = record_of(step, agent.agent, settings, dataset=agent.group, version=base.version)
            update = {"query_id": task.id, "utility": utility, "answer": answer}
            records.append(record.model_copy(update=update))
            collector.progress.advances()
        return records

    def _tasks(self, agent: AgentTable) -> list[Task]:
        """Return an agent's evaluation tasks in random order."""
        tasks = self.plan.of(agent, self.recipe.evaluation_split, self.recipe.evaluation)
        order = np.random.default_rng((self.seed, _ORDER)).permutation(len(tasks))
        return [tasks[at] for at in order]
