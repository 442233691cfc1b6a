"""The generation stage of asks: the first answer as a stream, those to other contexts in batches."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

import grpc

from evenmesh.generator.v1.generator_service_pb2 import Answer, GenerateRequest
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.errors import MeshError
from evenmesh_core.arrays import IntArray
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.rpc.breaker import Unanswered
from evenmesh_orchestrator.asks import contexts as rankings
from evenmesh_orchestrator.asks.budgets import Clock, HandledFailure, PipelineConfig, attempt, handle
from evenmesh_orchestrator.asks.citations import found_citations
from evenmesh_orchestrator.asks.failure_policy import Step
from evenmesh_orchestrator.domain import Answered, Ask, Contexts, Event, Failed, Pool, Stage
from evenmesh_orchestrator.ports import Generator, Models

_DELTA_PAUSE_S: Final = 0.02
_CHECK_S: Final = 0.5
"""Longest time to look up a name that is not known yet. Seconds."""

_Group = tuple[IntArray, tuple[int, ...]]
"""A context and the samples that showed it."""


async def check_model(models: Models | None, ask: Ask, clock: Clock) -> None:
    """Check that there is the model that an ask names, before passages are found and ranked for it.

    Raises:
        MeshError: there is none; or no time is left.
    """
    if models is not None and ask.model and ask.num_answers:
        await models.check_model(ask.model, timeout_s=min(_CHECK_S, clock.budget(Stage.GENERATE)))


class GenerationStage:
    """Answers the contexts of an ask.

    Args:
        generator: writes answers.
        config: sizes of batches.
        pool: threads that search long passages for answers.
    """

    def __init__(self, generator: Generator, config: PipelineConfig, pool: TenantPool) -> None:
        self._generator = generator
        self._config = config
        self._pool = pool

    async def answer(
        self, ask: Ask, pool: Pool, contexts: Contexts, clock: Clock
    ) -> AsyncGenerator[Event, None]:
        """Yield deltas and answers of every distinct context, the first one first.

        Raises:
            MeshError: the generator failed before its first word.
        """
        first, *others = rankings.distinct(contexts, ask.num_answers)
        async with aclosing(self._first_answer(ask, pool, first, clock)) as events:
            async for event in events:
                yield event
        if others:
            async with aclosing(self._other_answers(ask, pool, others, clock)) as events:
                async for event in events:
                    yield event

    async def _first_answer(
        self, ask: Ask, pool: Pool, group: _Group, clock: Clock
    ) -> AsyncGenerator[Event, None]:
        """Stream the answer to the first context. Deltas that arrive during a write leave together."""
        row, samples = group
        passages = pool.rows(row)
        prompt = ask.prompt(passages)
        parts: deque[str | Answer] = deque()
        arrived = asyncio.Event()

        async def receive(budget_s: float) -> None:
            async with aclosing(self._parts(prompt, budget_s)) as stream:
                async for part in stream:
                    parts.append(part)
                    arrived.set()

        receiver = asyncio.create_task(attempt(clock, Step.FIRST_WORD, receive))
        receiver.add_done_callback(lambda _: arrived.set())
        has_text, answer = False, None
        try:
            while parts or not receiver.done():
                await arrived.wait()
                arrived.clear()
                texts = []
                while parts:
                    part = parts.popleft()
                    if isinstance(part, str):
                        texts.append(part)
                    else:
                        answer = part
                if texts:
                    has_text = True
                    yield pb.Delta(text="".join(texts))
                    # This does not delay a slower model; a faster one is not forwarded word by word.
                    if not receiver.done():
                        await asyncio.wait((receiver,), timeout=_DELTA_PAUSE_S)
            try:
                await receiver
                error = None
            except MeshError as failed:
                error = failed
        finally:
            receiver.cancel()
            await asyncio.gather(receiver, return_exceptions=True)
        if error is None and answer is None:
            error = MeshError(
                grpc.StatusCode.INTERNAL, "UPSTREAM_ERROR", "the generator ended without an answer"
            )
        if error is not None:
            failure = handle(Step.FIRST_ANSWER if has_text else Step.FIRST_WORD, error)
            yield failure.degraded
            yield Failed(samples, failure.error)
        elif answer is not None:
            yield Answered(answer, samples, await found_citations(self._pool, answer, passages))

    async def _parts(self, prompt: GenerateRequest, budget_s: float) -> AsyncGenerator[str | Answer, None]:
        """Yield the parts of an answer; where its generator ends, another writes it again, once.

        gRPC sends a call again that nobody has begun to answer, and not what ends between its head and its
        first word. What was sent cannot be taken back, so the other one must begin with the same words, as it
        does unless its server does not repeat its draws.

        Raises:
            MeshError: the generator failed, or ended and the other one began with other words.
        """
        ends = time.monotonic() + budget_s
        said, whole = "", False
        broken: Unanswered | None = None
        while not whole:
            known = said  # nothing the first time
            try:
                left_s = max(0.001, ends - time.monotonic())
                async with aclosing(self._generator.stream(prompt, timeout_s=left_s)) as stream:
                    async for part in stream:
                        if isinstance(part, str):
                            same = min(len(part), len(known))
                            if broken is not None and part[:same] != known[:same]:
                                raise broken
                            known, new = known[same:], part[same:]
                            said += new
                            if new:
                                yield new
                        elif broken is not None and known:
                            raise broken
                        else:
                            whole = True
                            yield part
                return
            except Unanswered as error:
                if whole:
                    return
                if broken is not None:
                    raise
                broken = error

    async def _other_answers(
        self, ask: Ask, pool: Pool, groups: Sequence[_Group], clock: Clock
    ) -> AsyncGenerator[Event, None]:
        """Answer the other contexts in batches, with the stream's default decoding: greedy."""
        size = rankings.batch_size(ask, pool.passages, len(groups[0][0]), self._config.batch_size)
        in_flight = asyncio.Semaphore(self._config.batches_in_flight)

        async def answer(chunk: Sequence[_Group]) -> Sequence[Answer | MeshError]:
            async with in_flight:  # each prompt is a copy of its passages
                prompts = [ask.prompt(pool.rows(row)) for row, _ in chunk]
                for prompt in prompts:
                    if not prompt.decoding.HasField("num_beams"):
                        prompt.decoding.num_beams = 1
                outcome = await attempt(
                    clock,
                    Step.OTHER_ANSWERS,
                    lambda budget: self._generator.batch(prompts, timeout_s=budget),
                )
            return [outcome.error] * len(chunk) if isinstance(outcome, HandledFailure) else outcome

        chunks = [groups[start : start + size] for start in range(0, len(groups), size)]
        tasks = [asyncio.create_task(answer(chunk)) for chunk in chunks]
        reported: set[str] = set()
        try:
            for chunk, task in zip(chunks, tasks, strict=True):
                for (row, samples), result in zip(chunk, await task, strict=True):
                    if isinstance(result, MeshError):
                        degraded = handle(Step.OTHER_ANSWERS, result).degraded
                        if degraded.reason not in reported:
                            reported.add(degraded.reason)
                            yield degraded
                        yield Failed(samples, result)
                    else:
                        cited = await found_citations(self._pool, result, pool.rows(row))
                        yield Answered(result, samples, cited)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
