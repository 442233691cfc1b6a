"""Check a study of an ensemble before anything is generated."""

from collections.abc import Iterator, Sequence
from typing import Final

from evenmesh import Client
from evenmesh.inventory import GeneratorModel, models
from evenmesh.types.request import AskOptions
from evenmesh_studies.ensembles.plan import EnsemblePlan
from evenmesh_studies.ensembles.pool import KNOWLEDGE, required_augmentation, uses_knowledge
from evenmesh_studies.runner import preflight
from evenmesh_studies.runner.preflight import Preflight, listed, proper_share, repeated
from evenmesh_studies.runner.shards import same_stems

_ABILITIES: Final = {
    "retrieval_free": "answer without passages",
    "parametric_knowledge": "write a document of its own (PK)",
    "compression": "summarise passages (@CP)",
}


def check(plan: EnsemblePlan, client: Client, others: Sequence[str] = ()) -> tuple[Preflight, dict[str, str]]:
    """Return all problems of a plan on its mesh, and the index versions of each member that has any.

    Args:
        plan: to be run; its files have been read.
        client: of the mesh.
        others: problems found before, reported with the rest.

    Raises:
        MeshError: the mesh does not answer.
    """
    there = models(client.addresses)
    found = Preflight(
        [*others, *plan.pool.problems, *_datasets(plan), *_models(plan, there)],
        list(preflight.rounding(plan.models, there)),
    )
    versions: dict[str, str] = {}
    question = next((query.question for one in plan.datasets for query in one.queries.queries), "")
    members = plan.pool.members if question else ()
    # Probing these makes the model write a document: do it only for a run that will not be refused.
    generating = [one for one in members if uses_knowledge(one) and one != KNOWLEDGE]
    for member in members:
        if member not in generating:
            _probe(plan, member, question, client, found, versions)
    if versions:
        searched = preflight.searched(client.collections(), versions.values())
        found.problems.extend(preflight.embedding(searched))
    if not found.problems:
        for member in generating:
            _probe(plan, member, question, client, found, versions)
    return found, {one: versions[one] for one in plan.pool.members if one in versions}


def _datasets(plan: EnsemblePlan) -> Iterator[str]:
    names = [one.name for one in plan.datasets]
    yield from repeated("data sets given", names)
    yield from listed("records of these data sets would share a file", same_stems(names))
    yield from proper_share("--train-share", plan.train_share)
    for dataset in plan.datasets:
        queries = dataset.queries
        yield from preflight.queries(queries, called="questions", scored="answers to judge by")
        yield from listed(
            f"{queries.path}: these questions bring passages, but retrievers search the mesh's",
            [query.query_id for query in queries.queries if query.passages],
        )
        if queries.queries and 0 < plan.train_share < 1:
            chosen = plan.chosen(dataset)
            training = sum(map(plan.is_training, chosen))
            for split, left in (("train on", training), ("test on", len(chosen) - training)):
                if not left:
                    yield (
                        f"{queries.path}: of {len(chosen):,} questions, --train-share {plan.train_share:g} "
                        f"and --seed {plan.seed} leave none to {split}"
                    )


def _models(plan: EnsemblePlan, there: Sequence[GeneratorModel]) -> Iterator[str]:
    known = {model.name: model for model in there}
    yield from preflight.models(plan.models, there)
    for name in dict.fromkeys(plan.models):
        if name not in known:
            continue
        for member in plan.pool.members:
            needs = {required_augmentation(member)} - {None}
            needs |= {"parametric_knowledge"} if uses_knowledge(member) else set()
            for need in needs - set(known[name].augmentations):
                yield f"--pool {member}: the model {name} cannot {_ABILITIES[str(need)]}"


def _probe(
    plan: EnsemblePlan,
    member: str,
    question: str,
    client: Client,
    found: Preflight,
    versions: dict[str, str],
) -> None:
    """Search as one member does, without answering or observing."""
    options: AskOptions = {"expression": member, "num_answers": 0, "observe": False}
    if "@RR" in member:
        options["reranker"] = plan.pool.reranker
    with found.noting_refusals(f"--pool {member}"):
        result = client.answer(question, timeout=120, **options)
        if result.retrieved is not None and result.retrieved.index_version:
            versions[member] = result.retrieved.index_version
