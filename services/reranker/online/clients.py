"""Calls to other services: the retriever, which has the passages, and the reranker, which promotes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import grpc

from meshkit.channel import connect
from meshkit.errors import NotFound, from_rpc_error
from meshkit.telemetry import Telemetry
from ragmesh.reranker.v1 import feedback_service_pb2 as feedback_pb
from ragmesh.reranker.v1.feedback_service_pb2_grpc import FeedbackServiceStub
from ragmesh.retriever.v1 import collection_service_pb2 as collection_pb
from ragmesh.retriever.v1.collection_service_pb2_grpc import CollectionServiceStub
from services.reranker.domain import Passage
from services.reranker.online.lessons import PassageKey

_COLLECTIONS: Final = "ragmesh.retriever.v1.CollectionService"
_FEEDBACK: Final = "ragmesh.reranker.v1.FeedbackService"
_IDS_AT_ONCE: Final = 5_000
_READ_S: Final = 60.0
_PROMOTE_S: Final = 600.0


class RetrieverPassages:
    """A :class:`services.reranker.online.ports.Passages`.

    Args:
        target: gRPC target of the retriever.
        max_message_bytes: largest message either way. Bytes.
        telemetry: for calls.
    """

    def __init__(self, target: str, *, max_message_bytes: int, telemetry: Telemetry | None = None) -> None:
        self._channel = connect(
            target,
            service=_COLLECTIONS,
            idempotent=["GetPassages"],
            max_message_bytes=max_message_bytes,
            telemetry=telemetry,
        )
        self._stub = CollectionServiceStub(self._channel)

    async def texts(self, keys: Iterable[PassageKey]) -> Mapping[PassageKey, Passage]:
        """See the port."""
        wanted: dict[str, list[str]] = defaultdict(list)
        for collection, id_ in keys:
            if collection:
                wanted[collection].append(id_)
        found: dict[PassageKey, Passage] = {}
        for collection, ids in wanted.items():
            for begin in range(0, len(ids), _IDS_AT_ONCE):
                request = collection_pb.GetPassagesRequest(
                    collection=collection, passage_ids=ids[begin : begin + _IDS_AT_ONCE]
                )
                try:
                    async for part in self._stub.GetPassages(request, timeout=_READ_S):
                        for one in part.passages:
                            found[collection, one.id] = Passage(one.id, one.title, one.text)
                except grpc.RpcError as error:
                    told = from_rpc_error(error)
                    if isinstance(told, NotFound):
                        break  # the collection is gone, and all of its passages
                    raise told from error
        return found

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()


class RerankerPromoter:
    """A :class:`services.reranker.online.ports.Promoter`.

    Args:
        target: gRPC target of the reranker.
        telemetry: for calls.
    """

    def __init__(self, target: str, *, telemetry: Telemetry | None = None) -> None:
        self._channel = connect(target, service=_FEEDBACK, telemetry=telemetry)
        self._stub = FeedbackServiceStub(self._channel)

    async def promote(self, version: str) -> None:
        """See the port."""
        try:
            await self._stub.PromoteModel(
                feedback_pb.PromoteModelRequest(version=version), timeout=_PROMOTE_S
            )
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()
