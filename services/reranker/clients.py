"""The generator, as the judge of relevance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import grpc

from meshkit import deadline
from meshkit.channel import connect
from meshkit.errors import MeshError, Unavailable, from_rpc_error
from meshkit.telemetry import Telemetry
from ragmesh.common.v1 import common_pb2
from ragmesh.generator.v1 import generator_service_pb2 as pb
from ragmesh.generator.v1.generator_service_pb2_grpc import GeneratorServiceStub
from services.reranker.domain import Passage, Scored

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["GeneratorService"].full_name


class RelevanceClient:
    """ScoreRelevance of a generator, as :class:`services.reranker.backends.rankrag.RelevanceModel`.

    Args:
        target: the generator.
        model: its model; empty: its default.
        max_message_bytes: largest message either way.
        telemetry: adds spans and trace context.
    """

    def __init__(self, target: str, *, model: str, max_message_bytes: int, telemetry: Telemetry) -> None:
        self._model = model
        self._channel = connect(
            target,
            service=_SERVICE,
            idempotent=["ScoreRelevance"],
            max_message_bytes=max_message_bytes,
            telemetry=telemetry,
        )
        self._stub = GeneratorServiceStub(self._channel)

    async def relevance(self, question: str, passages: Sequence[Passage]) -> Scored:
        """See the port. The caller's deadline and cancellation travel on."""
        request = pb.ScoreRelevanceRequest(
            question=question,
            # The messages that came in: what is handed on is not taken apart.
            passages=cast(Sequence[common_pb2.Passage], passages),
            model=self._model,
        )
        try:
            reply = await self._stub.ScoreRelevance(request, timeout=deadline.current().budget())
        except grpc.RpcError as error:
            raise _translated(from_rpc_error(error)) from error
        if len(reply.probabilities) != len(passages):
            raise MeshError(
                grpc.StatusCode.INTERNAL, "UPSTREAM_ERROR", "the generator did not judge every passage"
            )
        return Scored(list(reply.probabilities), f"{reply.model}@{reply.model_version}")

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()


def _translated(error: MeshError) -> MeshError:
    """The generator's error as the reranker's caller should see it."""
    if error.code is grpc.StatusCode.UNAVAILABLE:
        return Unavailable("GENERATOR_UNAVAILABLE", f"the generator is unavailable: {error.message}")
    if error.field == "question":
        return MeshError(error.code, error.reason, error.message, field="query")
    return error
