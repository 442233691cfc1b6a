"""Everything that is wrong with an audit, found before anything is generated."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from meshkit.errors import MeshError
from ragmesh.audits.plan import AuditPlan, System
from ragmesh.client import Client
from ragmesh.inventory import GeneratorModel, models

_MOST: Final = 10
_ROUNDS: Final = frozenset({"bfloat16", "float16"})
"""Number types in which the order of a sum decides between close tokens."""
_REFUSALS: Final = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "OUT_OF_RANGE"})


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong, and what a reader should know all the same; a line each."""

    problems: tuple[str, ...]
    notes: tuple[str, ...]


def check(plan: AuditPlan, client: Client) -> Findings:
    """Looks for everything that is wrong with a plan and its mesh.

    Args:
        plan: what is to be run; its files have been read.
        client: of the mesh.

    Raises:
        MeshError: the mesh does not answer.
    """
    there = models(client.addresses) if plan.answers else []
    problems = [*_queries(plan), *_numbers(plan), *_unknown_models(plan, there)]
    notes = [
        f"{model.name} computes in {model.dtype}: another batch may round to another token, so a run that is "
        "resumed or repeated may differ in an answer; with RAGMESH_GENERATOR_DTYPE=float32 it does not"
        for model in there
        if model.name in plan.models and model.dtype in _ROUNDS
    ]
    asked = {query.query_id for query in plan.queries.queries}
    others = len(plan.labels.grades.keys() - asked)
    if others:
        notes.append(f"{others:,} judged queries are not asked and left out")
    few = sum(1 for query in plan.queries.queries if len(plan.useful(query)) < 2)
    if few:
        notes.append(
            f"{few:,} of {len(asked):,} queries have fewer than two useful passages, which Kim & Diaz leave "
            "out: who of them is shown is no question there"
        )
    # A probe costs a search; where the questions are at fault already it would only repeat them.
    if not problems:
        for system in plan.systems:
            problems.extend(_probe(plan, system, client))
    if not problems:
        problems.extend(_unknown_items(plan, client))
        if any(system.expression for system in plan.systems):
            notes.append("labels are not held against the sources of expressions, which nobody can list")
    return Findings(tuple(problems), tuple(notes))


def _queries(plan: AuditPlan) -> Iterator[str]:
    queries = plan.queries
    yield from map(str, queries.problems)
    if not queries.queries and not queries.problems:
        yield f"{queries.path}: has no queries"
    yield from _listed(
        f"{queries.path}: of these queries {plan.labels.path} knows nothing",
        [query.query_id for query in queries.queries if query.query_id not in plan.labels.grades],
    )
    if plan.answers:
        yield from _listed(
            f"{queries.path}: these queries have no references to score answers against",
            [query.query_id for query in queries.queries if not query.references],
        )
    for query in queries.queries:
        if query.passages:
            known = {passage.id for passage in query.passages}
            yield from _listed(
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
    names = [system.name for system in plan.systems]
    yield from _listed(
        "these systems are there twice", sorted({one for one in names if names.count(one) > 1})
    )
    again = {model for model in plan.models if plan.models.count(model) > 1}
    yield from _listed("these models are there twice", sorted(again))


def _unknown_models(plan: AuditPlan, there: Sequence[GeneratorModel]) -> Iterator[str]:
    if not plan.answers:
        return
    names = [model.name for model in there]
    for model in plan.models:
        if model not in names:
            yield f"--model {model}: there is no such model; there are {', '.join(names)}"


def _probe(plan: AuditPlan, system: System, client: Client) -> Iterator[str]:
    """Asks the mesh to rank one query, with nothing to answer and nobody told."""
    cell = next(one for one in plan.cells() if one.system == system)
    options = plan.options(cell)
    options["num_answers"], options["samples"], options["observe"] = 0, 1, False
    try:
        for _ in client.audit(cell.query.question, alphas=plan.alphas, oracle=0, timeout=120, **options):
            pass
    except MeshError as error:
        if error.code.name not in _REFUSALS:
            raise
        yield f"{system.name}: {error}"


def _unknown_items(plan: AuditPlan, client: Client) -> Iterator[str]:
    """Labels of passages that the collection does not have; lists all its ids once."""
    if plan.collection is None or any(query.passages for query in plan.queries.queries):
        return
    if all(system.expression for system in plan.systems):
        return
    named = {
        passage for query in plan.queries.queries for passage in plan.labels.grades.get(query.query_id, {})
    }
    for passage in client.passages(plan.collection):
        named.discard(passage.id)
        if not named:
            return
    yield from _listed(
        f"{plan.labels.path}: judges passages that the collection {plan.collection!r} does not have",
        sorted(named),
    )


def _listed(what: str, names: Sequence[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - _MOST:,} more" if len(names) > _MOST else ""
        yield f"{what}: {', '.join(names[:_MOST])}{more}"
