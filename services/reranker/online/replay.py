"""Algorithm 2 replayed on a stream of queries: what online training makes of it.

The stream goes on query by query: the candidates are ranked by the parameters of now, the agent says how
useful each of the first k was, and after every b queries the parameters are trained as the trainer does it:
on all that was said so far, less what is held back to judge by. Frozen parameters rank the same stream.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ragcore.errors import InvalidInput
from raglab.files.agent_runs import OFFLINE, ONLINE, AgentRunRecord
from services.reranker.backends.encoder import Encoder
from services.reranker.domain import Agent, Passage
from services.reranker.online.candidates import Candidate, Parameters
from services.reranker.online.comparison import fewest_queries
from services.reranker.online.lessons import Lesson
from services.reranker.online.maximisation import maximise
from services.reranker.training.learning import Options


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a stream, and its candidates."""

    text: str
    passages: tuple[Passage, ...]


class Audience(Protocol):
    """The agent whose stream it is."""

    async def usefulness(self, position: int, shown: Sequence[int]) -> Sequence[float | None]:
        """How useful each passage is to it for one query.

        Args:
            position: the query's place in the stream.
            shown: places of the passages among the query's candidates, best first.

        Returns:
            In [0, 1]; None where it cannot say.
        """
        ...


class Known:
    """An agent of which is known how useful every candidate is to it.

    Args:
        lessons: the stream.
    """

    def __init__(self, lessons: Sequence[Lesson]) -> None:
        self._lessons = lessons

    @property
    def stream(self) -> list[Query]:
        """Its queries."""
        return [Query(one.query, one.passages) for one in self._lessons]

    async def usefulness(self, position: int, shown: Sequence[int]) -> Sequence[float]:
        """What is known."""
        return [self._lessons[position].usefulness[at] for at in shown]


@dataclass(frozen=True, slots=True)
class Step:
    """One query of a replayed stream.

    Attributes:
        position: its place, from 0.
        ranking: ids of its candidates, best first.
        usefulness: of the first k, [0, 1]; None where the agent could not say.
        rounds: how many of the trainings so far came to serve, [0, inf).
    """

    position: int
    ranking: tuple[str, ...]
    usefulness: tuple[float | None, ...]
    rounds: int

    @property
    def utility(self) -> float | None:
        """Mean usefulness of the first k, [0, 1]; None where nothing is known of any."""
        known = [one for one in self.usefulness if one is not None]
        return sum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True)
class Plan:
    """How a stream is replayed.

    Attributes:
        batch: b, queries between two trainings, [1, inf); None: the parameters stay as they are.
        shown: k, passages the agent is given and speaks of, [1, inf).
        options: how is learned.
        held_back: share of each b that is held back, the newest, (0, 1).
        level: of the test that keeps what is worse from serving, (0, 1).
        rank: of the adapter, [1, inf).
        layers: which linear layers it changes, as a regular expression.
    """

    batch: int | None
    shown: int
    options: Options
    held_back: float = 0.25
    level: float = 0.05
    rank: int = 8
    layers: str = ".*"


async def replay(
    stream: Sequence[Query],
    audience: Audience,
    agent: Agent,
    base: Encoder,
    plan: Plan,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> AsyncIterator[Step]:
    """Ranks a stream and learns from it; one step for each query, in order.

    Args:
        stream: queries with their candidates.
        audience: says how useful passages are.
        agent: whose it is.
        base: the model to begin with; not changed.
        plan: how.
        stop: asked while it learns whether to end early; what is being learned is let go of then.

    Raises:
        InvalidInput: ``batch`` or ``shown`` is below 1.
    """
    for name, value in (("batch", plan.batch), ("shown", plan.shown)):
        if value is not None and value < 1:
            raise InvalidInput(name, value, "[1, inf)")
    serves, rounds = Parameters(base), 0
    said: list[Lesson] = []
    for position, query in enumerate(stream):
        if plan.batch is not None and position and position % plan.batch == 0 and said:
            better = await asyncio.to_thread(_trained, said, agent, base, serves, plan, stop)
            if better is not None:
                serves, rounds = better, rounds + 1
        scores = await asyncio.to_thread(serves.scores, query.text, query.passages, agent)
        order = sorted(range(len(scores)), key=lambda at: (-scores[at], query.passages[at].id))
        shown = order[: plan.shown]
        useful = tuple(await audience.usefulness(position, shown))
        heard = [(at, one) for at, one in zip(shown, useful, strict=True) if one is not None]
        if heard:
            passages = tuple(query.passages[at] for at, _ in heard)
            said.append(Lesson(query.text, passages, tuple(one for _, one in heard)))
        yield Step(position, tuple(query.passages[at].id for at in order), useful, rounds)


def _trained(
    said: Sequence[Lesson],
    agent: Agent,
    base: Encoder,
    serves: Parameters,
    plan: Plan,
    stop: Callable[[], bool],
) -> Parameters | None:
    """The next parameters; None if those that serve are better, or it was stopped."""
    candidate = Candidate.changes(
        base, serves.adapter, layers=plan.layers, rank=plan.rank, seed=plan.options.seed
    )
    back = max(round(plan.held_back * (plan.batch or 0)), fewest_queries(plan.level))
    back = min(back, len(said) // 2)
    done = maximise(
        candidate,
        serves,
        agent,
        said[: len(said) - back],
        said[len(said) - back :],
        plan.options,
        level=plan.level,
        stop=stop,
    )
    promotes = done.comparison is not None and done.comparison.promotes
    return candidate.parameters if promotes else None


def record_of(step: Step, agent: Agent, plan: Plan, *, dataset: str | None, version: str) -> AgentRunRecord:
    """A step as the study of agents reads it."""
    return AgentRunRecord(
        task_id=agent.task_id,
        model_id=agent.model_id,
        query_id=f"q{step.position}",
        system=OFFLINE if plan.batch is None else ONLINE,
        ranking=list(step.ranking),
        shown=min(plan.shown, len(step.ranking)),
        utility=step.utility,
        seed=plan.options.seed,
        dataset=dataset,
        iteration=step.rounds,
        batch_size=plan.batch,
        position=step.position,
        reranker_version=version,
    )


def read_stream(path: Path) -> list[Lesson]:
    """A stream from a file of JSON lines, ``{"query", "passages": [{"id", "title", "text"}], "usefulness"}``.

    Raises:
        InvalidInput: a line is none; it is named.
        OSError: the file cannot be read.
    """
    stream = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                told = json.loads(line.decode())
                passages = tuple(
                    Passage(str(one["id"]), str(one.get("title", "")), str(one["text"]))
                    for one in told["passages"]
                )
                lesson = Lesson(str(told["query"]), passages, tuple(map(float, told["usefulness"])))
            except (
                ValueError,
                KeyError,
                TypeError,
                AttributeError,
                OverflowError,
                RecursionError,
            ) as error:
                raise InvalidInput(f"{path}:{number}", type(error).__name__, "a line of a stream") from None
            if len(passages) != len(lesson.usefulness) or not passages:
                raise InvalidInput(
                    f"{path}:{number}", len(lesson.usefulness), "a usefulness for each passage"
                )
            if not all(0 <= one <= 1 for one in lesson.usefulness):
                raise InvalidInput(f"{path}:{number}.usefulness", lesson.usefulness, "[0, 1]")
            stream.append(lesson)
    if not stream:
        raise InvalidInput(str(path), "nothing", "at least one line")
    return stream
