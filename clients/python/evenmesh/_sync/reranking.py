# Generated from _async by generate_sync.py (make sdk). Do not edit.
"""Calls of the reranker: scores of passages, without an answer."""

from collections.abc import Iterable

from evenmesh._sync.calls import Calls
from evenmesh.codec.mapping import decode, encode
from evenmesh.reranker.v1 import reranker_service_pb2 as reranker_pb2
from evenmesh.types.request import Agent, passage_message
from evenmesh.types.reranking import FirstStage, Reranking
from evenmesh.wire.checks import PassageLike


class RerankCalls(Calls):
    """Score and order passages that the caller has."""

    def rerank(
        self,
        query: str,
        passages: Iterable[PassageLike],
        *,
        reranker: str | None = None,
        top_k: int | None = None,
        agent: Agent | None = None,
        first_stage: FirstStage | None = None,
        fusion: float | None = None,
        tolerance: float | None = None,
        timeout: float | None = None,
    ) -> Reranking:
        """Return the probability that each passage is useful, and their order.

        Args:
            query: 1 to 8,192 bytes, not only white space.
            passages: 1 to 1,000, ids unique.
            reranker: ``cross-encoder``, ``rankrag`` or ``none``; the server's default without it.
            top_k: passages to keep in the order; all without it.
            agent: on whose behalf; an unknown agent without it.
            first_stage: the scores of a first stage, to be fused with the reranker's.
            fusion: weight of these beside the reranker's log-odds, 0 (the reranker alone) to 10; that of the
                reranker's model without it.
            tolerance: lets ``rankrag`` stop once no other passage can exceed one of the best ``top_k`` by
                more than this probability; every passage is scored without it.
            timeout: seconds the call may take.

        Raises:
            InvalidField: a value is wrong.
        """
        values = {
            "query": query,
            "passages": [passage_message(one) for one in passages],
            "reranker": reranker,
            "top_k": top_k,
            "agent": agent,
            "first_stage": first_stage,
            "fusion": fusion,
            "tolerance": tolerance,
        }
        request = encode(reranker_pb2.RerankRequest, values)
        reply = self._call("reranker", self._reranker.Rerank, request, timeout)
        return decode(Reranking, reply)
