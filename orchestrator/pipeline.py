"""The flow of an ask: retrieve, rerank, generate, observe, each within its share of the caller's time.

``retrieved → ranked → delta … → answer … → report → done``, with ``degraded`` where a step failed and
:mod:`orchestrator.policy` knows something better than failing, and ``failed`` for a context without an
answer.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import replace
from typing import Final, TypeVar

import grpc
import numpy as np

from meshkit.compute import ComputePool
from meshkit.deadline import Deadline
from meshkit.errors import MeshError
from orchestrator import contexts as rankings
from orchestrator.audits.auditor import Auditor
from orchestrator.budgets import Clock, Plan, Setback, attempt, setback_of
from orchestrator.citations import citations
from orchestrator.domain import (
    Action,
    Answer,
    Answered,
    Ask,
    Audit,
    AuditEvent,
    Augmentation,
    Contexts,
    Degraded,
    Delta,
    EnsembleAsk,
    Event,
    Exposure,
    Failed,
    Finished,
    Observation,
    Passage,
    Pool,
    Prompt,
    Ranked,
    Reported,
    Retrieved,
    Sampling,
    SamplingStage,
    Stage,
    UtilityMetric,
)
from orchestrator.ensembles.chorus import Chorus
from orchestrator.exposure import measure
from orchestrator.expressions.running import ExpressionStages, Gathered
from orchestrator.policy import INSTEAD, Step
from orchestrator.ports import Generator, Observer, Receipt, Reranker, Retriever, Votes
from orchestrator.posts import Posts
from orchestrator.search import Search
from ragcore.arrays import IntArray

T = TypeVar("T")

_DELTA_PAUSE_S: Final = 0.02
_SLOW_METRICS: Final = frozenset({UtilityMetric.ROUGE1, UtilityMetric.ROUGE2, UtilityMetric.ROUGE_L})
_NOTHING: Final = Pool((), np.empty(0), np.empty((1, 0), dtype=np.int64), None, "", "")

# Ranked places, passages or characters that are handled on the event loop: about half a millisecond of work.
_INLINE_PLACES: Final = 2_000
_INLINE_CHARACTERS: Final = 10_000


class Pipeline:
    """Runs asks and audits.

    Args:
        retriever: finds candidates.
        reranker: scores them again.
        generator: writes answers.
        observer: sees to it that the evaluator hears of every ask.
        plan: budgets and sizes.
        pool: threads for what is too large to compute on the event loop.
        votes: lets the answers of ensembles vote.
    """

    def __init__(
        self,
        *,
        retriever: Retriever,
        reranker: Reranker,
        generator: Generator,
        observer: Observer,
        plan: Plan,
        pool: ComputePool,
        votes: Votes,
    ) -> None:
        self._reranker = reranker
        self._generator = generator
        self._plan = plan
        self._pool = pool
        self._expressions = ExpressionStages(
            retriever=retriever, reranker=reranker, generator=generator, pool=pool
        )
        self._search = Search(retriever, self._expressions)
        self._posts = Posts(observer, plan)
        self._chorus = Chorus(
            retriever=retriever,
            reranker=reranker,
            generator=generator,
            votes=votes,
            posts=self._posts,
            plan=plan,
            pool=pool,
        )
        self._auditor = Auditor(
            search=self._search,
            expressions=self._expressions,
            reranker=reranker,
            generator=generator,
            posts=self._posts,
            plan=plan,
            pool=pool,
        )

    async def ask(self, ask: Ask, deadline: Deadline) -> AsyncGenerator[Event, None]:
        """Answers one ask; events as they happen, ``Finished`` last. Close it early to cancel everything.

        Raises:
            MeshError: a step failed that the policy has no substitute for.
        """
        clock = Clock(deadline, self._plan)
        degradations: list[Degraded] = []
        found, gathered = _NOTHING, None
        if ask.augmentation.reads_passages:
            began = time.perf_counter()
            found, gathered = await self._search.find(ask, clock)
            clock.took(Stage.RETRIEVE, began)
        elif ask.recipe is not None:
            found = replace(_NOTHING, retriever=ask.recipe.text)
        yield Retrieved(found)
        if gathered is not None:
            for degraded in gathered.degradations:
                degradations.append(degraded)
                yield degraded
        if ask.augmentation.reads_passages and not found.passages:
            degradations.append(
                Degraded(
                    Stage.RETRIEVE,
                    Action.NO_CONTEXT,
                    "NO_PASSAGES",
                    f"the retriever found no passages: {INSTEAD[Action.NO_CONTEXT]}",
                )
            )
            yield degradations[-1]
            # What takes passages refuses to go without; the model's own way of doing so is its default.
            ask = replace(ask, augmentation=Augmentation.DEFAULT, template="", turns=())

        ranked, setbacks = await self._rank(ask, found, gathered, clock)
        for degraded in setbacks:
            degradations.append(degraded)
            yield degraded
        yield ranked

        answers: list[Answered] = []
        if ask.num_answers:
            began = time.perf_counter()
            async with aclosing(self._generate(ask, found, ranked.contexts, clock)) as events:
                async for event in events:
                    if isinstance(event, Answered):
                        answers.append(event)
                    elif isinstance(event, Degraded):
                        degradations.append(event)
                    yield event
            clock.took(Stage.GENERATE, began)

        async with aclosing(self._close(ask, found, ranked, answers, degradations, clock)) as events:
            async for event in events:
                yield event

    def ensemble(self, ensemble: EnsembleAsk, deadline: Deadline) -> AsyncGenerator[Event, None]:
        """Runs one ensemble, see :meth:`orchestrator.ensembles.chorus.Chorus.run`."""
        return self._chorus.run(ensemble, deadline)

    def audit(self, audit: Audit, deadline: Deadline) -> AsyncGenerator[AuditEvent, None]:
        """Runs one audit, see :meth:`orchestrator.auditing.Auditor.run`."""
        return self._auditor.run(audit, deadline)

    async def settle(self) -> None:
        """Waits until every observation that was begun to be kept is kept, or given up."""
        await self._posts.settle()

    async def _rank(
        self, ask: Ask, found: Pool, gathered: Gathered | None, clock: Clock
    ) -> tuple[Ranked, Sequence[Degraded]]:
        if not found.passages:
            return Ranked(Contexts(np.empty((1, 0), dtype=np.int64), None), "none", ""), ()
        if ask.recipe is not None and gathered is not None:
            return await self._expressions.arrange(ask, ask.recipe, gathered, clock)
        if ask.reranker == "none":
            return Ranked(rankings.cut(found.rankings, found.log_probabilities, ask.k), "none", ""), ()
        rows = found.rankings[:, : ask.rerank_depth]
        # Every passage of every ranking, once, in the retriever's order.
        scored = np.unique(rows) if len(rows) > 1 else np.sort(rows[0])
        began = time.perf_counter()
        outcome = await attempt(
            clock,
            Step.RERANK if ask.names_reranker else Step.DEFAULT_RERANK,
            lambda budget: self._reranker.rerank(
                ask.wording,
                [found.passages[index] for index in scored],
                agent=ask.agent,
                reranker=ask.reranker,
                timeout_s=budget,
            ),
        )
        if ask.sampling is not None and ask.sampling_stage is SamplingStage.RERANKER:
            # A deterministic pool: the scored passages are its first ones. Without a reranker the retriever's
            # scores are sampled in place of its, so that the ask still has the rankings it wanted.
            scores = found.scores[: len(scored)] if isinstance(outcome, Setback) else outcome.scores
            with self._drawing(ask.sampling):
                contexts = await self._pool.run(rankings.sampled, scores, ask.question, ask.sampling, ask.k)
        elif isinstance(outcome, Setback):
            contexts = rankings.cut(rows, found.log_probabilities, ask.k)
        else:
            scores = outcome.scores
            contexts = await self._run(
                rows.size,
                lambda: rankings.reordered(
                    rows,
                    found.log_probabilities,
                    scored=scored,
                    scores=scores,
                    passages=found.passages,
                    k=ask.k,
                ),
            )
        clock.took(Stage.RERANK, began)
        if isinstance(outcome, Setback):
            return Ranked(contexts, "none", ""), (outcome.degraded,)
        return Ranked(contexts, outcome.reranker, outcome.model_version), ()

    def _drawing(self, sampling: Sampling) -> AbstractContextManager[object]:
        """Around the drawing of rankings here, for who watches."""
        return nullcontext(sampling)

    async def _generate(
        self, ask: Ask, found: Pool, contexts: Contexts, clock: Clock
    ) -> AsyncGenerator[Event, None]:
        groups = rankings.distinct(contexts, ask.num_answers)
        first, *others = groups
        async with aclosing(self._first_answer(ask, found, *first, clock)) as events:
            async for event in events:
                yield event
        if others:
            async with aclosing(self._other_answers(ask, found, others, clock)) as events:
                async for event in events:
                    yield event

    async def _first_answer(
        self, ask: Ask, found: Pool, row: IntArray, samples: tuple[int, ...], clock: Clock
    ) -> AsyncGenerator[Event, None]:
        """Streams the answer to the first context. Deltas that come while one is written leave together."""
        passages = _passages(found, row)
        prompt = _prompt(ask, passages)
        parts: deque[str | Answer] = deque()
        news = asyncio.Event()

        async def listen(budget_s: float) -> None:
            async with aclosing(self._generator.stream(prompt, timeout_s=budget_s)) as stream:
                async for part in stream:
                    parts.append(part)
                    news.set()

        listener = asyncio.create_task(attempt(clock, Step.FIRST_WORD, listen))
        listener.add_done_callback(lambda _: news.set())
        said, answer = False, None
        try:
            while parts or not listener.done():
                await news.wait()
                news.clear()
                texts = []
                while parts:
                    part = parts.popleft()
                    if isinstance(part, str):
                        texts.append(part)
                    else:
                        answer = part
                if texts:
                    said = True
                    yield Delta("".join(texts))
                    # A model slower than this is not held up; a faster one is not paid for word by word.
                    if not listener.done():
                        await asyncio.wait((listener,), timeout=_DELTA_PAUSE_S)
            try:
                await listener
                error = None
            except MeshError as failed:
                error = failed
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)
        if error is None and answer is None:
            error = MeshError(
                grpc.StatusCode.INTERNAL, "UPSTREAM_ERROR", "the generator ended without an answer"
            )
        if error is not None:
            setback = setback_of(Step.FIRST_ANSWER if said else Step.FIRST_WORD, error)
            yield setback.degraded
            yield Failed(samples, setback.error)
        elif answer is not None:
            yield Answered(answer, samples, citations(answer.text, passages))

    async def _other_answers(
        self, ask: Ask, found: Pool, groups: Sequence[tuple[IntArray, tuple[int, ...]]], clock: Clock
    ) -> AsyncGenerator[Event, None]:
        """Answers the other contexts in batches, decoded as the first was: greedily unless told otherwise."""
        decoding = ask.decoding
        if decoding.num_beams is None:
            decoding = replace(decoding, num_beams=1)
        size = self._plan.batch_size
        chunks = [groups[start : start + size] for start in range(0, len(groups), size)]
        gate = asyncio.Semaphore(self._plan.batches_in_flight)

        async def answer(
            contexts: Sequence[Sequence[Passage]],
        ) -> Sequence[Answer | MeshError] | Setback:
            prompts = [replace(_prompt(ask, passages), decoding=decoding) for passages in contexts]
            async with gate:
                return await attempt(
                    clock,
                    Step.OTHER_ANSWERS,
                    lambda budget: self._generator.batch(prompts, timeout_s=budget),
                )

        tasks = []
        told: set[str] = set()
        try:
            for chunk in chunks:
                contexts = [_passages(found, row) for row, _ in chunk]
                tasks.append((chunk, contexts, asyncio.create_task(answer(contexts))))
            for chunk, contexts, task in tasks:
                outcome = await task
                results = [outcome.error] * len(chunk) if isinstance(outcome, Setback) else outcome
                for (_, samples), passages, result in zip(chunk, contexts, results, strict=True):
                    if isinstance(result, MeshError):
                        degraded = setback_of(Step.OTHER_ANSWERS, result).degraded
                        if degraded.reason not in told:
                            told.add(degraded.reason)
                            yield degraded
                        yield Failed(samples, result)
                    else:
                        yield Answered(result, samples, citations(result.text, passages))
        finally:
            for _, _, task in tasks:
                task.cancel()
            await asyncio.gather(*(task for _, _, task in tasks), return_exceptions=True)

    async def _close(
        self,
        ask: Ask,
        found: Pool,
        ranked: Ranked,
        answers: Sequence[Answered],
        degradations: Sequence[Degraded],
        clock: Clock,
    ) -> AsyncGenerator[Event, None]:
        """Reports and observes. The observation is written to the outbox while the report is on its way."""
        began = time.perf_counter()
        post: asyncio.Task[Receipt] | None = None
        if ask.observe:
            observation = Observation(
                ask,
                found,
                ranked,
                answers,
                dict(clock.stage_ms),
                tuple(degradations),
                observed_at_us=time.time_ns() // 1000,
                conversation=None if ask.judge is None else ask.judge(found, answers),
            )
            post = self._posts.begin(observation)
        exposure = await self._measure(ask, found, ranked.contexts, answers)
        degraded: list[Degraded] = []
        run: object | None = None
        if post is not None and ask.want_report:
            run, degraded = await self._posts.outcome(post, clock)
            post = None
        yield Reported(exposure, run)
        if post is not None:
            _, degraded = await self._posts.outcome(post, clock)
        if ask.observe:
            clock.took(Stage.OBSERVE, began)
        for one in degraded:
            yield one
        yield Finished(ask.id, ask.run_id, clock.stage_ms, clock.total_ms)

    async def _measure(
        self, ask: Ask, found: Pool, contexts: Contexts, answers: Sequence[Answered]
    ) -> Exposure:
        size = contexts.rows.size + len(found.passages)
        if ask.labels.references:
            if ask.labels.metric in _SLOW_METRICS:
                return await self._pool.run(measure, found, contexts, answers, ask.labels)
            said = sum(len(answered.answer.text) for answered in answers)
            known = sum(map(len, ask.labels.references))
            characters = said * len(ask.labels.references) + known * len(answers)
            size += characters * _INLINE_PLACES // _INLINE_CHARACTERS
        return await self._run(size, lambda: measure(found, contexts, answers, ask.labels))

    async def _run(self, size: int, compute: Callable[[], T]) -> T:
        """Computes here if it is quick, in a thread if it might hold up the event loop."""
        return compute() if size <= _INLINE_PLACES else await self._pool.run(compute)


def _prompt(ask: Ask, passages: Sequence[Passage]) -> Prompt:
    return Prompt(ask.question, passages, ask.model, ask.augmentation, ask.decoding, ask.turns, ask.template)


def _passages(found: Pool, row: IntArray) -> list[Passage]:
    return [found.passages[index] for index in row]
