"""Offline iterative utility maximisation: algorithm 1 of iterative-utility-maximization.txt, section 4.1.

In each round the current model ranks BM25's candidates for every agent's training queries, the agents say of
each of the best k, given alone, what their answer from it is worth, and the model is trained on that and on
nothing else. It goes on from the parameters before. Whatever was found out is kept, so that a run that was
stopped or killed goes on where it was.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch

from meshkit.placement import Placement
from raglab.files.agent_runs import BM25, DENSE, AgentRunRecord, read_agent_runs, write_agent_runs
from services.reranker.training import learning, start
from services.reranker.training.inquiry import Inquiry, StoppedError
from services.reranker.training.learning import Example
from services.reranker.training.plan import TRAIN, AgentTable, Plan, Task
from services.reranker.training.ranking import Ranker
from services.reranker.training.recipe import Recipe
from services.reranker.training.systems import Learner, System, ids

MODEL: Final = "model"
CHECKPOINT: Final = "learning.pt"
RUNS: Final = "runs.jsonl"
FEEDBACK: Final = "feedback.json"
_DRAWN: Final = 7
"""Sets the draw of queries apart from other draws of the same seed."""


@dataclass(frozen=True)
class Collected:
    """The feedback of one round.

    Attributes:
        examples: what is learned from.
        unknown: passages that an agent could not answer from; they are left out.
        useful: by agent, mean utility of its passages; None without any.
    """

    examples: tuple[Example, ...]
    unknown: int
    useful: dict[str, float | None]


class Offline:
    """A run in a folder.

    Args:
        plan: agents and tasks.
        recipe: how is learned.
        begin: model that every learner begins with, see :func:`services.reranker.training.start.start`.
        seed: of the draw of queries and of all learning.
        folder: where everything is kept.
        inquiry: asks the mesh; by the same recipe, its evidence of the same folder.
        placement: where models compute.
    """

    def __init__(
        self,
        plan: Plan,
        recipe: Recipe,
        *,
        begin: str,
        seed: int,
        folder: Path,
        inquiry: Inquiry,
        placement: Placement,
    ) -> None:
        self._plan = plan
        self._recipe = recipe
        self._begin = begin
        self._seed = seed
        self._folder = folder
        self._inquiry = inquiry
        self._evidence = inquiry.evidence
        self._watcher = inquiry.watcher
        self._placement = placement

    async def run(self, systems: Sequence[System]) -> Path:
        """Learns and measures all of them, and returns the file of all records.

        Raises:
            StoppedError: it was asked to stop.
            ModelError: there is no such model to begin with.
            MeshError: the mesh refuses, or was away for too long.
            PlanError: what the mesh answers with changed since the run began.
        """
        begun = self._folder / "start" / MODEL
        if any(one.learners for one in systems) and not begun.is_dir():
            begun.parent.mkdir(parents=True, exist_ok=True)
            agents = [one.agent for one in self._plan.agents]
            made = await asyncio.to_thread(
                start.start, self._begin, agents, seed=self._seed, max_length=self._recipe.max_length
            )
            await asyncio.to_thread(start.save, *made, begun)
        for system in systems:
            if not system.learners:
                await self._measure_retriever(system)
            for learner in system.learners:
                await self._learn(system, learner, begun)
        return gather(self._folder)

    async def _learn(self, system: System, learner: Learner, begun: Path) -> None:
        """Algorithm 1 for one model."""
        folder = begun
        if system.first == 0:
            await self._measure(system, learner, 0, folder)
        for number in range(1, learner.rounds + 1):
            home = self._folder / learner.folder / f"round-{number}"
            if not (home / MODEL).is_dir():
                home.mkdir(parents=True, exist_ok=True)
                collected = await self._collect(learner, folder, number)
                told = {
                    "round": number,
                    "examples": len(collected.examples),
                    "unknown": collected.unknown,
                    "mean_utility": collected.useful,
                }
                (home / FEEDBACK).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
                await self._train(learner, folder, home, collected, number)
            folder = home / MODEL
            if number >= system.first:
                await self._measure(system, learner, number, folder)

    async def _collect(self, learner: Learner, folder: Path, number: int) -> Collected:
        """Expectation: what the agents say of the best k of the current model."""
        units = [(agent, task) for agent in learner.agents for task in self._drawn(agent)]
        ranked = await self._rank(learner, folder, units, f"{learner.folder} round {number}")
        contexts = [
            (agent, task, [[one] for one in best[: self._recipe.k]])
            for (agent, task), best in zip(units, ranked, strict=True)
        ]
        await self._inquiry.answer(contexts, f"{learner.folder} round {number}: feedback")
        examples: list[Example] = []
        unknown = 0
        worth: dict[str, list[float]] = {agent.name: [] for agent in learner.agents}
        for agent, task, alone in contexts:
            passages = self._evidence.passages(one for (one,) in alone)
            for passage in passages:
                utility, _ = self._inquiry.utility(agent, task, [passage.id])
                if utility is None:
                    unknown += 1
                    continue
                worth[agent.name].append(utility)
                examples.append(
                    Example(task.question, passage.title, passage.text, learner.reads(agent), utility)
                )
        means = {name: float(np.mean(found)) if found else None for name, found in worth.items()}
        return Collected(tuple(examples), unknown, means)

    async def _train(
        self, learner: Learner, before: Path, home: Path, collected: Collected, number: int
    ) -> None:
        """Maximisation: the next parameters, from those before."""
        if not collected.examples:
            self._watcher.says(f"{learner.folder}: no feedback to learn from; the model stays as it was")
        tokenizer, model = await asyncio.to_thread(start.load, before)
        checkpoint = home / CHECKPOINT
        if collected.examples:
            start.choose_trained(tokenizer, model, self._recipe)
            model.to(self._placement.device)
            # Order and withheld ids are drawn anew in each round, not only in each epoch.
            drawn = np.random.SeedSequence((self._seed, number)).generate_state(1, np.uint64)
            options = self._recipe.options(int(drawn[0] >> np.uint64(1)))
            # bfloat16 that a processor only imitates is slower than float32.
            narrow = options.bf16 and self._placement.dtype is torch.bfloat16
            options = dataclasses.replace(options, bf16=narrow)
            self._watcher.begins(
                f"{learner.folder} {home.name}: learning", options.steps(len(collected.examples)), 0
            )
            done = 0

            def watch(step: int, _steps: int, _loss: float) -> None:
                nonlocal done
                self._watcher.advances(step - done)
                done = step

            learned = await asyncio.to_thread(
                learning.learn,
                tokenizer,
                model,
                collected.examples,
                options,
                watcher=watch,
                checkpoint=checkpoint,
                stop=self._inquiry.stop,
            )
            if not learned.complete:
                raise StoppedError
            (home / "losses.json").write_text(json.dumps(learned.losses) + "\n", encoding="utf-8")
        await asyncio.to_thread(start.save, tokenizer, model.to("cpu"), home / MODEL)
        checkpoint.unlink(missing_ok=True)

    async def _measure(self, system: System, learner: Learner, number: int, folder: Path) -> None:
        """What each agent makes of the lists that a model gives it."""
        path = self._folder / learner.folder / f"{system.name}-{number}.{RUNS}"
        if path.exists():
            return
        units = self._evaluated(learner.agents)
        what = f"{system.name} after round {number}"
        ranked = await self._rank(learner, folder, units, what)
        version = Ranker.version_of(folder)
        records = await self._records(units, ranked, what)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_agent_runs(
            [
                one.model_copy(
                    update={
                        "system": system.name,
                        "iteration": number,
                        "personalised": learner.personalised,
                        "seed": self._seed,
                        "reranker_version": version,
                    }
                )
                for one in records
            ],
            path,
        )

    async def _measure_retriever(self, system: System) -> None:
        path = self._folder / system.name / f"{system.name}.{RUNS}"
        if path.exists():
            return
        units = self._evaluated(self._plan.agents)
        retriever = {BM25: "bm25", DENSE: "dense"}[system.name]
        found = await self._inquiry.candidates([task for _, task in units], system.name, retriever=retriever)
        ranked = [[one.id for one in passages] for passages in found]
        records = await self._records(units, ranked, system.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_agent_runs([one.model_copy(update={"system": system.name}) for one in records], path)

    async def _records(
        self, units: Sequence[tuple[AgentTable, Task]], ranked: Sequence[Sequence[str]], what: str
    ) -> list[AgentRunRecord]:
        lists = [
            (agent, task, [list(best[: agent.passages])])
            for (agent, task), best in zip(units, ranked, strict=True)
        ]
        await self._inquiry.answer(lists, f"{what}: answers")
        found = []
        for (agent, task, (shown,)), best in zip(lists, ranked, strict=True):
            utility, answer = self._inquiry.utility(agent, task, shown)
            found.append(
                AgentRunRecord(
                    task_id=agent.task_id,
                    model_id=agent.model_id,
                    query_id=task.id,
                    system=BM25,
                    ranking=list(best),
                    shown=len(shown),
                    utility=utility,
                    answer=answer,
                    dataset=agent.group,
                )
            )
        return found

    async def _rank(
        self, learner: Learner, folder: Path, units: Sequence[tuple[AgentTable, Task]], what: str
    ) -> list[list[str]]:
        """Each unit's candidates as the model ranks them; those it ranked before are read."""
        found = await self._inquiry.candidates([task for _, task in units], what)
        version, depth = Ranker.version_of(folder), self._recipe.depth
        keys = [(ids(learner.reads(agent)), task.question) for agent, task in units]
        known = {key: self._evidence.ranking(version, *key, depth) for key in dict.fromkeys(keys)}
        todo = {
            key: (passages, learner.reads(agent))
            for key, passages, (agent, _) in zip(keys, found, units, strict=True)
            if known[key] is None
        }
        self._watcher.begins(f"{what}: ranking", len(known), len(known) - len(todo))
        if todo:
            ranker = await asyncio.to_thread(Ranker, folder, self._placement)
            for (agent_key, question), (passages, agent) in todo.items():
                self._inquiry.check_stop()
                best = await asyncio.to_thread(ranker.ranked, question, passages, agent)
                self._evidence.keep_ranking(version, agent_key, question, depth, best)
                known[agent_key, question] = best
                self._watcher.advances()
        return [known[key] or [] for key in keys]

    def _drawn(self, agent: AgentTable) -> list[Task]:
        """The training queries that an agent judges: the same in each round and for each system."""
        tasks = self._plan.of(agent, TRAIN)
        most = self._recipe.queries
        if not most or len(tasks) <= most:
            return tasks
        chosen = np.random.default_rng((self._seed, _DRAWN)).permutation(len(tasks))[:most]
        return [tasks[at] for at in sorted(map(int, chosen))]

    def _evaluated(self, agents: Sequence[AgentTable]) -> list[tuple[AgentTable, Task]]:
        recipe = self._recipe
        return [
            (agent, task)
            for agent in agents
            for task in self._plan.of(agent, recipe.evaluation_split, recipe.evaluation)
        ]


def gather(folder: Path) -> Path:
    """Writes all records of a run's folder to one file of it, and returns that.

    Raises:
        OSError: it cannot be written.
    """
    path = folder / RUNS
    parts = sorted(one for one in folder.rglob(f"*.{RUNS}") if not one.name.startswith("."))
    write_agent_runs(read_agent_runs(parts), path)
    return path
