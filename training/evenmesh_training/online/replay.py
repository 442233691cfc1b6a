"""Replay Algorithm 2 on a stream of queries, to measure what online training gives.

The current parameters rank each query's candidates, and the agent judges each of the first k. After every b
queries the parameters are trained as the trainer does it: on all judgements so far except those held out.
Frozen parameters rank the same stream for comparison.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from evenmesh_core.errors import InvalidInput
from evenmesh_lab.files.agent_runs import OFFLINE, ONLINE, AgentRunRecord
from evenmesh_reranker.backends.encoder import Encoder
from evenmesh_reranker.domain import Agent, Passage
from evenmesh_training.ium.learning import Options
from evenmesh_training.online.candidates import Candidate, Parameters
from evenmesh_training.online.comparison import MARGIN, enough_queries
from evenmesh_training.online.maximisation import maximise
from evenmesh_training.online.training_examples import TrainingExample, held_out_for


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a stream, and its candidates."""

    text: str
    passages: tuple[Passage, ...]


Judge = Callable[[int, Sequence[int]], Awaitable[Sequence[float | None]]]
"""Returns the usefulness, [0, 1], of passages of a query to the agent; None where it cannot judge.

Arguments: the query's position in the stream, and places of passages among its candidates, best first.
"""


def known_judge(examples: Sequence[TrainingExample]) -> Judge:
    """Return the judge of a stream in which the usefulness of every candidate is known."""

    async def judge(position: int, shown: Sequence[int]) -> Sequence[float | None]:
        return [examples[position].usefulness[at] for at in shown]

    return judge


@dataclass(frozen=True, slots=True)
class Step:
    """One query of a replayed stream.

    Attributes:
        position: its position, from 0.
        ranking: ids of its candidates, best first.
        usefulness: of the first k, [0, 1]; None where the agent could not judge.
        rounds: number of trainings so far whose result serves, [0, inf).
    """

    position: int
    ranking: tuple[str, ...]
    usefulness: tuple[float | None, ...]
    rounds: int

    @property
    def utility(self) -> float | None:
        """Mean usefulness of the first k, [0, 1]; None without any judgement."""
        known = [one for one in self.usefulness if one is not None]
        return sum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a stream is replayed.

    Attributes:
        batch: b, queries between two trainings, [1, inf); None: the parameters stay frozen.
        shown: k, passages that the agent is given and judges, [1, inf).
        options: how to learn.
        held_out: share of each b that is held out, the newest, (0, 1).
        level: of the tests that decide whether a candidate serves, (0, 1).
        margin: loss of nDCG that a promotion may risk, (0, 1).
        rank: of the adapter, [1, inf).
        layers: regular expression of the names of the layers it changes.
    """

    batch: int | None
    shown: int
    options: Options
    held_out: float = 0.25
    level: float = 0.05
    margin: float = MARGIN
    rank: int = 8
    layers: str = ".*"


async def replay(
    stream: Sequence[Query],
    judge: Judge,
    agent: Agent,
    base: Encoder,
    settings: ReplayOptions,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> AsyncIterator[Step]:
    """Rank a stream and learn from it; yield one step for each query, in order.

    Args:
        stream: queries with their candidates.
        judge: returns how useful passages are to the agent.
        agent: the agent.
        base: the model to start from; not changed.
        settings: how to replay.
        stop: called during training; True discards the running training.

    Raises:
        InvalidInput: ``batch`` or ``shown`` is below 1.
    """
    for name, value in (("batch", settings.batch), ("shown", settings.shown)):
        if value is not None and value < 1:
            raise InvalidInput(name, value, "[1, inf)")
    served, rounds = Parameters(base), 0
    examples: list[TrainingExample] = []
    for position, query in enumerate(stream):
        if settings.batch is not None and position and position % settings.batch == 0 and examples:
            better = await asyncio.to_thread(_trained, examples, agent, base, served, settings, stop)
            if better is not None:
                served, rounds = better, rounds + 1
        scores = await asyncio.to_thread(served.scores, query.text, query.passages, agent)
        order = sorted(range(len(scores)), key=lambda at: (-scores[at], query.passages[at].id))
        shown = order[: settings.shown]
        usefulness = tuple(await judge(position, shown))
        judged = [(at, one) for at, one in zip(shown, usefulness, strict=True) if one is not None]
        if judged:
            passages = tuple(query.passages[at] for at, _ in judged)
            examples.append(TrainingExample(query.text, passages, tuple(one for _, one in judged)))
        yield Step(position, tuple(query.passages[at].id for at in order), usefulness, rounds)


def _trained(
    examples: Sequence[TrainingExample],
    agent: Agent,
    base: Encoder,
    served: Parameters,
    settings: ReplayOptions,
    stop: Callable[[], bool],
) -> Parameters | None:
    """Return the next parameters; None if they may not serve, or training was stopped."""
    candidate = Candidate.adapted(
        base, served.adapter, layers=settings.layers, rank=settings.rank, seed=settings.options.seed
    )
    decide = [len(set(one.usefulness)) > 1 for one in examples]
    least = held_out_for(decide, enough_queries(settings.margin))
    held_out = max(round(settings.held_out * (settings.batch or 0)), least)
    split = len(examples) - min(held_out, len(examples) // 2)
    trained = maximise(
        candidate,
        served,
        agent,
        examples[:split],
        examples[split:],
        settings.options,
        level=settings.level,
        margin=settings.margin,
        stop=stop,
    )
    promotes = trained.comparison is not None and trained.comparison.promotes
    return candidate.parameters if promotes else None


def record_of(
    step: Step, agent: Agent, settings: ReplayOptions, *, dataset: str | None, version: str
) -> AgentRunRecord:
    """Return a step as the study of agents reads it."""
    return AgentRunRecord(
        task_id=agent.task_id,
        model_id=agent.model_id,
        query_id=f"q{step.position}",
        system=OFFLINE if settings.batch is None else ONLINE,
        ranking=list(step.ranking),
        shown=min(settings.shown, len(step.ranking)),
        utility=step.utility,
        seed=settings.options.seed,
        dataset=dataset,
        iteration=step.rounds,
        batch_size=settings.batch,
        position=step.position,
        reranker_version=version,
    )


def read_stream(path: Path) -> list[TrainingExample]:
    """Read a stream: JSON lines ``{"query", "passages": [{"id", "title", "text"}], "usefulness"}``.

    Raises:
        InvalidInput: a line is malformed; the error names it.
        OSError: the file cannot be read.
    """
    stream = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            place = f"{path}:{number}"
            try:
                data = json.loads(line.decode())
                passages = tuple(
                    Passage(str(one["id"]), str(one.get("title", "")), str(one["text"]))
                    for one in data["passages"]
                )
                usefulness = tuple(map(float, data["usefulness"]))
                example = TrainingExample(str(data["query"]), passages, usefulness)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                raise InvalidInput(place, type(error).__name__, "a line of a stream") from None
            if len(passages) != len(usefulness) or not passages:
                raise InvalidInput(place, len(usefulness), "a usefulness for each passage")
            if not all(0 <= one <= 1 for one in usefulness):
                raise InvalidInput(f"{place}.usefulness", usefulness, "[0, 1]")
            stream.append(example)
    if not stream:
        raise InvalidInput(str(path), "nothing", "at least one line")
    return stream
