"""Check an audit before anything is generated."""

import asyncio
from collections.abc import Iterator, Sequence

from evenmesh import Client
from evenmesh.inventory import models
from evenmesh.types.audit import AuditSettled
from evenmesh.types.collection import Collection
from evenmesh_studies.audits.plan import AuditPlan, RankingSystem
from evenmesh_studies.runner import preflight
from evenmesh_studies.runner.preflight import Preflight, listed, proper_share, repeated


def check(plan: AuditPlan, client: Client, others: Sequence[str] = ()) -> Preflight:
    """Return all problems of a plan on its mesh.

    Args:
        plan: to be run; its files have been read.
        client: of the mesh.
        others: problems found before, reported with the rest.

    Raises:
        MeshError: the mesh does not answer.
    """
    there = models(client.addresses) if plan.answers else []
    found = Preflight(
        [*others, *_queries(plan), *_numbers(plan)], list(preflight.rounding(plan.models, there))
    )
    if plan.answers:
        found.problems.extend(preflight.models(plan.models, there))
    asked = {query.query_id for query in plan.queries.queries}
    left_out = len(plan.labels.grades.keys() - asked)
    if left_out:
        found.notes.append(f"{left_out:,} judged queries are not asked and left out")
    few = sum(1 for query in plan.queries.queries if len(plan.useful(query)) < 2)
    if few:
        found.notes.append(
            f"{few:,} of {len(asked):,} queries have fewer than two useful passages; Kim & Diaz leave such "
            "queries out, as there is nothing to be fair between"
        )
    versions: set[str] = set()
    for system in plan.systems:
        with found.noting_refusals(system.name):
            versions |= _searched_versions(plan, system, client)
    collections = preflight.searched(client.collections(), versions)
    found.problems.extend(preflight.embedding(collections))
    if any(system.expression for system in plan.systems):
        found.notes.append(
            "labels are not compared with the ids of expressions' sources, which cannot be listed"
        )
    else:
        found.problems.extend(_unknown_passages(plan, client, collections))
    if plan.template and plan.answers and not found.problems:
        found.problems.extend(
            asyncio.run(preflight.generation_problems(plan.models, client.addresses, template=plan.template))
        )
    return found


def _queries(plan: AuditPlan) -> Iterator[str]:
    queries = plan.queries
    yield from preflight.queries(
        queries, scored="references to score answers against" if plan.answers else ""
    )
    yield from listed(
        f"{queries.path}: {plan.labels.path} has no labels for these queries",
        [query.query_id for query in queries.queries if query.query_id not in plan.labels.grades],
    )
    for query in queries.queries:
        if query.passages:
            known = {passage.id for passage in query.passages}
            yield from listed(
                f"{plan.labels.path}: judges passages that query {query.query_id!r} does not bring",
                sorted(plan.labels.grades.get(query.query_id, {}).keys() - known),
            )


def _numbers(plan: AuditPlan) -> Iterator[str]:
    for alpha in plan.alphas:
        if not 0 <= alpha <= 100:
            yield f"--alpha {alpha:g}: allowed: 0 to 100"
    yield from repeated("--alpha: given", [f"{alpha:g}" for alpha in plan.alphas])
    if plan.until_width is not None:
        if not plan.answers:
            yield "--until-width: needs answers, which --exposure-only leaves out"
        yield from proper_share("--until-width", plan.until_width)
    yield from proper_share("--level", plan.level)
    yield from repeated("systems given", [system.name for system in plan.systems])


def _searched_versions(plan: AuditPlan, system: RankingSystem, client: Client) -> set[str]:
    """Rank one query without answering or observing it; return the versions of the indexes."""
    unit = next((one for one in plan.units() if one.system == system), None)
    if unit is None:
        return set()
    options = plan.options(unit)
    options |= {"num_answers": 0, "samples": 1, "observe": False, "model": None, "references": None}
    events = client.audit(unit.query.question, alphas=[1.0], oracle=0, timeout=120, **options)
    return {event.index_version for event in events if isinstance(event, AuditSettled)} - {""}


def _unknown_passages(plan: AuditPlan, client: Client, searched: Sequence[Collection]) -> Iterator[str]:
    """Yield labelled passages that no searched collection holds. Lists all ids of the collections once."""
    named = {
        passage
        for query in plan.queries.queries
        if not query.passages
        for passage in plan.labels.grades.get(query.query_id, {})
    }
    for collection in searched:
        if not named:
            return
        for passage in client.passages(collection.name):
            named.discard(passage.id)
            if not named:
                return
    if searched:
        names = " and ".join(repr(one.name) for one in searched)
        yield from listed(
            f"{plan.labels.path}: judges passages that the collection {names} does not have", sorted(named)
        )
