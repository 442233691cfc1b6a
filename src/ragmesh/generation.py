"""Answers straight from the generator, many to a call: for labels, which need no retrieval."""

# ruff: noqa: ASYNC109 - a timeout is gRPC's deadline here, sent along with the call

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import grpc

from meshkit.channel import connect
from ragmesh import codec
from ragmesh.addresses import Addresses
from ragmesh.events import Failed
from ragmesh.generator.v1 import generator_service_pb2 as generator_pb2
from ragmesh.generator.v1 import generator_service_pb2_grpc as generator_grpc
from ragmesh.passage import Passage
from ragmesh.request import AUGMENTATIONS, Augmentation, Decoding, decoding_message, passage_message
from ragmesh.texts import text

LARGEST_BATCH: Final = 256
"""Most answers of one call."""

_SERVICE: Final = "ragmesh.generator.v1.GeneratorService"


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """An answer: its text, the model that wrote it, and how long that took it from the request's arrival."""

    text: str
    model: str
    model_version: str
    total_ms: float = math.nan


class Generation:
    """The generator of a mesh; make and use it in one event loop.

    Args:
        addresses: where the services are.
    """

    def __init__(self, addresses: Addresses) -> None:
        self._address = addresses.generator
        self._channel = connect(addresses.generator, service=_SERVICE, idempotent=("GenerateBatch",))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._channel.close()

    async def answers(
        self,
        question: str,
        contexts: Sequence[Sequence[Passage]],
        *,
        model: str,
        augmentation: Augmentation | None = None,
        template: str | None = None,
        decoding: Decoding | None = None,
        timeout: float,
    ) -> list[WrittenAnswer | Failed]:
        """One answer for each context, or why there is none; four beams unless told otherwise.

        Args:
            question: what is asked.
            contexts: passages to answer from; none means to answer from memory. At most 256.
            model: by name.
            augmentation: how passages are handed over; None for the model's default.
            template: prompt by name, of contexts that have passages; None for the model's default.
            decoding: how tokens are chosen.
            timeout: seconds the call may take.

        Raises:
            MeshError: the call failed as a whole.
        """
        request = generator_pb2.GenerateBatchRequest()
        for passages in contexts:
            one = request.requests.add(question=text("question", question), model=text("model", model))
            if not passages:
                one.augmentation = generator_pb2.AUGMENTATION_RETRIEVAL_FREE
            elif augmentation is not None:
                one.augmentation = AUGMENTATIONS[augmentation]
            if passages and template is not None:
                one.template = text("template", template)
            if decoding is not None:
                one.decoding.CopyFrom(decoding_message(decoding))
            one.passages.extend(passage_message(passage) for passage in passages)
        stub = generator_grpc.GeneratorServiceStub(self._channel)
        try:
            reply = await stub.GenerateBatch(request, timeout=timeout)
        except grpc.RpcError as exc:
            raise codec.error(exc, service="generator", address=self._address) from exc
        return [_outcome(place, result) for place, result in enumerate(reply.results)]


def _outcome(place: int, result: generator_pb2.GenerateBatchResult) -> WrittenAnswer | Failed:
    if result.HasField("answer"):
        answer = result.answer
        taken = answer.cost.total_ms if answer.HasField("cost") else math.nan
        return WrittenAnswer(answer.text, answer.model, answer.model_version, taken)
    error = result.error
    return Failed((place,), error.code, error.reason, error.message, error.field)
