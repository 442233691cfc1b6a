"""A language model that a Triton server runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from meshkit.errors import FailedPrecondition, MeshError, to_mesh_error
from services.generator.backends.deltas import DeltaQueue
from services.generator.backends.triton import wire
from services.generator.backends.triton.backend import Backend
from services.generator.backends.triton.caretaker import Care, Caretaker
from services.generator.backends.triton.client import TritonClient
from services.generator.backends.triton.wire import Described, MalformedReplyError
from services.generator.domain import (
    Answer,
    Augmentation,
    Decoding,
    GenerationRequest,
    ModelDescription,
    Passage,
    RelevanceRequest,
)
from services.generator.ports import Cancellation
from services.generator.runtime.statistics import EngineStatistics
from services.generator.triton.tensors import RELEVANCE_SUFFIX, Tensor

T = TypeVar("T")

_PROBE: Final = Passage("probe", "", "probe")
_log = logging.getLogger("ragmesh.generator.triton")


class TritonModel:
    """A :class:`~services.generator.ports.LanguageModel` behind a Triton server.

    Open it with :meth:`open`, and close it.

    Args:
        client: the connection, shared by all models.
        name: what requests call it, and Triton's name of the model.
        slots: places for requests under way at the server, shared by all models.
        care: how it is looked after.
        interval_s: least time between two deltas of a stream. Seconds, [0, inf).
        judges: whether the server has the model that judges with it.
    """

    def __init__(
        self,
        client: TritonClient,
        name: str,
        *,
        slots: asyncio.Semaphore,
        care: Care,
        interval_s: float,
        judges: bool,
    ) -> None:
        self._client = client
        self._name = name
        self._care = care
        self._interval_s = interval_s
        self._described: Described | None = None
        self._writer = Backend(name, slots)
        self._judge = Backend(name + RELEVANCE_SUFFIX, slots) if judges else None
        self._rows = 1
        self._writer_care = Caretaker(client, self._writer, self._probe_writer, care)
        self._caretakers = [self._writer_care]
        if self._judge is not None:
            self._caretakers.append(Caretaker(client, self._judge, self._probe_judge, care))
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, on_change: Callable[[], object]) -> None:
        """Learns what the model is, and begins to look after it.

        Args:
            on_change: called when :attr:`up` has changed.

        Raises:
            MeshError: the model does not answer.
        """
        await self.look()
        if self._judge is not None:
            self._rows = await self._client.max_batch_size(self._judge.name, timeout_s=self._care.probe_s)
        self._writer.on_change = on_change
        self._tasks = [asyncio.create_task(caretaker.run()) for caretaker in self._caretakers]

    async def close(self) -> None:
        """Looks after it no longer."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def up(self) -> bool:
        """Whether it can write answers now."""
        return self._writer.up

    @property
    def in_flight(self) -> int:
        """Requests under way or waiting for a place, judgements included."""
        return self._writer.in_flight + (self._judge.in_flight if self._judge is not None else 0)

    async def look(self) -> None:
        """Asks the model's process now what it is and what it has done.

        Raises:
            MeshError: it does not say.
        """
        await self._describe(self._care.probe_s)

    def statistics(self) -> EngineStatistics:
        """What the model's process had done when it was last looked at."""
        return self._known.statistics

    def describe(self) -> ModelDescription:
        """What the model is and can do: that of the last look, the versions of answers are exact."""
        return self._known.model

    async def generate_stream(
        self, request: GenerationRequest, cancel: Cancellation
    ) -> AsyncGenerator[str | Answer, None]:
        """Text deltas, then the answer."""
        queue = DeltaQueue(asyncio.get_running_loop(), self._interval_s)
        writing = asyncio.create_task(self._writer.run(partial(self._write, request, queue.put), cancel))
        writing.add_done_callback(lambda _: queue.close())
        try:
            async for text in queue.read():
                yield text
            yield await writing
        finally:
            await _ended(writing)

    async def generate_batch(
        self, requests: Sequence[GenerationRequest], cancel: Cancellation
    ) -> list[Answer | MeshError]:
        """One answer or one error per request, in order; sent longest first, all at once."""
        cancel.check()
        longest_first = sorted(range(len(requests)), key=lambda at: -_length(requests[at]))
        tasks = {at: asyncio.create_task(self._answer(requests[at], cancel)) for at in longest_first}
        outcomes = await _all_of([tasks[at] for at in range(len(requests))])
        cancel.check()
        return outcomes

    async def score_relevance(self, request: RelevanceRequest, cancel: Cancellation) -> list[float]:
        """P(True) per passage; as many passages in one call as the server takes."""
        if self._judge is None:
            raise FailedPrecondition("NO_RELEVANCE", f"{self._name} cannot judge relevance")
        cancel.check()
        if request.turns:
            # Rows of different numbers of turns make no batch: the model that writes is asked itself.
            return await self._writer.run(partial(self._judge_with_turns, request), cancel)
        rows = self._rows
        chunks = [request.passages[at : at + rows] for at in range(0, len(request.passages), rows)]
        tasks = [
            asyncio.create_task(
                self._judge.run(partial(self._judge_chunk, self._judge, request, chunk), cancel)
            )
            for chunk in chunks
        ]
        return [score for scores in await _all_of(tasks) for score in scores]

    @property
    def _known(self) -> Described:
        if self._described is None:
            raise RuntimeError("the model was used before it was opened")
        return self._described

    async def _answer(self, request: GenerationRequest, cancel: Cancellation) -> Answer | MeshError:
        def nobody_reads(text: str) -> None:
            """The whole text comes with the answer."""

        try:
            return await self._writer.run(partial(self._write, request, nobody_reads), cancel)
        except MeshError as error:
            return error

    async def _write(
        self, request: GenerationRequest, on_delta: Callable[[str], object], timeout_s: float
    ) -> Answer:
        answer = await self._generate(wire.generation_tensors(request), on_delta, timeout_s)
        known = self.describe().version
        if not answer.model_version:
            return replace(answer, model_version=known)
        if answer.model_version != known:
            self._writer_care.hurry()  # the model was replaced: other things may have changed too
        return answer

    async def _generate(
        self, inputs: Mapping[str, Tensor], on_delta: Callable[[str], object], timeout_s: float
    ) -> Answer:
        """Sends a request and reads to its answer."""
        answer: Answer | None = None
        written: list[str] = []
        try:
            stream = self._client.stream(self._name, inputs, timeout_s=timeout_s)
            async with aclosing(stream) as responses:
                async for outputs in responses:
                    self._writer.heard()
                    part = wire.delta_or_answer(outputs)
                    if answer is not None and part != "":
                        raise MalformedReplyError("something came after the answer")
                    if isinstance(part, Answer):
                        answer = part
                    elif part:
                        written.append(part)
                        on_delta(part)
            if answer is None:
                raise MalformedReplyError("the stream ended without an answer")
            if "".join(written) != answer.text:
                raise MalformedReplyError("the deltas do not join to the answer")
        except MalformedReplyError as error:
            raise to_mesh_error(error) from None
        return answer

    async def _judge_chunk(
        self, judge: Backend, request: RelevanceRequest, passages: Sequence[Passage], timeout_s: float
    ) -> list[float]:
        rows = wire.judgement_tensors(request, passages)
        try:
            outputs = await self._client.infer(judge.name, rows, timeout_s=timeout_s)
            judge.heard()
            return wire.probabilities(outputs, len(passages))
        except MalformedReplyError as error:
            raise to_mesh_error(error) from None

    async def _judge_with_turns(self, request: RelevanceRequest, timeout_s: float) -> list[float]:
        found: dict[str, Tensor] = {}
        try:
            stream = self._client.stream(self._name, wire.judgement_with_turns(request), timeout_s=timeout_s)
            async with aclosing(stream) as responses:
                async for outputs in responses:
                    self._writer.heard()
                    found |= outputs
            return wire.probabilities(found, len(request.passages))
        except MalformedReplyError as error:
            raise to_mesh_error(error) from None

    async def _describe(self, timeout_s: float) -> None:
        """Asks the model what it is.

        Raises:
            MeshError: it does not say.
        """
        before, described = self._described, None
        try:
            stream = self._client.stream(self._name, wire.DESCRIBE, timeout_s=timeout_s)
            async with aclosing(stream) as responses:
                async for outputs in responses:
                    if outputs:
                        described = wire.described(outputs, self._name, judges=self._judge is not None)
            if described is None:
                raise MalformedReplyError("the stream ended without a description")
        except MalformedReplyError as error:
            raise to_mesh_error(error) from None
        self._described = described
        if before is not None and before.model != described.model:
            versions = {"before": before.model.version, "now": described.model.version}
            _log.info("triton model was replaced", extra={"model": self._name} | versions)

    async def _probe_writer(self, timeout_s: float) -> None:
        """Asks what the model is, and for one token unless it has just written some."""
        await self._describe(timeout_s)
        if self._writer.up and self._writer.silent_s < self._care.interval_s:
            return
        augmentation = self.describe().augmentations[0]
        request = GenerationRequest(
            "probe",
            () if augmentation is Augmentation.RETRIEVAL_FREE else (_PROBE,),
            augmentation=augmentation,
            decoding=Decoding(max_new_tokens=1),
        )
        await self._generate(wire.generation_tensors(request), lambda _: None, timeout_s)

    async def _probe_judge(self, timeout_s: float) -> None:
        """Has one passage judged, unless some just were."""
        if self._judge is None or (self._judge.up and self._judge.silent_s < self._care.interval_s):
            return
        request = RelevanceRequest("probe", (_PROBE,))
        await self._judge_chunk(self._judge, request, request.passages, timeout_s)
        self._rows = await self._client.max_batch_size(self._judge.name, timeout_s=timeout_s)


async def _all_of(tasks: Sequence[asyncio.Task[T]]) -> list[T]:
    """What the tasks come to; the first that fails, or who waits being cancelled, ends the others."""
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            await _ended(task)


async def _ended(task: asyncio.Task[T]) -> None:
    """Ends a task, and returns when it is over; what it came to is of no interest any more."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()


def _length(request: GenerationRequest) -> int:
    """How long it will take, about: characters to read and to write."""
    read = sum(len(one.title) + len(one.text) for one in request.passages)
    return len(request.question) + read + 4 * request.decoding.max_new_tokens * request.decoding.num_beams
