"""Calls to other services: the generator, which judges relevance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import grpc

from meshkit import deadline
from meshkit.channel import connect
from meshkit.errors import FailedPrecondition, InvalidField, MeshError, NotFound, Unavailable, from_rpc_error
from meshkit.telemetry import Telemetry
from ragmesh.common.v1 import common_pb2
from ragmesh.generator.v1 import generator_service_pb2 as pb
from ragmesh.generator.v1.generator_service_pb2_grpc import GeneratorServiceStub
from services.reranker.domain import Best, Passage, Scores

_SERVICE: Final = "ragmesh.generator.v1.GeneratorService"


class GeneratorClient:
    """The generator as a judge of relevance.

    The caller's deadline, less a margin, and its cancellation travel with the call.

    Args:
        target: gRPC target of the generator.
        model: model that judges; empty: the generator's default.
        model_setting: environment variable that names the model, for errors.
        template: prompt of one passage; empty: the model's default.
        template_setting: environment variable that names the template, for errors.
        max_message_bytes: largest message either way. Bytes.
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
        telemetry: Telemetry | None = None,
    ) -> None:
        self._channel = connect(
            target,
            service=_SERVICE,
            idempotent=["ScoreRelevance"],
            max_message_bytes=max_message_bytes,
            telemetry=telemetry,
        )
        self._stub = GeneratorServiceStub(self._channel)
        self._model = model
        self._model_setting = model_setting
        self._template = template
        self._template_setting = template_setting

    async def score_relevance(
        self, query: str, passages: Sequence[Passage], best: Best | None = None
    ) -> Scores:
        """P(True) per passage under RankRAG's context-ranking prompt (appendix D.1).

        Where only the ``best`` are wanted, the generator judges in order until it knows them.

        Raises:
            Unavailable: the generator is away.
            DeadlineExceeded: no time is left.
            FailedPrecondition: the generator's model cannot judge, there is none of the name set, or the
                template set is none to judge with.
            InvalidField: the query or a passage does not suit the model.
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
            response = await self._stub.ScoreRelevance(request, timeout=deadline.current().budget())
        except grpc.RpcError as error:
            raise self._told(from_rpc_error(error)) from error
        return Scores(
            tuple(response.probabilities),
            f"{response.model}@{response.model_version}",
            response.unjudged_at_most if response.unjudged else None,
        )

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()

    def _told(self, error: MeshError) -> MeshError:
        """The generator's error in the words of this service's caller."""
        if isinstance(error, Unavailable):
            return Unavailable(
                "GENERATOR_UNAVAILABLE", f"the generator, which judges for rankrag, is away: {error.message}"
            )
        if isinstance(error, InvalidField) and error.field == "question":
            return InvalidField("query", error.message)
        if error.reason == "NO_RELEVANCE":
            which = self._model_setting
            return FailedPrecondition(error.reason, f"{error.message}; {which} names a model that can")
        # The caller named no template and no model: the settings did.
        if isinstance(error, NotFound | InvalidField) and error.field == "template":
            return FailedPrecondition("NO_TEMPLATE", f"{self._template_setting}: {error.message}")
        if isinstance(error, NotFound):
            return FailedPrecondition("NO_MODEL", f"{self._model_setting}: {error.message}")
        return error
