"""A language model that a Triton server runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Final

from evenmesh.wire.errors import FailedPrecondition
from evenmesh_generator.backends.tasks import all_of
from evenmesh_generator.backends.triton import wire
from evenmesh_generator.backends.triton.client import TritonClient
from evenmesh_generator.backends.triton.endpoint import ModelEndpoint
from evenmesh_generator.backends.triton.health_monitor import HealthMonitor, HealthSettings
from evenmesh_generator.backends.triton.wire import Described, MalformedReplyError
from evenmesh_generator.backends.triton.writer import TritonWriter
from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    Decoding,
    GenerationRequest,
    ModelDescription,
    Passage,
    RelevanceRequest,
)
from evenmesh_generator.ports import Cancellation
from evenmesh_generator.runtime.statistics import EngineStatistics
from evenmesh_generator.triton.tensors import RELEVANCE_SUFFIX, Tensor
from evenmesh_kit.compute.tenant_places import TenantPlaces
from evenmesh_kit.rpc.statuses import to_mesh_error

_PROBE: Final = Passage("probe", "", "probe")
_log = logging.getLogger("evenmesh.generator.triton")


class TritonModel(TritonWriter):
    """A :class:`~evenmesh_generator.ports.LanguageModel` behind a Triton server.

    Open it with :meth:`open`, and close it.

    Args:
        client: the connection, shared by all models.
        name: what requests call it, and Triton's name of the model.
        places: those for running requests at the server, shared by all models.
        care: how it is looked after.
        interval_s: least time between two deltas of a stream. Seconds, [0, inf).
        judges: whether the server has the model that judges with it.
    """

    def __init__(
        self,
        client: TritonClient,
        name: str,
        *,
        places: TenantPlaces,
        health: HealthSettings,
        interval_s: float,
        judges: bool,
    ) -> None:
        super().__init__(ModelEndpoint(name, places), interval_s)
        self._client = client
        self._name = name
        self._health = health
        self._described: Described | None = None
        self._judge = ModelEndpoint(name + RELEVANCE_SUFFIX, places) if judges else None
        self._rows = 1
        self._writer_monitor = HealthMonitor(client, self._writer, self._probe_writer, health)
        self._monitors = [self._writer_monitor]
        if self._judge is not None:
            self._monitors.append(HealthMonitor(client, self._judge, self._probe_judge, health))

    async def open(self, on_change: Callable[[], object]) -> None:
        """Ask what the model is, and start to monitor it.

        Args:
            on_change: called when :attr:`up` has changed.

        Raises:
            MeshError: the model does not answer.
        """
        await self.check()
        if self._judge is not None:
            self._rows = await self._client.max_batch_size(self._judge.name, timeout_s=self._health.probe_s)
        self._monitor(self._monitors, on_change)

    @property
    def in_flight(self) -> int:
        """Return the requests that run or wait for a place, judgements included."""
        return super().in_flight + (self._judge.in_flight if self._judge is not None else 0)

    async def check(self) -> None:
        """Ask the model's process what it is and what it has done.

        Raises:
            MeshError: it does not say.
        """
        await self._describe(self._health.probe_s)

    def statistics(self) -> EngineStatistics:
        """Return what the model's process had done at the last check."""
        return self._known.statistics

    def describe(self) -> ModelDescription:
        """Return what the model was and could do at the last check; versions in answers are exact."""
        return self._known.model

    async def score_relevance(self, request: RelevanceRequest, cancel: Cancellation) -> list[float]:
        """Return P(True) per passage; as many passages in one call as the server takes."""
        if self._judge is None:
            raise FailedPrecondition("NO_RELEVANCE", f"{self._name} cannot judge relevance")
        cancel.check()
        if request.turns:
            # Rows of different numbers of turns make no batch: ask the generating model directly.
            return await self._writer.run(partial(self._judge_with_turns, request), cancel)
        rows = self._rows
        chunks = [request.passages[at : at + rows] for at in range(0, len(request.passages), rows)]
        tasks = [
            asyncio.create_task(
                self._judge.run(partial(self._judge_chunk, self._judge, request, chunk), cancel)
            )
            for chunk in chunks
        ]
        return [score for scores in await all_of(tasks) for score in scores]

    @property
    def _known(self) -> Described:
        if self._described is None:
            raise RuntimeError("the model was used before it was opened")
        return self._described

    async def _write(
        self, request: GenerationRequest, on_delta: Callable[[str], object], timeout_s: float
    ) -> Answer:
        answer = await self._generate(wire.generation_tensors(request), on_delta, timeout_s)
        known = self.describe().version
        if not answer.model_version:
            return replace(answer, model_version=known)
        if answer.model_version != known:
            self._writer_monitor.check_now()  # the model was replaced: other things may have changed too
        return answer

    async def _generate(
        self, inputs: Mapping[str, Tensor], on_delta: Callable[[str], object], timeout_s: float
    ) -> Answer:
        """Send a request and read up to its answer."""
        answer: Answer | None = None
        written: list[str] = []
        try:
            stream = self._client.stream(self._name, inputs, timeout_s=timeout_s)
            async with aclosing(stream) as responses:
                async for outputs in responses:
                    self._writer.record_response()
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
        self, judge: ModelEndpoint, request: RelevanceRequest, passages: Sequence[Passage], timeout_s: float
    ) -> list[float]:
        rows = wire.judgement_tensors(request, passages)
        try:
            outputs = await self._client.infer(judge.name, rows, timeout_s=timeout_s)
            judge.record_response()
            return wire.probabilities(outputs, len(passages))
        except MalformedReplyError as error:
            raise to_mesh_error(error) from None

    async def _judge_with_turns(self, request: RelevanceRequest, timeout_s: float) -> list[float]:
        found: dict[str, Tensor] = {}
        try:
            stream = self._client.stream(self._name, wire.judgement_with_turns(request), timeout_s=timeout_s)
            async with aclosing(stream) as responses:
                async for outputs in responses:
                    self._writer.record_response()
                    found |= outputs
            return wire.probabilities(found, len(request.passages))
        except MalformedReplyError as error:
            raise to_mesh_error(error) from None

    async def _describe(self, timeout_s: float) -> None:
        """Ask the model what it is.

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
        """Ask what the model is, and for one token unless it has just written some."""
        await self._describe(timeout_s)
        if self._writer.up and self._writer.silent_s < self._health.interval_s:
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
        """Ask for the judgement of one passage, unless some were just judged."""
        if self._judge is None or (self._judge.up and self._judge.silent_s < self._health.interval_s):
            return
        request = RelevanceRequest("probe", (_PROBE,))
        await self._judge_chunk(self._judge, request, request.passages, timeout_s)
        self._rows = await self._client.max_batch_size(self._judge.name, timeout_s=timeout_s)
