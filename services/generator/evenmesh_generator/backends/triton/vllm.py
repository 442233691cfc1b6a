"""A language model that Triton's vLLM backend runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import InvalidField, MeshError
from evenmesh_generator.backends.remote_prompter import RemotePrompter, size_of
from evenmesh_generator.backends.tasks import all_of
from evenmesh_generator.backends.triton import vllm_wire
from evenmesh_generator.backends.triton.endpoint import ModelReplicas, Replica
from evenmesh_generator.backends.triton.errors import ModelUnavailable, PromptTooLong
from evenmesh_generator.backends.triton.health_monitor import HealthSettings
from evenmesh_generator.backends.triton.servers import TritonServer
from evenmesh_generator.backends.triton.vllm_wire import Piece
from evenmesh_generator.backends.triton.wire import MalformedReplyError
from evenmesh_generator.backends.triton.writer import TritonWriter
from evenmesh_generator.backends.verdicts import NoRelevance, p_true
from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    Cost,
    Decoding,
    FinishReason,
    GenerationRequest,
    ModelDescription,
    Passage,
    RelevanceRequest,
)
from evenmesh_generator.ports import Cancellation
from evenmesh_generator.runtime.prompts.fitting import Fitted
from evenmesh_generator.runtime.statistics import EngineStatistics
from evenmesh_generator.stopped_text import StoppedText
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.rpc.statuses import to_mesh_error

_TRIES: Final = 8
"""Most prompts of one answer that the model may find too long."""
_SHORTER: Final = 0.7
"""Size of the next prompt, as a part of one that was too long."""
_REASONS: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
_GIVEN_UP: Final = "abort"


@dataclass(frozen=True, slots=True)
class Sampling:
    """What requests to the backend carry besides a prompt.

    Attributes:
        further: sampling parameters of vLLM's that the generator does not set itself.
        known: which inputs of later releases the model has.
        top_logprobs: how many tokens a judgement looks at, [2, inf); 0: the model gives no log-probabilities.
    """

    further: Mapping[str, Any]
    known: frozenset[str]
    top_logprobs: int


class VllmModel(TritonWriter):
    """A :class:`~evenmesh_generator.ports.LanguageModel` of Triton's vLLM backend.

    The backend takes a finished prompt and puts it into no chat template. Open it with :meth:`open`, and
    close it.

    Args:
        description: what the model is; its name is Triton's.
        sampling: what requests carry.
        prompter: makes the prompts.
        pool: the threads in which it does.
        health: how it is monitored.
        interval_s: least time between two deltas of a stream. Seconds, [0, inf).
    """

    def __init__(
        self,
        description: ModelDescription,
        sampling: Sampling,
        prompter: RemotePrompter,
        pool: ComputePool,
        *,
        health: HealthSettings,
        interval_s: float,
    ) -> None:
        super().__init__(description.name, health, interval_s)
        self._description = description
        self._sampling = sampling
        self._prompter = prompter
        self._pool = pool
        self._counts = EngineStatistics()

    def statistics(self) -> EngineStatistics:
        """Return what was asked of the model so far."""
        return replace(self._counts, active_requests=self.in_flight)

    def describe(self) -> ModelDescription:
        """Return what the model is and can do."""
        return self._description

    async def score_relevance(self, request: RelevanceRequest, cancel: Cancellation) -> list[float]:
        """Return P(True) per passage, each by a request of its own."""
        cancel.check()
        if not self._sampling.top_logprobs:
            raise NoRelevance(self._description.name)

        async def judge(passage: Passage) -> float:
            return await self._writer.run(
                lambda replica, timeout_s: self._judge(replica, request, passage, timeout_s), cancel
            )

        return await all_of([asyncio.create_task(judge(one)) for one in request.passages])

    async def _write(
        self,
        replica: Replica,
        request: GenerationRequest,
        on_delta: Callable[[str], object],
        timeout_s: float,
    ) -> Answer:
        deadline, most = Deadline.after(timeout_s), None
        with self._counted():
            for _ in range(_TRIES):
                fitted = await self._pool.run(self._prompter.prompt, request, most)
                try:
                    answer = await self._generate(
                        replica, fitted, request.decoding, on_delta, deadline.budget(margin_s=0)
                    )
                except PromptTooLong:
                    most = int(_SHORTER * size_of(fitted.row))
                    continue
                self._counts.finished += 1
                self._counts.written_tokens += answer.completion_tokens
                self._counts.computed_tokens += answer.prompt_tokens
                return answer
            raise self._never_fits()

    async def _judge(
        self, replica: Replica, request: RelevanceRequest, passage: Passage, timeout_s: float
    ) -> float:
        deadline, most = Deadline.after(timeout_s), None
        with self._counted():
            for _ in range(_TRIES):
                prompt = await self._pool.run(self._prompter.judgement, request, passage, most)
                try:
                    top = await self._top(replica, prompt, deadline.budget(margin_s=0))
                except PromptTooLong:
                    most = int(_SHORTER * size_of(prompt))
                    continue
                self._counts.judged += 1
                self._counts.judge_batches += 1
                return p_true(top, request.normalization)
            raise self._never_fits()

    async def _generate(
        self,
        replica: Replica,
        fitted: Fitted[str],
        decoding: Decoding,
        on_delta: Callable[[str], object],
        timeout_s: float,
    ) -> Answer:
        """Send one prompt and read up to the end of its answer."""
        began, sampling = time.perf_counter(), self._sampling
        first_s, pieces, stopped = 0.0, list[Piece](), StoppedText(decoding.stop)
        inputs = vllm_wire.generation(fitted.row, decoding, sampling.further, sampling.known)
        try:
            stream = replica.client.stream(self._description.name, inputs, timeout_s=timeout_s)
            async with aclosing(stream) as responses:
                async for outputs in responses:
                    if not outputs:
                        continue
                    if pieces and pieces[-1].finish is not None:
                        raise MalformedReplyError("something came after the answer")
                    replica.endpoint.record_response()
                    piece = vllm_wire.piece(outputs)
                    first_s = first_s if pieces else time.perf_counter() - began
                    pieces.append(piece)
                    if text := stopped.add(piece.text):
                        on_delta(text)
            if not pieces or pieces[-1].finish is None:
                raise MalformedReplyError("the stream ended without an answer")
            last = pieces[-1]
            if last.finish == _GIVEN_UP:
                raise ModelUnavailable(f"{self._description.name} gave an answer up at the Triton server")
            if last.finish not in _REASONS:
                raise MalformedReplyError(f"the answer ended for an unknown reason, {last.finish!r}")
            if text := stopped.finish():
                on_delta(text)
        except MalformedReplyError as error:
            raise to_mesh_error(error) from None
        counted = next((one.read for one in pieces if one.read), None)
        read = counted or self._prompter.tokens(size_of(fitted.row))
        return Answer(
            stopped.text,
            FinishReason.STOP if stopped.ended else _REASONS[last.finish],
            prompt_tokens=read,
            completion_tokens=max(1, sum(one.written for one in pieces)),
            log_probability=last.log_probability,
            dropped_passages=fitted.dropped_passages,
            cut_passages=fitted.cut_passages,
            dropped_turns=fitted.dropped_turns,
            model_version=self._description.version,
            cost=Cost(
                first_token_s=first_s,
                total_s=time.perf_counter() - began,
                computed_tokens=read,
                batch_rows=1,
            ),
        )

    async def _top(self, replica: Replica, prompt: str, timeout_s: float) -> dict[str, float]:
        """Return the most probable first tokens of an answer."""
        found: dict[str, float] = {}
        inputs = vllm_wire.judgement(prompt, self._sampling.top_logprobs, self._sampling.further)
        try:
            stream = replica.client.stream(self._description.name, inputs, timeout_s=timeout_s)
            async with aclosing(stream) as responses:
                async for outputs in responses:
                    if outputs and not found:
                        replica.endpoint.record_response()
                        found = vllm_wire.top(outputs)
            if not found:
                raise MalformedReplyError("the stream ended without log-probabilities")
        except MalformedReplyError as error:
            raise to_mesh_error(error) from None
        return found

    async def _meet(self, server: TritonServer) -> None:
        # A replica of its own: nothing is sent to the model before it has written a token.
        await self._probe(ModelReplicas(self._description.name).add(server, up=False), self._health.probe_s)

    async def _probe(self, replica: Replica, timeout_s: float) -> None:
        """Ask for one token unless the model has just written some."""
        if replica.endpoint.up and replica.endpoint.silent_s < self._health.interval_s:
            return
        request = GenerationRequest(
            "probe", augmentation=Augmentation.RETRIEVAL_FREE, decoding=Decoding(max_new_tokens=1)
        )
        fitted = self._prompter.prompt(request)
        await self._generate(replica, fitted, request.decoding, lambda _: None, timeout_s)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a request that ends without an answer."""
        try:
            yield
        except asyncio.CancelledError:
            self._counts.cancelled += 1
            raise
        except MeshError:
            self._counts.failed += 1
            raise

    def _never_fits(self) -> InvalidField:
        return InvalidField("question", f"makes a prompt that {self._description.name} finds too long")
