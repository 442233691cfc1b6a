"""Audit one query through a mesh."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from evenmesh import AsyncClient
from evenmesh.addresses import Addresses
from evenmesh.long_runs import may_pass
from evenmesh.types.audit import AuditSample, AuditSettled
from evenmesh.wire.errors import Unavailable
from evenmesh_studies.audits.plan import AuditPlan, AuditUnit, records
from evenmesh_studies.runner import Perform, Result
from evenmesh_studies.runner.events import collect


@asynccontextmanager
async def connected(plan: AuditPlan, addresses: Addresses) -> AsyncIterator[Perform[AuditUnit]]:
    """Give a function that does one unit of a plan, within a connection to the mesh."""
    async with AsyncClient(addresses) as client:
        yield partial(audit, client, plan)


async def audit(client: AsyncClient, plan: AuditPlan, unit: AuditUnit) -> Result:
    """Sample and answer all rankings of one query.

    Raises:
        MeshError: the mesh refuses the audit, or fails in a way that may pass.
    """
    samples: list[AuditSample] = []
    facts: dict[str, str] = {}
    pool: Sequence[str] = ()
    events = client.audit(
        unit.query.question,
        alphas=plan.alphas,
        oracle=plan.oracle,
        until_width=plan.until_width,
        level=plan.level if plan.answers else None,
        timeout=plan.timeout,
        **plan.options(unit),
    )
    for event in await collect(events, until_done="audit"):
        match event:
            case AuditSettled():
                name, pool = unit.system.name, event.passage_ids
                facts[f"retriever of {name}"] = event.retriever
                facts[f"index of {name}"] = event.index_version
                facts[f"reranker of {name}"] = f"{event.reranker} {event.reranker_version}".strip()
            case AuditSample():
                samples.append(event)
                if event.model:
                    facts[f"version of {event.model}"] = event.model_version
                if event.failure is not None and may_pass(event.failure.code, event.failure.reason):
                    raise Unavailable("NO_ANSWER", event.failure.message)
            case _:
                pass
    unanswered = sum(one.answer is None for one in samples) if plan.answers else 0
    notes = []
    if unanswered:
        notes.append(f"query {unit.title}: {unanswered:,} of {len(samples):,} rankings could not be answered")
    if not samples:
        notes.append(f"query {unit.query.query_id!r} has no ranking")
    return Result(records(unit, samples, pool), facts, notes)
