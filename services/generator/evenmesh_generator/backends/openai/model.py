"""A language model at OpenAI-compatible servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import InvalidField, MeshError, Unavailable
from evenmesh_generator.backends.deltas import streamed
from evenmesh_generator.backends.openai.errors import is_too_long
from evenmesh_generator.backends.openai.monitor import ListingMonitor
from evenmesh_generator.backends.openai.reading import AnswerReader
from evenmesh_generator.backends.openai.wire import Interface
from evenmesh_generator.backends.remote_prompter import RemotePrompter, size_of
from evenmesh_generator.backends.tasks import all_of, ended, in_task
from evenmesh_generator.backends.verdicts import NoRelevance, p_true
from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    Decoding,
    GenerationRequest,
    ModelDescription,
    Passage,
    RelevanceRequest,
)
from evenmesh_generator.ports import Cancellation, Cancelled
from evenmesh_generator.runtime.prompts.fitting import Fitted
from evenmesh_generator.runtime.statistics import EngineStatistics
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.remote.client import RemoteClient
from evenmesh_kit.remote.errors import Rejected

T = TypeVar("T")

ENGINE: Final = "openai"
"""What answers and descriptions name as their engine."""

_TRIES: Final = 8
"""Most prompts of one answer that a server may find too long."""
_SHORTER: Final = 0.7
"""Size of the next prompt, as a part of one that was too long."""
_FEWER: Final = 5
"""Tokens that a judgement looks at where a server refuses more: what TGI and OpenAI's completions allow."""
_PROBE: Final = Passage("probe", "", "probe")
_log = logging.getLogger("evenmesh.generator.openai")


@dataclass(frozen=True, slots=True)
class Features:
    """What the servers give.

    ``top``: how many tokens a judgement looks at, 0 where they give no log-probabilities;
    ``log_probabilities``: whether streams have those of their tokens; ``usage``: whether streams may be asked
    to count tokens.
    """

    top: int = 0
    log_probabilities: bool = False
    usage: bool = True


class OpenAiModel:
    """A :class:`~evenmesh_generator.ports.LanguageModel` at OpenAI-compatible servers.

    Open it with :meth:`open`, and close it.

    Args:
        client: calls the servers.
        monitor: checks that they have the model.
        interface: how they are asked.
        prompter: makes the prompts.
        pool: the threads in which it does.
        description: what the model is; its version and what it scores are found out by :meth:`open`.
        top_logprobs: how many tokens a judgement looks at, where the servers allow it, [2, inf).
        interval_s: least time between two deltas of a stream. Seconds, [0, inf).
    """

    def __init__(
        self,
        client: RemoteClient,
        monitor: ListingMonitor,
        interface: Interface,
        prompter: RemotePrompter,
        pool: ComputePool,
        description: ModelDescription,
        *,
        top_logprobs: int,
        interval_s: float,
    ) -> None:
        self._client = client
        self._monitor = monitor
        self._interface = interface
        self._prompter = prompter
        self._pool = pool
        self._description = description
        self._top_logprobs = top_logprobs
        self._interval_s = interval_s
        self._features = Features()
        self._counts = EngineStatistics()
        self._monitoring: asyncio.Task[None] | None = None

    async def open(self, on_change: Callable[[], object], deadline: Deadline) -> None:
        """Ask for one token and one judgement to learn what the servers can do, and start to monitor them.

        Args:
            on_change: called when :attr:`up` has changed.
            deadline: of both requests.

        Raises:
            MeshError: the servers do not write.
        """
        top = await self._find_top(deadline)
        answer = await self._find_features(top, deadline)
        self._description = replace(self._description, version=answer.model_version, scores_relevance=top > 0)
        self._monitor.on_change = on_change
        self._monitoring = asyncio.create_task(self._monitor.run())

    async def close(self) -> None:
        """Stop monitoring the servers, and close the connections."""
        if self._monitoring is not None:
            await ended(self._monitoring)
        await self._client.close()

    @property
    def up(self) -> bool:
        """Return whether a server lists the model."""
        return self._monitor.up

    def statistics(self) -> EngineStatistics:
        """Return what was asked of the servers so far."""
        return replace(self._counts)

    def describe(self) -> ModelDescription:
        """Return what the model is and can do."""
        return self._description

    def generate_stream(
        self, request: GenerationRequest, cancel: Cancellation
    ) -> AsyncGenerator[str | Answer, None]:
        """Return the text deltas, then the answer."""
        return streamed(
            lambda on_delta: self._run(partial(self._write, request, on_delta, cancel.deadline), cancel),
            self._interval_s,
        )

    async def generate(self, request: GenerationRequest, cancel: Cancellation) -> Answer:
        """Return the answer."""
        writing = partial(self._write, request, lambda _: None, cancel.deadline)
        answer = await in_task(self._run(writing, cancel))
        cancel.check()
        return answer

    async def score_relevance(self, request: RelevanceRequest, cancel: Cancellation) -> list[float]:
        """Return P(True) per passage, each by a request of its own."""
        cancel.check()
        if not self._features.top:
            raise NoRelevance(self._description.name)
        tasks = [
            asyncio.create_task(self._run(partial(self._judge, request, one, cancel.deadline), cancel))
            for one in request.passages
        ]
        return await all_of(tasks)

    async def _run(self, work: Callable[[], Awaitable[T]], cancel: Cancellation) -> T:
        """Run a request in the calling task, which must be the request's own, until its caller goes.

        Raises:
            MeshError: no server has the model now, or what the request raises.
            Cancelled: the caller has gone.
        """
        cancel.check()
        if (away := self._monitor.error) is not None:
            raise away
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        gone = False

        def end() -> None:
            nonlocal gone
            gone = True
            if task is not None:
                task.cancel()

        self._counts.active_requests += 1
        try:
            with cancel.notifying(lambda: loop.call_soon_threadsafe(end)):
                return await work()
        except asyncio.CancelledError:
            self._counts.cancelled += 1
            if gone:
                raise Cancelled from None
            raise
        except MeshError as error:
            self._counts.failed += 1
            if isinstance(error, Unavailable):
                self._monitor.check_now()
            raise
        finally:
            self._counts.active_requests -= 1

    async def _write(
        self, request: GenerationRequest, on_delta: Callable[[str], object], deadline: Deadline
    ) -> Answer:
        """Send the prompt, and a shorter one where the servers find it too long."""
        most: int | None = None
        begun = False

        def passed_on(text: str) -> None:
            nonlocal begun
            begun = True
            on_delta(text)

        for _ in range(_TRIES):
            fitted = await self._pool.run(self._prompter.prompt, request, most)
            try:
                answer = await self._generate(request, fitted, passed_on, deadline)
            except Rejected as error:
                if begun or not is_too_long(error):
                    raise
                most = int(_SHORTER * size_of(fitted.row))
                continue
            self._counts.finished += 1
            self._counts.written_tokens += answer.completion_tokens
            self._counts.computed_tokens += answer.cost.computed_tokens
            self._counts.reused_tokens += answer.cost.reused_tokens
            return answer
        raise self._never_fits()

    async def _generate(
        self,
        request: GenerationRequest,
        fitted: Fitted[str],
        on_delta: Callable[[str], object],
        deadline: Deadline,
    ) -> Answer:
        """Send one prompt and read its answer to the end."""
        body = self._interface.generation(
            fitted.row,
            request.decoding,
            log_probabilities=self._features.log_probabilities,
            usage=self._features.usage,
        )
        reader = AnswerReader(on_delta, request.decoding.stop)
        stream = self._client.stream(self._interface.path, body, deadline=deadline, needs_end=False)
        async with aclosing(stream) as events:
            async for event in events:
                reader.add(self._interface.chunk(event))
        return reader.answer(fitted, self._prompter.tokens(size_of(fitted.row)), self._interface.model)

    async def _judge(self, request: RelevanceRequest, passage: Passage, deadline: Deadline) -> float:
        most: int | None = None
        for _ in range(_TRIES):
            prompt = await self._pool.run(self._prompter.judgement, request, passage, most)
            try:
                top = await self._top(prompt, self._features.top, deadline)
            except Rejected as error:
                if not is_too_long(error):
                    raise
                most = int(_SHORTER * size_of(prompt))
                continue
            if not top:
                raise NoRelevance(self._description.name)
            self._counts.judged += 1
            self._counts.judge_batches += 1
            return p_true(top, request.normalization)
        raise self._never_fits()

    async def _top(self, prompt: str, count: int, deadline: Deadline) -> dict[str, float]:
        body = self._interface.judgement(prompt, count)
        return self._interface.top(await self._client.post(self._interface.path, body, deadline=deadline))

    async def _find_top(self, deadline: Deadline) -> int:
        """Return how many tokens a judgement can look at; 0 where the servers give no log-probabilities."""
        prompt = self._prompter.judgement(RelevanceRequest("probe", (_PROBE,)), _PROBE)
        for count in dict.fromkeys((self._top_logprobs, min(self._top_logprobs, _FEWER))):
            try:
                if await self._top(prompt, count, deadline):
                    return count
                why = "gives none"
            except Rejected as error:
                why = error.said
        _log.warning(
            "relevance cannot be judged without log-probabilities",
            extra={"model": self._description.name, "why": why},
        )
        return 0

    async def _find_features(self, top: int, deadline: Deadline) -> Answer:
        """Ask for one token with as much beside it as the servers give; keep what they allow.

        Raises:
            MeshError: they do not write.
        """
        request = GenerationRequest(
            "probe", augmentation=Augmentation.RETRIEVAL_FREE, decoding=Decoding(max_new_tokens=1)
        )
        fitted = self._prompter.prompt(request)
        tries = [
            Features(top, log_probabilities=log_probabilities, usage=usage)
            for log_probabilities in dict.fromkeys((top > 0, False))
            for usage in (True, False)
        ]
        for features in tries:
            self._features = features
            try:
                return await self._generate(request, fitted, lambda _: None, deadline)
            except Rejected:
                if features is tries[-1]:
                    raise
        raise AssertionError("the last try returns or raises")

    def _never_fits(self) -> InvalidField:
        return InvalidField(
            "question", f"makes a prompt that the servers of {self._description.name} find too long"
        )
