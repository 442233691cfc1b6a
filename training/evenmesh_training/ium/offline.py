"""Offline iterative utility maximisation: Algorithm 1 of Salemi and Zamani, section 4.1.

In each round the current model ranks BM25's candidates for every agent's training queries; each agent answers
from each of the best k passages alone; and the utilities of these answers, and nothing else, train the model
further. All results are kept, so that a run that was stopped or killed resumes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import torch

from evenmesh_core.plackett_luce import sample_rankings
from evenmesh_kit.compute import model_files
from evenmesh_kit.compute.placement import Placement
from evenmesh_lab.files.agent_runs import (
    BM25,
    DENSE,
    ORACLE,
    AgentRunRecord,
    read_agent_runs,
    write_agent_runs,
)
from evenmesh_lab.files.trained_texts import TrainingTexts, trained_texts_of
from evenmesh_reranker.models.fusions import Fusions
from evenmesh_training.ium import fusing, learning, start
from evenmesh_training.ium.answer_collector import AnswerCollector, StoppedError
from evenmesh_training.ium.fusing import Scored
from evenmesh_training.ium.learning import Example
from evenmesh_training.ium.plan import TRAIN, AgentTable, AgentTasks, Task
from evenmesh_training.ium.ranking import Ranker
from evenmesh_training.ium.recipe import IumRecipe
from evenmesh_training.ium.systems import Learner, System, ids

MODEL: Final = "model"
CHECKPOINT: Final = "learning.pt"
RUNS: Final = "runs.jsonl"
FEEDBACK: Final = "feedback.json"
ALONE: Final = "alone"
"""Folder of a round's model until its fusion is chosen."""
FUSION: Final = "fusion.json"
_QUERIES, _CANDIDATES, _HELD_OUT = 7, 8, 9
"""Set the random choices of queries, of candidates and of those held out apart from other draws of a seed."""
_CERTAIN: Final = 1e-6
"""How far from 0 and 1 a score counts at least."""


@dataclass(frozen=True)
class Collected:
    """The feedback of one round.

    Attributes:
        examples: judgements to learn from.
        unknown: number of passages that an agent could not answer from, which are left out.
        useful: mean utility of the passages by agent; None without any.
    """

    examples: tuple[Example, ...]
    unknown: int
    useful: dict[str, float | None]


@dataclass(eq=False)
class Offline:
    """A run in a folder.

    Args:
        plan: agents and tasks.
        recipe: settings of training.
        begin: model that every learner starts from, see :func:`evenmesh_training.ium.start.start`.
        seed: of the choice of queries and of all learning.
        folder: folder of all results.
        collector: asks the mesh; with the same recipe, and a cache in the same folder.
        placement: device and number type of models.
    """

    plan: AgentTasks
    recipe: IumRecipe
    _: KW_ONLY
    begin: str
    seed: int
    folder: Path
    collector: AnswerCollector
    placement: Placement

    async def run(self, systems: Sequence[System]) -> Path:
        """Train and measure all systems, and return the file of all records.

        Raises:
            StoppedError: it was asked to stop.
            ModelError: there is no such model to start from.
            MeshError: the mesh rejects a call, or was away for too long.
            PlanError: a model or index of the mesh changed since the run began.
        """
        begun = self.folder / "start" / MODEL
        if any(one.learners for one in systems) and not begun.is_dir():
            begun.parent.mkdir(parents=True, exist_ok=True)
            agents = [one.agent for one in self.plan.agents]
            made = await asyncio.to_thread(
                start.start,
                self.begin,
                agents,
                seed=self.seed,
                max_length=self.recipe.max_length,
                fuses=self.recipe.fuses,
            )
            await asyncio.to_thread(start.save, *made, begun, start.texts_of(self.begin))
        for system in systems:
            if not system.learners:
                await self._measure_untrained(system)
            for learner in system.learners:
                await self._learn(system, learner, begun)
        return gather(self.folder)

    async def _learn(self, system: System, learner: Learner, begun: Path) -> None:
        """Run Algorithm 1 for one model."""
        folder, fuses = begun, self.recipe.fuses
        if system.first == 0:
            await self._measure(system, learner, 0, folder)
        for number in range(1, learner.rounds + 1):
            home = self.folder / learner.folder / f"round-{number}"
            if not (home / MODEL).is_dir():
                home.mkdir(parents=True, exist_ok=True)
                learned = folder if self.recipe.learns == "fusion" else home / (ALONE if fuses else MODEL)
                if not learned.is_dir():
                    collected = await self._collect(learner, folder, number)
                    data = {
                        "round": number,
                        "examples": len(collected.examples),
                        "unknown": collected.unknown,
                        "mean_utility": collected.useful,
                    }
                    (home / FEEDBACK).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
                    await self._train(learner, folder, learned, collected, number)
                if fuses:
                    await self._fuse(learner, learned, home, number)
            folder = home / MODEL
            if number >= system.first:
                await self._measure(system, learner, number, folder)

    async def _collect(self, learner: Learner, folder: Path, number: int) -> Collected:
        """Expectation: collect utilities of k passages, as the current model ranks or draws them."""
        units = [(agent, task) for agent in learner.agents for task in self._learned_from(agent)]
        ranked = await self._rank(learner, folder, units, f"{learner.folder} round {number}")
        rng = np.random.default_rng((self.seed, _CANDIDATES, number))
        contexts = [
            (agent, task, [[one] for one in self._judged(scores, rng)])
            for (agent, task), scores in zip(units, ranked, strict=True)
        ]
        await self.collector.answer(contexts, f"{learner.folder} round {number}: feedback")
        examples: list[Example] = []
        unknown = 0
        worth: dict[str, list[float]] = {agent.name: [] for agent in learner.agents}
        for agent, task, alone in contexts:
            passages = self.collector.cache.passages(one for (one,) in alone)
            for passage in passages:
                utility, _ = self.collector.utility(agent, task, [passage.id])
                if utility is None:
                    unknown += 1
                    continue
                worth[agent.name].append(utility)
                examples.append(
                    Example(task.question, passage.title, passage.text, learner.reads(agent), utility)
                )
        means = {name: float(np.mean(found)) if found else None for name, found in worth.items()}
        return Collected(tuple(examples), unknown, means)

    def _judged(self, scores: Mapping[str, float], rng: np.random.Generator) -> list[str]:
        """Return the passages that an agent judges, of all with their scores, best first."""
        found, k = list(scores), self.recipe.k
        if self.recipe.temperature is None or len(found) <= k:
            return found[:k]
        chances = np.clip(list(scores.values()), _CERTAIN, 1 - _CERTAIN)
        log_odds = np.log(chances) - np.log1p(-chances)
        (drawn,) = sample_rankings(log_odds / self.recipe.temperature, num_rankings=1, k=k, rng=rng)
        return [found[at] for at in drawn.tolist()]

    async def _fuse(self, learner: Learner, alone: Path, home: Path, number: int) -> None:
        """Choose how a model's scores are fused for each agent, by queries that it did not learn from."""
        units = [(agent, task) for agent in learner.agents for task in self._fused_by(agent)]
        what = f"{learner.folder} round {number}: fusion"
        before = start.fusions_of(alone)
        found = await self.collector.candidates([task for _, task in units], what)
        ranked = await self._rank(learner, alone, units, what)
        scored = [Scored.of(*one) for one in zip(found, ranked, strict=True) if one[1]]
        units = [unit for unit, scores in zip(units, ranked, strict=True) if scores]
        wanted = [
            fusing.needed(one, agent.passages, before.of(learner.reads(agent)))
            for one, (agent, _) in zip(scored, units, strict=True)
        ]
        contexts = [(*unit, [[one] for one in names]) for unit, names in zip(units, wanted, strict=True)]
        await self.collector.answer(contexts, f"{what}: feedback")
        judged = []
        for (agent, task), one, names in zip(units, scored, wanted, strict=True):
            known = {name: self.collector.utility(agent, task, [name])[0] for name in names}
            utilities = {name: value for name, value in known.items() if value is not None}
            judged.append(fusing.AnsweredQuery(learner.reads(agent), one, utilities, agent.passages))
        # Where no weight of the model changed, agents that are not here keep their lists.
        together = self.recipe.learns == "both"
        chosen = await asyncio.to_thread(fusing.choose, judged, before, together=together)
        (home / FUSION).write_text(json.dumps(chosen.dumped(), indent=1) + "\n", encoding="utf-8")
        texts = trained_texts_of(alone, self.begin)
        if judged:
            asked = (task.question for _, task in units)
            shown = (one.text for names in wanted for one in self.collector.cache.passages(names))
            texts = texts.followed_by(TrainingTexts.of(what, asked, shown))
        await asyncio.to_thread(start.copy_fused, alone, home / MODEL, chosen, texts)
        if alone.name == ALONE:
            shutil.rmtree(alone)

    async def _train(
        self, learner: Learner, before: Path, after: Path, collected: Collected, number: int
    ) -> None:
        """Maximisation: train the next parameters from those before."""
        home = after.parent
        # Order and withheld ids differ between rounds, not only between epochs.
        drawn = np.random.SeedSequence((self.seed, number)).generate_state(1, np.uint64)
        options = self.recipe.options(int(drawn[0] >> np.uint64(1)))
        teaches = bool(options.units(collected.examples))
        if not teaches:
            self.collector.progress.note(
                f"{learner.folder}: no feedback to learn from; the model does not change"
            )
        tokenizer, model = await asyncio.to_thread(start.load, before)
        checkpoint = home / CHECKPOINT
        if teaches:
            start.choose_trained(tokenizer, model, self.recipe)
            model.to(self.placement.device)
            # Where a processor has no fast bfloat16, float32 is faster.
            narrow = options.bf16 and self.placement.dtype is torch.bfloat16
            options = dataclasses.replace(options, bf16=narrow)
            self.collector.progress.begins(
                f"{learner.folder} {home.name}: learning", options.steps(collected.examples), 0
            )
            done = 0

            def watch(step: int, _steps: int, _loss: float) -> None:
                nonlocal done
                self.collector.progress.advances(step - done)
                done = step

            learned = await asyncio.to_thread(
                learning.learn,
                tokenizer,
                model,
                collected.examples,
                options,
                on_step=watch,
                checkpoint=checkpoint,
                stop=self.collector.stop,
            )
            if not learned.complete:
                raise StoppedError
            (home / "losses.json").write_text(json.dumps(learned.losses) + "\n", encoding="utf-8")
        texts = trained_texts_of(before, self.begin)
        if collected.examples:
            name = f"{learner.folder}, {home.name}"
            asked = (one.query for one in collected.examples)
            shown = (one.text for one in collected.examples)
            texts = texts.followed_by(TrainingTexts.of(name, asked, shown))
        await asyncio.to_thread(start.save, tokenizer, model.to("cpu"), after, texts)
        checkpoint.unlink(missing_ok=True)

    async def _measure(self, system: System, learner: Learner, number: int, folder: Path) -> None:
        """Measure the utility of each agent's answers from the lists that a model ranks."""
        path = self.folder / learner.folder / f"{system.name}-{number}.{RUNS}"
        if path.exists():
            return
        units = self._evaluated(learner.agents)
        what = f"{system.name} after round {number}"
        ranked = await self._served(learner, folder, units, what)
        version = model_files.version(folder)
        records = await self._records(units, [list(scores) for scores in ranked], what)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_agent_runs(
            [
                one.model_copy(
                    update={
                        "system": system.name,
                        "iteration": number,
                        "personalised": learner.personalised,
                        "seed": self.seed,
                        "reranker_version": version,
                    }
                )
                for one in records
            ],
            path,
        )

    async def _measure_untrained(self, system: System) -> None:
        path = self.folder / system.name / f"{system.name}.{RUNS}"
        if path.exists():
            return
        units = self._evaluated(self.plan.agents)
        retriever = {BM25: "bm25", DENSE: "dense", ORACLE: None}[system.name]
        tasks = [task for _, task in units]
        found = await self.collector.candidates(tasks, system.name, retriever=retriever)
        ranked = [[one.id for one in candidates.passages] for candidates in found]
        if system.name == ORACLE:
            ranked = await self._by_utility(units, ranked)
        records = await self._records(units, ranked, system.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_agent_runs([one.model_copy(update={"system": system.name}) for one in records], path)

    async def _by_utility(
        self, units: Sequence[tuple[AgentTable, Task]], ranked: Sequence[Sequence[str]]
    ) -> list[list[str]]:
        """Return each unit's candidates by the utility of the agent's answer from each alone, useful first.

        Equal ones, and those that it cannot answer from, last, keep their order.
        """
        contexts = [
            (agent, task, [[one] for one in best]) for (agent, task), best in zip(units, ranked, strict=True)
        ]
        await self.collector.answer(contexts, f"{ORACLE}: feedback")

        def utility(agent: AgentTable, task: Task, passage: str) -> float:
            found, _ = self.collector.utility(agent, task, [passage])
            return -1.0 if found is None else found

        return [
            sorted(best, key=lambda one: -utility(agent, task, one))
            for (agent, task), best in zip(units, ranked, strict=True)
        ]

    async def _records(
        self, units: Sequence[tuple[AgentTable, Task]], ranked: Sequence[Sequence[str]], what: str
    ) -> list[AgentRunRecord]:
        lists = [
            (agent, task, [list(best[: agent.passages])])
            for (agent, task), best in zip(units, ranked, strict=True)
        ]
        await self.collector.answer(lists, f"{what}: answers")
        found = []
        for (agent, task, (shown,)), best in zip(lists, ranked, strict=True):
            utility, answer = self.collector.utility(agent, task, shown)
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

    async def _served(
        self, learner: Learner, folder: Path, units: Sequence[tuple[AgentTable, Task]], what: str
    ) -> list[dict[str, float]]:
        """Return each unit's candidates with their scores as a mesh that serves the model has them."""
        fusions = start.fusions_of(folder)
        if self.recipe.learns == "fusion":
            # The same weights have the same scores.
            folder = self.folder / "start" / MODEL
        ranked = await self._rank(learner, folder, units, what)
        if fusions == Fusions():
            return ranked
        found = await self.collector.candidates([task for _, task in units], what)
        return [
            Scored.of(candidates, scores).scores(fusions.of(learner.reads(agent))) if scores else scores
            for candidates, scores, (agent, _) in zip(found, ranked, units, strict=True)
        ]

    async def _rank(
        self, learner: Learner, folder: Path, units: Sequence[tuple[AgentTable, Task]], what: str
    ) -> list[dict[str, float]]:
        """Return each unit's candidates with their scores, best first; read those that are kept."""
        found = await self.collector.candidates([task for _, task in units], what)
        version, depth = model_files.version(folder), self.recipe.depth
        keys = [(ids(learner.reads(agent)), task.question) for agent, task in units]
        known = {key: self.collector.cache.ranking(version, *key, depth) for key in dict.fromkeys(keys)}
        todo = {
            key: (candidates.passages, learner.reads(agent))
            for key, candidates, (agent, _) in zip(keys, found, units, strict=True)
            if known[key] is None
        }
        self.collector.progress.begins(f"{what}: ranking", len(known), len(known) - len(todo))
        if todo:
            ranker = await asyncio.to_thread(Ranker, folder, self.placement)
            for (agent_key, question), (passages, agent) in todo.items():
                self.collector.check_stop()
                best = await asyncio.to_thread(ranker.ranked, question, passages, agent)
                self.collector.cache.keep_ranking(version, agent_key, question, depth, best)
                known[agent_key, question] = best
                self.collector.progress.advances()
        return [known[key] or {} for key in keys]

    def _chosen(self, agent: AgentTable) -> list[Task]:
        """Return the training queries of an agent: the same in each round and for each system."""
        tasks = self.plan.of(agent, TRAIN)
        most = self.recipe.queries
        if not most or len(tasks) <= most:
            return tasks
        chosen = np.random.default_rng((self.seed, _QUERIES)).permutation(len(tasks))[:most]
        return [tasks[at] for at in sorted(map(int, chosen))]

    def _learned_from(self, agent: AgentTable) -> list[Task]:
        """Return the training queries that the model learns from."""
        apart = {task.question for task in self._fused_by(agent)}
        return [task for task in self._chosen(agent) if task.question not in apart]

    def _fused_by(self, agent: AgentTable) -> list[Task]:
        """Return the training queries by which the fusion is chosen."""
        tasks = self._chosen(agent)
        if self.recipe.learns != "both":
            return tasks if self.recipe.fuses else []
        return [task for task in tasks if task.question in self._held_out]

    @cached_property
    def _held_out(self) -> frozenset[str]:
        """Return the questions that no model learns from, whichever agent has them: agents share a model.

        They are the first share of each agent's questions, in one random order of the questions of all.
        """
        asked = [[task.question for task in self._chosen(agent)] for agent in self.plan.agents]
        distinct = list(dict.fromkeys(question for questions in asked for question in questions))
        drawn = np.random.default_rng((self.seed, _HELD_OUT)).permutation(len(distinct))
        place = {distinct[at]: number for number, at in enumerate(drawn.tolist())}
        share = self.recipe.held_out
        return frozenset(
            question
            for questions in asked
            for question in sorted(questions, key=place.__getitem__)[: round(share * len(questions))]
        )

    def _evaluated(self, agents: Sequence[AgentTable]) -> list[tuple[AgentTable, Task]]:
        recipe = self.recipe
        return [
            (agent, task)
            for agent in agents
            for task in self.plan.of(agent, recipe.evaluation_split, recipe.evaluation)
        ]


def gather(folder: Path) -> Path:
    """Write all records of a run's folder to one file in it, and return its path.

    Raises:
        OSError: it cannot be written.
    """
    path = folder / RUNS
    parts = sorted(one for one in folder.rglob(f"*.{RUNS}") if not one.name.startswith("."))
    write_agent_runs(read_agent_runs(parts), path)
    return path
