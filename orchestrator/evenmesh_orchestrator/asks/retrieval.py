"""The retrieval stage: the pool of one collection, or of the sources of an expression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh_orchestrator.asks.budgets import Clock, HandledFailure, attempt
from evenmesh_orchestrator.asks.failure_policy import INSTEAD, Step
from evenmesh_orchestrator.domain import EMPTY_POOL, Action, Ask, Degraded, Pool, Stage
from evenmesh_orchestrator.expressions.gathering import Gathered, gather
from evenmesh_orchestrator.ports import Generator, Retriever

_NO_PASSAGES = Degraded(
    Stage.RETRIEVE,
    Action.NO_CONTEXT,
    "NO_PASSAGES",
    f"the retriever found no passages: {INSTEAD[Action.NO_CONTEXT]}",
)


@dataclass(frozen=True, slots=True)
class Found:
    """What retrieval found for an ask.

    Attributes:
        ask: the ask to go on with: one that has no passages cannot use a mode that reads them.
        pool: the passages.
        gathered: the list of each source, where the ask has an expression.
        degradations: sources that failed, and an empty pool.
    """

    ask: Ask
    pool: Pool
    gathered: Gathered | None = None
    degradations: Sequence[Degraded] = ()


class RetrievalStage:
    """Finds the pools of asks.

    Args:
        retriever: searches collections and web sources.
        generator: writes what the model itself knows.
    """

    def __init__(self, retriever: Retriever, generator: Generator) -> None:
        self._retriever = retriever
        self._generator = generator

    async def find(self, ask: Ask, clock: Clock) -> Found:
        """Return the pool of an ask; an empty one if the ask does not read passages.

        Raises:
            MeshError: the retriever, or every source of the expression, failed.
        """
        gathered: Gathered | None = None
        degradations: list[Degraded] = []
        if not ask.reads_passages:
            name = "" if ask.expression is None else ask.expression.text
            return Found(ask, replace(EMPTY_POOL, retriever=name))
        if ask.expression is not None:
            gathered = await gather(ask, ask.expression, clock, self._retriever, self._generator)
            pool = gathered.pool
            degradations.extend(gathered.degradations)
        else:
            pool = await self._search(ask, clock)
        if not pool.passages:
            degradations.append(_NO_PASSAGES)
            # The generator rejects a mode or template that takes passages when there are none.
            ask = replace(ask, augmentation=generator_pb.AUGMENTATION_UNSPECIFIED, template="")
        return Found(ask, pool, gathered, degradations)

    async def _search(self, ask: Ask, clock: Clock) -> Pool:
        sampling, k = None, ask.depth
        if ask.sampling is not None and ask.sampling_stage == pb.SAMPLING_STAGE_RETRIEVER:
            sampling, k = ask.sampling, ask.k if ask.reranker == "none" else ask.rerank_depth
        outcome = await attempt(
            clock,
            Step.RETRIEVE,
            lambda budget: self._retriever.retrieve(ask, k=k, sampling=sampling, timeout_s=budget),
        )
        if isinstance(outcome, HandledFailure):
            raise outcome.error
        return outcome
