"""A language model that Triton servers run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from evenmesh.wire.errors import FailedPrecondition
from evenmesh_generator.backends.tasks import all_of
from evenmesh_generator.backends.triton import wire
from evenmesh_generator.backends.triton.endpoint import ModelReplicas, Replica
from evenmesh_generator.backends.triton.health_monitor import HealthSettings
from evenmesh_generator.backends.triton.servers import TritonServer
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
from evenmesh_generator.runtime.statistics import EngineStatistics, combined, counts_alone
from evenmesh_generator.triton.tensors import RELEVANCE_SUFFIX, Tensor
from evenmesh_kit.rpc.statuses import to_mesh_error

_PROBE: Final = Passage("probe", "", "probe")
_log = logging.getLogger("evenmesh.generator.triton")


class TritonModel(TritonWriter):
    """A :class:`~evenmesh_generator.ports.LanguageModel` behind Triton servers.

    Open it with :meth:`open`, and close it.

    Args:
        name: what requests call it, and Triton's name of the model.
        health: how it is monitored.
        interval_s: least time between two deltas of a stream. Seconds, [0, inf).
        judges: whether the servers have the model that judges with it.
    """

    def __init__(self, name: str, *, health: HealthSettings, interval_s: float, judges: bool) -> None:
        super().__init__(name, health, interval_s)
        self._name = name
        self._latest: Described | None = None
        self._described: dict[TritonServer, Described] = {}
        # What processes had done at servers that have gone since.
        self._gone = EngineStatistics()
        self._judge = ModelReplicas(name + RELEVANCE_SUFFIX) if judges else None
        self._rows = 1

    async def leave(self, server: TritonServer) -> None:
        """Stop monitoring the model at a server, and forget it there; what it has done there counts on."""
        await super().leave(server)
        described = self._described.pop(server, None)
        if described is not None:
            self._gone = combined((self._gone, counts_alone(described.statistics)))

    @property
    def in_flight(self) -> int:
        """Return the requests that run or wait for a place, judgements included."""
        return super().in_flight + (self._judge.in_flight if self._judge is not None else 0)

    async def check(self) -> None:
        """Ask the model's process at each server what it is and what it has done.

        Raises:
            MeshError: one does not say.
        """
        for server in list(self._described):
            await self._describe(server, self._health.probe_s)

    def statistics(self) -> EngineStatistics:
        """Return what the model's processes had done at the last check."""
        return combined((self._gone, *(one.statistics for one in self._described.values())))

    def describe(self) -> ModelDescription:
        """Return what the model was and could do at the last check; versions in answers are exact."""
        if self._latest is None:
            raise RuntimeError("the model was used before it was opened")
        return self._latest.model

    async def score_relevance(self, request: RelevanceRequest, cancel: Cancellation) -> list[float]:
        """Return P(True) per passage; as many passages in one call as the server takes."""
        if self._judge is None:
            raise FailedPrecondition("NO_RELEVANCE", f"{self._name} cannot judge relevance")
        cancel.check()
        if request.turns:
            # Rows of different numbers of turns make no batch: ask the generating model directly.
            return await self._writer.run(
                lambda replica, timeout_s: self._judge_with_turns(replica, request, timeout_s), cancel
            )
        rows = self._rows
        chunks = [request.passages[at : at + rows] for at in range(0, len(request.passages), rows)]
        judge = self._judge

        async def judged(chunk: Sequence[Passage]) -> list[float]:
            return await judge.run(
                lambda replica, timeout_s: self._judge_chunk(replica, request, chunk, timeout_s), cancel
            )

        tasks = [asyncio.create_task(judged(chunk)) for chunk in chunks]
        return [score for scores in await all_of(tasks) for score in scores]

    def _parts(self) -> Sequence[tuple[ModelReplicas, Callable[[Replica, float], Awaitable[None]]]]:
        judging = ((self._judge, self._probe_judge),) if self._judge is not None else ()
        return ((self._writer, self._probe), *judging)

    async def _write(
        self,
        replica: Replica,
        request: GenerationRequest,
        on_delta: Callable[[str], object],
        timeout_s: float,
    ) -> Answer:
        answer = await self._generate(replica, wire.generation_tensors(request), on_delta, timeout_s)
        known = self._described[replica.server].model.version
        if not answer.model_version:
            return replace(answer, model_version=known)
        if answer.model_version != known:
            replica.check_now()  # the model was replaced: other things may have changed too
        return answer

    async def _generate(
        self,
        replica: Replica,
        inputs: Mapping[str, Tensor],
        on_delta: Callable[[str], object],
        timeout_s: float,
    ) -> Answer:
        """Send a request and read up to its answer."""
        answer: Answer | None = None
        written: list[str] = []
        try:
            stream = replica.client.stream(self._name, inputs, timeout_s=timeout_s)
            async with aclosing(stream) as responses:
                async for outputs in responses:
                    replica.endpoint.record_response()
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
        self, replica: Replica, request: RelevanceRequest, passages: Sequence[Passage], timeout_s: float
    ) -> list[float]:
        rows = wire.judgement_tensors(request, passages)
        try:
            outputs = await replica.client.infer(replica.endpoint.name, rows, timeout_s=timeout_s)
            replica.endpoint.record_response()
            return wire.probabilities(outputs, len(passages))
        except MalformedReplyError as error:
            raise to_mesh_error(error) from None

    async def _judge_with_turns(
        self, replica: Replica, request: RelevanceRequest, timeout_s: float
    ) -> list[float]:
        found: dict[str, Tensor] = {}
        try:
            tensors = wire.judgement_with_turns(request)
            stream = replica.client.stream(self._name, tensors, timeout_s=timeout_s)
            async with aclosing(stream) as responses:
                async for outputs in responses:
                    replica.endpoint.record_response()
                    found |= outputs
            return wire.probabilities(found, len(request.passages))
        except MalformedReplyError as error:
            raise to_mesh_error(error) from None

    async def _meet(self, server: TritonServer) -> None:
        await self._describe(server, self._health.probe_s)
        if self._judge is not None:
            self._rows = await server.client.max_batch_size(self._judge.name, timeout_s=self._health.probe_s)

    async def _describe(self, server: TritonServer, timeout_s: float) -> None:
        """Ask the model's process at a server what it is and what it has done.

        Raises:
            MeshError: it does not say.
        """
        before, described = self._described.get(server), None
        try:
            stream = server.client.stream(self._name, wire.DESCRIBE, timeout_s=timeout_s)
            async with aclosing(stream) as responses:
                async for outputs in responses:
                    if outputs:
                        described = wire.described(outputs, self._name, judges=self._judge is not None)
            if described is None:
                raise MalformedReplyError("the stream ended without a description")
        except MalformedReplyError as error:
            raise to_mesh_error(error) from None
        self._described[server] = self._latest = described
        if before is not None and before.model != described.model:
            versions = {"before": before.model.version, "now": described.model.version}
            _log.info("triton model was replaced", extra={"model": self._name} | versions)

    async def _probe(self, replica: Replica, timeout_s: float) -> None:
        """Ask what the model is, and for one token unless it has just written some."""
        await self._describe(replica.server, timeout_s)
        if replica.endpoint.up and replica.endpoint.silent_s < self._health.interval_s:
            return
        augmentation = self.describe().augmentations[0]
        request = GenerationRequest(
            "probe",
            () if augmentation is Augmentation.RETRIEVAL_FREE else (_PROBE,),
            augmentation=augmentation,
            decoding=Decoding(max_new_tokens=1),
        )
        await self._generate(replica, wire.generation_tensors(request), lambda _: None, timeout_s)

    async def _probe_judge(self, replica: Replica, timeout_s: float) -> None:
        """Ask for the judgement of one passage, unless some were just judged."""
        if replica.endpoint.up and replica.endpoint.silent_s < self._health.interval_s:
            return
        request = RelevanceRequest("probe", (_PROBE,))
        await self._judge_chunk(replica, request, request.passages, timeout_s)
        self._rows = await replica.client.max_batch_size(replica.endpoint.name, timeout_s=timeout_s)
