"""The stage *retrieve*: the pool of one place, or of the sources of an expression."""

from __future__ import annotations

from orchestrator.budgets import Clock, Setback, attempt
from orchestrator.domain import Ask, Pool, SamplingStage
from orchestrator.expressions.running import ExpressionStages, Gathered
from orchestrator.policy import Step
from orchestrator.ports import Retriever


class Search:
    """Finds the pools of asks.

    Args:
        retriever: asked where an ask names a place.
        expressions: asked where it has an expression.
    """

    def __init__(self, retriever: Retriever, expressions: ExpressionStages) -> None:
        self._retriever = retriever
        self._expressions = expressions

    async def find(self, ask: Ask, clock: Clock) -> tuple[Pool, Gathered | None]:
        """The pool; with an expression also what each of its sources has in it.

        Raises:
            MeshError: there is nothing to answer from.
        """
        if ask.recipe is not None:
            gathered = await self._expressions.gather(ask, ask.recipe, clock)
            return gathered.pool, gathered
        sampling, k = None, ask.depth
        if ask.sampling is not None and ask.sampling_stage is SamplingStage.RETRIEVER:
            sampling, k = ask.sampling, ask.k if ask.reranker == "none" else ask.rerank_depth
        outcome = await attempt(
            clock,
            Step.RETRIEVE,
            lambda budget: self._retriever.retrieve(ask, k=k, sampling=sampling, timeout_s=budget),
        )
        if isinstance(outcome, Setback):
            raise outcome.error
        return outcome, None
