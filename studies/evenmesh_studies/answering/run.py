"""Rank one question and answer it with every model from every number of passages."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from evenmesh import AsyncClient
from evenmesh.addresses import Addresses
from evenmesh.generation import Generation, WrittenAnswer
from evenmesh.long_runs import may_pass
from evenmesh.types.events import AskResult
from evenmesh.wire.errors import Unavailable
from evenmesh_core.earlier_words import EARLIER_TURNS, words
from evenmesh_studies.answering.plan import (
    TIMES,
    AnsweringPlan,
    AnsweringUnit,
    ContextAnswer,
    RankedPool,
    records,
)
from evenmesh_studies.runner import Perform, Result
from evenmesh_studies.runner.events import collect


@asynccontextmanager
async def connected(plan: AnsweringPlan, addresses: Addresses) -> AsyncIterator[Perform[AnsweringUnit]]:
    """Give a function that does one unit of a plan, within connections to the mesh."""
    async with AsyncClient(addresses) as client, Generation(addresses) as generation:
        yield partial(evaluate, client, generation, plan)


async def evaluate(
    client: AsyncClient, generation: Generation, plan: AnsweringPlan, unit: AnsweringUnit
) -> Result:
    """Rank one question and answer it.

    Raises:
        MeshError: the mesh refuses the question, or fails in a way that may pass.
    """
    # As in an ask with these turns.
    template = plan.template or unit.question.template
    newest = unit.question.turns[-EARLIER_TURNS:]
    contextual = words(unit.question.asked, [asked for asked, _ in newest]) if newest else ""
    facts: dict[str, str] = {}
    ranked = await _ranked(client, plan, unit, facts)
    answers = []
    for model in plan.models:
        for k in plan.contexts:
            # One call per answer, so that its time includes no other answer's.
            (outcome,) = await generation.answers(
                unit.question.asked,
                [ranked.ranking[:k]],
                model=model,
                template=template,
                turns=unit.question.turns if template else newest,
                contextual_question=contextual,
                decoding=plan.decoding,
                timeout=plan.timeout,
            )
            if isinstance(outcome, WrittenAnswer):
                facts[f"version of {outcome.model}"] = outcome.model_version
                taken_ms = None if math.isnan(outcome.total_ms) else outcome.total_ms
                answers.append(ContextAnswer(model, k, outcome.text, None, taken_ms))
            elif may_pass(outcome.code, outcome.reason):
                raise Unavailable("NO_ANSWER", outcome.message)
            else:
                answers.append(ContextAnswer(model, k, None, f"{outcome.code}: {outcome.message}", None))
    answered, times = records(unit, ranked, answers)
    notes = []
    query_id = unit.question.query_id
    if unanswered := sum(one.answer is None for one in answered):
        notes.append(f"question {query_id!r}: {unanswered:,} of {len(answered):,} could not be answered")
    if not ranked.retrieved:
        notes.append(f"question {query_id!r}: nothing was retrieved")
    return Result(
        [one.model_dump_json(exclude_none=True, exclude_defaults=True) for one in answered],
        facts,
        notes,
        {TIMES: [one.model_dump_json(exclude_none=True) for one in times]},
    )


async def _ranked(
    client: AsyncClient, plan: AnsweringPlan, unit: AnsweringUnit, facts: dict[str, str]
) -> RankedPool:
    """Retrieve and rank; add the versions to ``facts``."""
    question = unit.question.question
    stream = client.ask(question, timeout=plan.timeout, **plan.options(unit))
    result = AskResult.of(question, await collect(stream, until_done="ask"))
    if result.done is None or result.retrieved is None or result.ranked is None:
        raise Unavailable("CUT_OFF", "the orchestrator ended the ask early")
    ranker = unit.ranker
    facts[f"index of {ranker.retriever} in {unit.asked.collection}"] = result.retrieved.index_version
    if ranker.reranker != "none":
        facts[f"version of {result.ranked.reranker}"] = result.ranked.model_version
    times = result.done.stage_ms
    return RankedPool(
        retrieved=result.retrieved.passages[: ranker.n],
        order=result.ranked.contexts[0] if result.ranked.contexts else (),
        retrieve_ms=times.get("retrieve"),
        rerank_ms=times.get("rerank", 0.0 if ranker.reranker == "none" else None),
    )
