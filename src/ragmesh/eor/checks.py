"""Everything that is wrong with a study of an ensemble, found before anything is generated."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from meshkit.errors import MeshError
from ragmesh import preflight
from ragmesh.client import Client
from ragmesh.eor.plan import EorPlan
from ragmesh.eor.pool import KNOWLEDGE, reads, uses_knowledge
from ragmesh.inventory import GeneratorModel, models
from ragmesh.preflight import listed, twice
from ragmesh.request import AskOptions
from ragmesh.shards import same_stems

_DOES: Final = {
    "retrieval_free": "answer without passages",
    "parametric_knowledge": "write a document of its own (PK)",
    "compression": "summarise passages (@CP)",
}


@dataclass(frozen=True, slots=True)
class Findings(preflight.Findings):
    """What is wrong, what a reader should know all the same, and what is searched."""

    versions: Mapping[str, str]
    """Of the indexes of each member that has any."""


def check(plan: EorPlan, client: Client, others: Sequence[str] = ()) -> Findings:
    """Looks for everything that is wrong with a plan and its mesh.

    Args:
        plan: what is to be run; its files have been read.
        client: of the mesh.
        others: problems that were found before, to be told with the rest.

    Raises:
        MeshError: the mesh does not answer.
    """
    there = models(client.addresses)
    problems = [*others, *plan.pool.problems, *_datasets(plan), *_models(plan, there)]
    versions: dict[str, str] = {}
    question = next((query.question for one in plan.datasets for query in one.queries.queries), "")
    # Where the model would have to write a document for the search, sources are looked up only when nothing
    # else is wrong: nothing is generated before.
    for late in (False, True):
        if question and not (late and problems):
            for member in plan.pool.members:
                if (uses_knowledge(member) and member != KNOWLEDGE) is late:
                    problems.extend(_probe(plan, member, question, client, versions))
        if not late and versions:
            searched = preflight.searched(client.collections(), versions.values())
            problems.extend(preflight.embedding(searched))
    notes = tuple(preflight.rounding(plan.models, there))
    return Findings(
        tuple(problems), notes, {one: versions[one] for one in plan.pool.members if one in versions}
    )


def _datasets(plan: EorPlan) -> Iterator[str]:
    names = [one.name for one in plan.datasets]
    yield from listed("these data sets are there twice", twice(names))
    yield from listed("records of these data sets would go to one file", same_stems(names))
    if not 0 < plan.train_share < 1:
        yield f"--train-share {plan.train_share:g}: allowed: between 0 and 1"
    for dataset in plan.datasets:
        queries = dataset.queries
        yield from map(str, queries.problems)
        if not queries.queries:
            if not queries.problems:
                yield f"{queries.path}: has no questions"
            continue
        yield from listed(
            f"{queries.path}: these questions have no answers to judge by",
            [query.query_id for query in queries.queries if not any(map(str.strip, query.references))],
        )
        yield from listed(
            f"{queries.path}: these questions bring passages, and retrievers search the mesh's",
            [query.query_id for query in queries.queries if query.passages],
        )
        if 0 < plan.train_share < 1:
            chosen = plan.chosen(dataset)
            training = sum(map(plan.is_training, chosen))
            for split, left in (("train on", training), ("test on", len(chosen) - training)):
                if not left:
                    yield (
                        f"{queries.path}: of {len(chosen):,} questions, --train-share {plan.train_share:g} "
                        f"and --seed {plan.seed} leave none to {split}"
                    )


def _models(plan: EorPlan, there: Sequence[GeneratorModel]) -> Iterator[str]:
    known = {model.name: model for model in there}
    yield from preflight.models(plan.models, there)
    for name in dict.fromkeys(plan.models):
        if name not in known:
            continue
        for member in plan.pool.members:
            for need in _needs(member):
                if need not in known[name].augmentations:
                    yield f"--pool {member}: the model {name} cannot {_DOES[need]}"


def _needs(member: str) -> set[str]:
    needs = {one for one in (reads(member),) if one is not None}
    return needs | ({"parametric_knowledge"} if uses_knowledge(member) else set())


def _probe(
    plan: EorPlan, member: str, question: str, client: Client, versions: dict[str, str]
) -> Iterator[str]:
    """Has the mesh search as one member does, with nothing to answer and nobody told."""
    options: AskOptions = {"expression": member, "num_answers": 0, "observe": False}
    if "@RR" in member:
        options["reranker"] = plan.pool.reranker
    try:
        found = client.answer(question, timeout=120, **options)
    except MeshError as error:
        if error.code.name not in preflight.REFUSALS:
            raise
        yield f"--pool {member}: {error}"
        return
    if found.retrieved is not None and found.retrieved.index_version:
        versions[member] = found.retrieved.index_version
