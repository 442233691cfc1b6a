"""Agents with tastes and a trainer without a wire: real database, model store, registry and learning."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.placement import Placement
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_reranker.backends.encoder import Encoder, EncoderLoader
from evenmesh_reranker.backends.sql.agents import SqlAgentRegistry
from evenmesh_reranker.backends.sql.database import Database
from evenmesh_reranker.backends.sql.feedback import SqlFeedbackStore
from evenmesh_reranker.backends.sql.leases import SqlLeases
from evenmesh_reranker.backends.sql.trainings import SqlTrainingLog
from evenmesh_reranker.domain import Agent, Passage
from evenmesh_reranker.feedback.domain import Feedback, RecordStatus
from evenmesh_reranker.feedback.training import Training, TrainingReport
from evenmesh_reranker.models.file_promotions import FilePromotions
from evenmesh_reranker.models.registry import ModelRegistry
from evenmesh_reranker.models.store import ModelStore
from evenmesh_reranker.settings import RerankerSettings
from evenmesh_training.ium.result_cache import Candidates
from evenmesh_training.online.candidates import Parameters
from evenmesh_training.online.reported import with_gains
from evenmesh_training.online.rounds import Rounds
from evenmesh_training.online.served import ServedModels
from evenmesh_training.online.settings import OnlineSettings
from evenmesh_training.online.trainer import Trainer
from evenmesh_training.online.training_examples import PassageKey, TrainingExample
from tests.support import tiny_encoders

WORDS = (
    *("water", "boils", "degrees", "play", "prince", "fox", "dog", "river", "bank", "oil"),
    *("chain", "air", "rider", "lazy", "quick", "brown", "level", "sea", "point", "bicycles"),
)
COLLECTION = "corpus"

Taste = Callable[[Passage], float]
"""How useful a passage is, [0, 1]."""


def likes(*words: str) -> Taste:
    """Likes passages with one of some words, and nothing else."""
    return lambda passage: float(any(word in passage.text.split() for word in words))


def dislikes(*words: str) -> Taste:
    """Likes the others."""
    return lambda passage: 1.0 - likes(*words)(passage)


def corpus(count: int, *, seed: int = 0) -> dict[str, Passage]:
    """Passages of six words by id; half of them have "water"."""
    rng = random.Random(seed)
    passages = {}
    for number in range(count):
        words = rng.sample([word for word in WORDS if word != "water"], 6)
        if number % 2:
            words[rng.randrange(6)] = "water"
        passages[f"p{number}"] = Passage(f"p{number}", "", " ".join(words))
    return passages


@dataclass(frozen=True)
class Stream:
    """Queries one after the other, each with the passages that are judged for it."""

    passages: Mapping[str, Passage]
    judged: int = 6
    seed: int = 1

    def query(self, number: int) -> str:
        """The text of a query, each another one."""
        rng = random.Random(f"{self.seed}-{number}")
        return f"{' '.join(rng.sample(WORDS, 3))} {number}"

    def candidates(self, number: int) -> list[Passage]:
        """The passages that a query has."""
        rng = random.Random(f"{self.seed}-{number}-candidates")
        return [self.passages[id_] for id_ in rng.sample(sorted(self.passages), self.judged)]

    def said(
        self, agent: Agent, taste: Taste, numbers: Iterable[int], *, version: str = ""
    ) -> list[Feedback]:
        """What an agent of a taste says for some queries."""
        return [
            Feedback(
                f"{number}-{passage.id}",
                self.query(number),
                passage.id,
                agent,
                taste(passage),
                version,
                COLLECTION,
            )
            for number in numbers
            for passage in self.candidates(number)
        ]


class Corpus:
    """A :class:`evenmesh_training.online.ports.Passages` in memory."""

    def __init__(self, passages: Mapping[str, Passage]) -> None:
        self.passages = dict(passages)
        self.tenants: list[str] = []
        self.stream = Stream(passages)

    async def texts(self, keys: Iterable[PassageKey]) -> Mapping[PassageKey, Passage]:
        """What is there."""
        self.tenants.append(callers.current().tenant)
        return {
            (collection, id_): self.passages[id_]
            for collection, id_ in keys
            if collection == COLLECTION and id_ in self.passages
        }

    async def found(self, collection: str, query: str) -> Candidates | None:
        """The candidates of a query of the stream, those with most of its words first."""
        if collection != COLLECTION:
            return None
        *words, number = query.split()
        there = [one for one in self.stream.candidates(int(number)) if one.id in self.passages]
        scores = {one.id: float(len({*words} & {*one.text.split()})) for one in there}
        best = sorted(there, key=lambda one: (-scores[one.id], one.id))
        return Candidates(tuple(best), tuple(scores[one.id] for one in best))


def ranked(scores: Sequence[float], passages: Sequence[Passage]) -> list[str]:
    """Ids, best first."""
    order = sorted(range(len(passages)), key=lambda at: -scores[at])
    return [passages[at].id for at in order]


class Promoting:
    """A :class:`evenmesh_training.online.ports.Promoter` of the same process."""

    def __init__(self, registry: ModelRegistry) -> None:
        self._registry = registry
        self.asked: list[str] = []

    async def promote(self, version: str) -> None:
        self.asked.append(version)
        await self._registry.promote(version, tenant=callers.current().tenant)


class World:
    """Everything of a trainer and of what serves."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.reranker = RerankerSettings(home=home, cross_encoder="")
        self.database = Database(self.reranker.database())
        self.store = SqlFeedbackStore(self.database)
        self.log = SqlTrainingLog(self.database)
        self.models = ModelStore(home / "reranker" / "models")
        self.pool = ComputePool(2, "test")
        self.loader = EncoderLoader(Placement.choose("cpu", "float32"))
        self.registry = self.another_registry()
        self.promoting = Promoting(self.registry)
        self.passages = Corpus(corpus(200))
        self.stream = self.passages.stream

    def another_registry(self) -> ModelRegistry:
        """The registry of another serving process with the same store and database."""
        return ModelRegistry(
            self.models,
            promotions=FilePromotions(self.models),
            loader=self._loaded,
            pool=self.pool,
            memory_bytes=10**9,
            registered=SqlAgentRegistry(self.database).registered,
            no_model="there is none",
            poll_s=0.05,
        )

    @classmethod
    @asynccontextmanager
    async def opened(cls, home: Path, folder: Path) -> AsyncIterator[World]:
        """A world where the model of a folder serves all."""
        world = cls(home)
        await world.database.open()
        try:
            await world.registry.start(None)
            version = await asyncio.to_thread(tiny_encoders.keep, world.models, folder, "offline-ium")
            await world.registry.promote(version, tenant=DEFAULT_TENANT)
            yield world
        finally:
            await world.registry.close()
            await world.database.close()
            world.pool.close()

    async def _loaded(self) -> EncoderLoader:
        return self.loader

    def settings(self, **fields: Any) -> OnlineSettings:
        """Such as a tiny model learns a taste with in seconds."""
        given = {"queries": 36, "epochs": 6, "batch_size": 16, "learning_rate": 1e-2, "max_length": 64}
        return OnlineSettings(home=self.home, **(given | fields))

    def leases(self, holder: str = "one", lease_s: float = 60, at_once: int | None = None) -> SqlLeases:
        return SqlLeases(self.database, holder, lease_s=lease_s, at_once=at_once)

    def rounds(self, **fields: Any) -> Rounds:
        settings = self.settings(**fields)
        return Rounds(
            settings,
            store=self.store,
            log=self.log,
            leases=self.leases(lease_s=settings.lease_s),
            passages=self.passages,
            promoter=self.promoting,
            models=self.models,
            served=lambda: ServedModels.from_settings(
                settings, self.reranker, self.models, FilePromotions(self.models), self.pool
            ),
            work=self.home / "work",
            pool=self.pool,
        )

    def trainer(self, **fields: Any) -> Trainer:
        settings = self.settings(**fields)
        return Trainer(
            self.rounds(**fields),
            store=self.store,
            log=self.log,
            leases=self.leases(lease_s=settings.lease_s),
            queries=settings.queries,
            wake_s=0.01,
        )

    async def says(self, agent: Agent, taste: Taste, numbers: Sequence[int]) -> None:
        """Records what an agent of a taste says for some queries."""
        outcomes = await self.store.record(self.stream.said(agent, taste, numbers))
        assert {one.status for one in outcomes} == {RecordStatus.STORED}

    async def training(self, agent: Agent) -> Training:
        return await self.log.training(agent)

    async def reported(self, agent: Agent) -> TrainingReport:
        return (await self.training(agent)).report

    async def parameters(self, agent: Agent) -> Parameters:
        """What serves an agent."""
        assigned = await self.registry.model_for(agent)
        assert isinstance(assigned.model, Encoder)
        return Parameters(assigned.model, assigned.adapter)  # type: ignore[arg-type]

    async def lists(self, agent: Agent, numbers: Sequence[int]) -> list[list[str]]:
        """How queries' passages are ordered for an agent, best first."""
        parameters = await self.parameters(agent)
        return [
            ranked(parameters.scores(self.stream.query(one), passages, agent), passages)
            for one in numbers
            for passages in [self.stream.candidates(one)]
        ]

    async def value(self, agent: Agent, taste: Taste, numbers: Sequence[int]) -> float:
        """Mean nDCG of an agent's lists by its taste."""
        parameters = await self.parameters(agent)
        values = []
        for number in numbers:
            passages = self.stream.candidates(number)
            useful = tuple(taste(one) for one in passages)
            example = TrainingExample(self.stream.query(number), tuple(passages), useful)
            fusion = parameters.fusion(agent)
            [reported] = with_gains([parameters.reported(example, agent)], fusion, judged_alone=True)
            values.append(reported.value(fusion))
        defined = [value for value in values if value == value]
        return sum(defined) / len(defined)
