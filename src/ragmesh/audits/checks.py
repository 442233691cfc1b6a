"""Everything that is wrong with an audit, found before anything is generated."""

import asyncio
from collections.abc import Iterator, Sequence

from meshkit.errors import MeshError
from ragmesh import preflight
from ragmesh.audit import AuditSettled
from ragmesh.audits.plan import AuditPlan, System
from ragmesh.client import Client
from ragmesh.collection import Collection
from ragmesh.inventory import models
from ragmesh.preflight import Findings, listed, twice


def check(plan: AuditPlan, client: Client, others: Sequence[str] = ()) -> Findings:
    """Looks for everything that is wrong with a plan and its mesh.

    Args:
        plan: what is to be run; its files have been read.
        client: of the mesh.
        others: problems that were found before, to be told with the rest.

    Raises:
        MeshError: the mesh does not answer.
    """
    there = models(client.addresses) if plan.answers else []
    problems = [*others, *_queries(plan), *_numbers(plan)]
    if plan.answers:
        problems.extend(preflight.models(plan.models, there))
    notes = list(preflight.rounding(plan.models, there))
    asked = {query.query_id for query in plan.queries.queries}
    left_out = len(plan.labels.grades.keys() - asked)
    if left_out:
        notes.append(f"{left_out:,} judged queries are not asked and left out")
    few = sum(1 for query in plan.queries.queries if len(plan.useful(query)) < 2)
    if few:
        notes.append(
            f"{few:,} of {len(asked):,} queries have fewer than two useful passages, which Kim & Diaz leave "
            "out: who of them is shown is no question there"
        )
    versions: set[str] = set()
    told: dict[str, None] = {}
    for system in plan.systems:
        told |= dict.fromkeys(_probe(plan, system, client, versions))
    problems.extend(told)
    searched = preflight.searched(client.collections(), versions)
    problems.extend(preflight.embedding(searched))
    if any(system.expression for system in plan.systems):
        notes.append("labels are not held against the sources of expressions, which nobody can list")
    else:
        problems.extend(_unknown_items(plan, client, searched))
    if plan.template and plan.answers and not problems:
        problems.extend(
            asyncio.run(preflight.unwritten(plan.models, client.addresses, template=plan.template))
        )
    return Findings(tuple(problems), tuple(notes))


def _queries(plan: AuditPlan) -> Iterator[str]:
    queries = plan.queries
    yield from map(str, queries.problems)
    if not queries.queries and not queries.problems:
        yield f"{queries.path}: has no queries"
    yield from listed(
        f"{queries.path}: of these queries {plan.labels.path} knows nothing",
        [query.query_id for query in queries.queries if query.query_id not in plan.labels.grades],
    )
    if plan.answers:
        yield from listed(
            f"{queries.path}: these queries have no references to score answers against",
            [query.query_id for query in queries.queries if not any(map(str.strip, query.references))],
        )
    for query in queries.queries:
        if query.passages:
            known = {passage.id for passage in query.passages}
            yield from listed(
                f"{plan.labels.path}: judges passages that query {query.query_id!r} does not bring",
                sorted(plan.labels.grades.get(query.query_id, {}).keys() - known),
            )


def _numbers(plan: AuditPlan) -> Iterator[str]:
    for place, alpha in enumerate(plan.alphas):
        if not 0 <= alpha <= 100:
            yield f"--alpha {alpha:g}: allowed: 0 to 100"
        if alpha in plan.alphas[:place]:
            yield f"--alpha {alpha:g}: is there twice"
    if plan.until_width is not None and not plan.answers:
        yield "--until-width: needs answers, which --exposure-only leaves out"
    if plan.until_width is not None and not 0 < plan.until_width < 1:
        yield f"--until-width {plan.until_width:g}: allowed: between 0 and 1"
    if not 0 < plan.level < 1:
        yield f"--level {plan.level:g}: allowed: between 0 and 1"
    yield from listed("these systems are there twice", twice([system.name for system in plan.systems]))


def _probe(plan: AuditPlan, system: System, client: Client, versions: set[str]) -> Iterator[str]:
    """Asks the mesh to rank one query, with nothing to answer and nobody told; and with which index."""
    cell = next((one for one in plan.cells() if one.system == system), None)
    if cell is None:
        return
    options = plan.options(cell)
    # Whatever is wrong with what is asked is told of it; the mesh is asked of the rest.
    options["num_answers"], options["samples"], options["observe"] = 0, 1, False
    options["model"], options["references"] = None, None
    try:
        for event in client.audit(cell.query.question, alphas=[1.0], oracle=0, timeout=120, **options):
            if isinstance(event, AuditSettled) and event.index_version:
                versions.add(event.index_version)
    except MeshError as error:
        if error.code.name not in preflight.REFUSALS:
            raise
        yield f"{system.name}: {error}"


def _unknown_items(plan: AuditPlan, client: Client, searched: Sequence[Collection]) -> Iterator[str]:
    """Labels of passages that the collection does not have; lists all its ids once."""
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
