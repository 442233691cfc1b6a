"""Replay Algorithm 2 on a stream of queries, to measure what online training gives.

The current parameters rank each query's candidates, and the agent judges each of the first k. After every b
queries a round learns as the trainer does it: from all judgements so far except those held out. Frozen
parameters rank the same stream for comparison. Where a first stage scored the candidates, all are ranked by
fused scores, as in an ask.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from evenmesh_core.errors import InvalidInput
from evenmesh_lab.files.agent_runs import OFFLINE, ONLINE, AgentRunRecord
from evenmesh_reranker.backends.encoder import Encoder
from evenmesh_reranker.domain import Agent, Passage
from evenmesh_training.ium.learning import Options
from evenmesh_training.ium.result_cache import Candidates
from evenmesh_training.online.candidates import Candidate, Parameters
from evenmesh_training.online.comparison import MARGIN, Comparison, enough_queries
from evenmesh_training.online.maximisation import Trained, maximise
from evenmesh_training.online.training_examples import (
    Learns,
    QueryFeedback,
    RoundData,
    TrainingExample,
    divided,
)


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a stream.

    Attributes:
        text: the query.
        passages: its candidates, best of the first stage first.
        scores: the first stage's score of each; None: they are ranked by the model alone.
        usefulness: of each to the agent, [0, 1], where it is known beforehand.
    """

    text: str
    passages: tuple[Passage, ...]
    scores: tuple[float, ...] | None = None
    usefulness: tuple[float, ...] = ()

    def example(self, judged: Sequence[tuple[int, float]]) -> TrainingExample:
        """Return it with places of judged candidates and how useful they are."""
        found = None if self.scores is None else Candidates(self.passages, self.scores)
        passages = tuple(self.passages[at] for at, _ in judged)
        return TrainingExample(self.text, passages, tuple(useful for _, useful in judged), found)


Judge = Callable[[int, Sequence[int]], Awaitable[Sequence[float | None]]]
"""Returns the usefulness, [0, 1], of passages of a query to the agent; None where it cannot judge.

Arguments: the query's position in the stream, and places of passages among its candidates, best first.
"""


def known_judge(stream: Sequence[Query]) -> Judge:
    """Return the judge of a stream in which the usefulness of every candidate is known."""

    async def judge(position: int, shown: Sequence[int]) -> Sequence[float | None]:
        return [stream[position].usefulness[at] for at in shown]

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
class Round:
    """A round of a replay.

    Attributes:
        position: of the first query after it.
        comparison: of its candidate with what served, on queries held out.
        serves: whether the candidate serves from now on.
    """

    position: int
    comparison: Comparison
    serves: bool

    def __str__(self) -> str:
        """Return a line on it."""
        compared = self.comparison
        return (
            f"after {self.position} queries: nDCG {compared.served:.3f} → {compared.candidate:.3f} on "
            f"{compared.queries} queries held back; {'serves' if self.serves else 'stays a candidate'}"
        )


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a stream is replayed.

    Attributes:
        batch: b, queries between two trainings, [1, inf); None: the parameters stay frozen.
        shown: k, passages that the agent is given, [1, inf).
        judged: passages that it reports on, the best of the list, [k, inf); None: k.
        options: how to learn.
        held_out: share of each b that is held out, the newest, (0, 1).
        level: of the tests that decide whether a candidate serves, (0, 1).
        margin: loss of nDCG that a promotion may risk, (0, 1).
        rank: of the adapter, [1, inf).
        layers: regular expression of the names of the layers it changes.
        learns: what a round learns.
        always: whether each candidate serves, whatever held-out queries say, as in the paper.
    """

    batch: int | None
    shown: int
    options: Options
    held_out: float = 0.25
    level: float = 0.05
    margin: float = MARGIN
    rank: int = 8
    layers: str = ".*"
    learns: Learns = "model"
    always: bool = False
    judged: int | None = None


async def replay(
    stream: Sequence[Query],
    judge: Judge,
    agent: Agent,
    base: Encoder,
    settings: ReplayOptions,
    *,
    stop: Callable[[], bool] = lambda: False,
    on_round: Callable[[Round], object] = lambda _: None,
) -> AsyncIterator[Step]:
    """Rank a stream and learn from it; yield one step for each query, in order.

    Args:
        stream: queries with their candidates.
        judge: returns how useful passages are to the agent.
        agent: the agent.
        base: the model to start from; not changed.
        settings: how to replay.
        stop: called during training; True discards the running training.
        on_round: called after each round.

    Raises:
        InvalidInput: ``batch`` or ``shown`` is below 1, or ``judged`` below ``shown``.
    """
    for name, value in (("batch", settings.batch), ("shown", settings.shown)):
        if value is not None and value < 1:
            raise InvalidInput(name, value, "[1, inf)")
    reports = settings.shown if settings.judged is None else settings.judged
    if reports < settings.shown:
        raise InvalidInput("judged", reports, f"[{settings.shown}, inf)")
    served, rounds, since = Parameters(base), 0, 0
    examples: list[TrainingExample] = []
    for position, query in enumerate(stream):
        if settings.batch is not None and position and position % settings.batch == 0 and examples:
            trained = await asyncio.to_thread(_trained, examples, since, agent, base, served, settings, stop)
            since = len(examples)
            if trained.comparison is not None:
                serves = settings.always or trained.comparison.promotes
                on_round(Round(position, trained.comparison, serves))
                if serves:
                    served, rounds = trained.candidate.parameters, rounds + 1
        unjudged = query.example([(at, math.nan) for at in range(len(query.passages))])
        reported = await asyncio.to_thread(served.reported, unjudged, agent)
        order = reported.order(served.fusion(agent))
        reported_on = order[:reports]
        usefulness = tuple(await judge(position, reported_on))
        judged = [(at, one) for at, one in zip(reported_on, usefulness, strict=True) if one is not None]
        if judged:
            examples.append(query.example(judged))
        ranking = tuple(query.passages[at].id for at in order)
        yield Step(position, ranking, usefulness[: settings.shown], rounds)


def _trained(
    examples: Sequence[TrainingExample],
    since: int,
    agent: Agent,
    base: Encoder,
    served: Parameters,
    settings: ReplayOptions,
    stop: Callable[[], bool],
) -> Trained:
    """Return the result of a round.

    Args:
        since: examples that the round before had.
    """
    if settings.learns == "fusion":
        candidate = Candidate.alike(base, served.adapter)
    else:
        candidate = Candidate.adapted(
            base, served.adapter, layers=settings.layers, rank=settings.rank, seed=settings.options.seed
        )
    parts = divided(
        [
            QueryFeedback(
                f"{at} {one.query}",
                "",
                at,
                at,
                {passage.id: useful for passage, useful in zip(one.passages, one.usefulness, strict=True)},
            )
            for at, one in enumerate(examples, start=1)
        ],
        learns=settings.learns,
        trained=served.adapter is not None and bool(served.adapter.pairs),
        since=since,
        share=settings.held_out,
        least=enough_queries(settings.margin),
    )
    return maximise(
        candidate,
        served,
        agent,
        RoundData(*([examples[one.first - 1] for one in part] for part in parts)),
        settings.options,
        level=settings.level,
        margin=settings.margin,
        stop=stop,
    )


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


def read_stream(path: Path) -> list[Query]:
    """Read a stream: JSON lines ``{"query", "passages": [{"id", "title", "text"}], "usefulness", "scores"}``.

    Usefulness and scores are of each passage; the first stage's scores may be missing.

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
                scores = tuple(map(float, data["scores"])) if "scores" in data else None
                query = Query(str(data["query"]), passages, scores, usefulness)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                raise InvalidInput(place, type(error).__name__, "a line of a stream") from None
            if len(passages) != len(usefulness) or not passages:
                raise InvalidInput(place, len(usefulness), "a usefulness for each passage")
            if scores is not None and not (len(scores) == len(passages) and all(map(math.isfinite, scores))):
                raise InvalidInput(f"{place}.scores", len(scores), "a finite score for each passage")
            if not all(0 <= one <= 1 for one in usefulness):
                raise InvalidInput(f"{place}.usefulness", usefulness, "[0, 1]")
            stream.append(query)
    if not stream:
        raise InvalidInput(str(path), "nothing", "at least one line")
    return stream
