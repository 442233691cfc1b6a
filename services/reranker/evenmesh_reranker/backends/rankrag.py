"""RankRAG: the generator's own model judges passages (Yu et al. 2024, section 4.3 and appendix D.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import grpc

from evenmesh.common.v1 import common_pb2
from evenmesh.generator.v1 import generator_service_pb2 as pb
from evenmesh.generator.v1.generator_service_pb2_grpc import GeneratorServiceStub
from evenmesh.wire import deadline
from evenmesh.wire.channel import connect
from evenmesh.wire.errors import (
    FailedPrecondition,
    InvalidField,
    MeshError,
    NotFound,
    Unavailable,
    from_rpc_error,
)
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_reranker.domain import Agent, Best, Fusion, Passage, Scores

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["GeneratorService"].full_name

CALLS: Final = 1000
"""Default number of calls at a time to the generator: less than it takes on one connection."""

FUSIONS: Final[Mapping[str, Fusion]] = MappingProxyType({"evenmesh-pointer": Fusion(4.0, neighbors=0.25)})
"""How the judgements of a generator's model are fused with a first stage's scores by default.

The weight of the bundled reader is the best of ``make rerank-table``. Those of other models are not fused.
"""


class RankRag:
    """Scores a passage by P(True) under the generator's context-ranking prompt, alike for all agents.

    The caller's deadline, less a margin, and its cancellation apply to the call.

    Args:
        target: gRPC target of the generator.
        model: model that judges; empty: the generator's default.
        model_setting: environment variable that names the model, for errors.
        template: prompt of one passage; empty: the model's default.
        template_setting: environment variable that names the template, for errors.
        max_message_bytes: largest message either way. Bytes.
        calls: bounds the calls at a time; None: 1,000, of whichever tenant. Beyond those of a connection
            calls would wait in gRPC: first come, first served, whoever comes.
        telemetry: records the calls.
    """

    def __init__(
        self,
        target: str,
        *,
        model: str,
        model_setting: str,
        template: str = "",
        template_setting: str = "",
        max_message_bytes: int,
        calls: Admission | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._calls = calls or Admission(CALLS, "calls")
        self._channel = connect(
            target,
            service=_SERVICE,
            max_message_bytes=max_message_bytes,
            telemetry=telemetry,
        )
        self._stub = GeneratorServiceStub(self._channel)
        self._model = model
        self._model_setting = model_setting
        self._template = template
        self._template_setting = template_setting

    async def score(
        self, query: str, passages: Sequence[Passage], agent: Agent, *, best: Best | None = None
    ) -> Scores:
        """Return P(True) of each passage; with ``best``, the generator judges in order until it knows these.

        Raises:
            Unavailable: the generator is away.
            DeadlineExceeded: no time is left.
            FailedPrecondition: the settings name no model or template of the generator that can judge.
            InvalidField: the query or a passage does not fit the model.
        """
        request = pb.ScoreRelevanceRequest(
            question=query,
            passages=[common_pb2.Passage(id=one.id, title=one.title, text=one.text) for one in passages],
            model=self._model,
            template=self._template,
            top_k=None if best is None else best.count,
            tolerance=None if best is None else best.tolerance,
        )
        try:
            async with self._calls.admit(1, queue_s=math.inf):
                response = await self._stub.ScoreRelevance(request, timeout=deadline.current().budget())
        except grpc.RpcError as error:
            raise self._translated(from_rpc_error(error)) from error
        return Scores(
            tuple(response.probabilities),
            f"{response.model}@{response.model_version}",
            response.unjudged_at_most if response.unjudged else None,
            FUSIONS.get(response.model, Fusion(0.0)),
        )

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    def _translated(self, error: MeshError) -> MeshError:
        """Return the generator's error in terms of the reranker's request and settings."""
        if isinstance(error, Unavailable):
            return Unavailable(
                "GENERATOR_UNAVAILABLE", f"the generator, which judges for rankrag, is away: {error.message}"
            )
        if isinstance(error, InvalidField) and error.field == "question":
            return InvalidField("query", error.message)
        if error.reason == "NO_RELEVANCE":
            message = f"{error.message}; {self._model_setting} names a model that can"
            return FailedPrecondition(error.reason, message)
        # Model and template come from the settings, not from the caller.
        if isinstance(error, NotFound | InvalidField) and error.field == "template":
            return FailedPrecondition("NO_TEMPLATE", f"{self._template_setting}: {error.message}")
        if isinstance(error, NotFound):
            return FailedPrecondition("NO_MODEL", f"{self._model_setting}: {error.message}")
        return error
