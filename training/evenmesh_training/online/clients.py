"""Clients of other services: the retriever, which has the passages, and the reranker, which promotes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import grpc

from evenmesh.reranker.v1 import feedback_service_pb2 as feedback_pb
from evenmesh.reranker.v1.feedback_service_pb2_grpc import FeedbackServiceStub
from evenmesh.retriever.v1 import collection_service_pb2 as collection_pb
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.retriever.v1.collection_service_pb2_grpc import CollectionServiceStub
from evenmesh.retriever.v1.retriever_service_pb2_grpc import RetrieverServiceStub
from evenmesh.wire.channel import connect
from evenmesh.wire.errors import InvalidField, NotFound, from_rpc_error
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_reranker.domain import Passage
from evenmesh_training.ium.result_cache import Candidates
from evenmesh_training.online.training_examples import PassageKey

_COLLECTIONS: Final = collection_pb.DESCRIPTOR.services_by_name["CollectionService"].full_name
_FEEDBACK: Final = feedback_pb.DESCRIPTOR.services_by_name["FeedbackService"].full_name
_IDS_AT_ONCE: Final = 5_000
_READ_S: Final = 60.0
_DEPTH: Final = 100
"""Passages found for a query: judged ones should be among them, whatever sampling showed."""
_PROMOTE_S: Final = 600.0


class RetrieverPassages:
    """A :class:`evenmesh_training.online.ports.Passages`.

    Args:
        target: gRPC target of the retriever.
        retriever: first stage by name; empty: the retriever's default.
        max_message_bytes: largest message either way. Bytes.
        telemetry: records calls.
    """

    def __init__(
        self,
        target: str,
        *,
        retriever: str = "",
        max_message_bytes: int,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._channel = connect(
            target,
            service=_COLLECTIONS,
            max_message_bytes=max_message_bytes,
            telemetry=telemetry,
        )
        self._stub = CollectionServiceStub(self._channel)
        self._first_stage = RetrieverServiceStub(self._channel)
        self._retriever = retriever

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
                    failure = from_rpc_error(error)
                    if isinstance(failure, NotFound):
                        break  # the collection was deleted with all its passages
                    raise failure from error
        return found

    async def found(self, collection: str, query: str) -> Candidates | None:
        """See the port."""
        request = retriever_pb.RetrieveRequest(
            query=query, collection=collection, retriever=self._retriever, depth=_DEPTH, k=_DEPTH
        )
        try:
            reply = await self._first_stage.Retrieve(request, timeout=_READ_S)
        except grpc.RpcError as error:
            failure = from_rpc_error(error)
            if isinstance(failure, NotFound | InvalidField) and failure.field in ("collection", "query"):
                return None
            raise failure from error
        passages = tuple(Passage(one.id, one.title, one.text) for one in reply.passages)
        return Candidates(passages, tuple(reply.scores))

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()


class RerankerPromoter:
    """A :class:`evenmesh_training.online.ports.Promoter`.

    Args:
        target: gRPC target of the reranker.
        telemetry: records calls.
    """

    def __init__(self, target: str, *, telemetry: Telemetry | None = None) -> None:
        self._channel = connect(target, service=_FEEDBACK, telemetry=telemetry)
        self._stub = FeedbackServiceStub(self._channel)

    async def promote(self, version: str) -> None:
        """See the port."""
        try:
            request = feedback_pb.PromoteModelRequest(version=version)
            await self._stub.PromoteModel(request, timeout=_PROMOTE_S)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()
