"""Everything that is wrong with an evaluation, found before anything is asked."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from meshkit.errors import MeshError
from ragmesh import preflight
from ragmesh.client import Client
from ragmesh.collection import Collection
from ragmesh.inventory import models
from ragmesh.passage import Passage
from ragmesh.preflight import Findings, listed, twice
from ragmesh.rag_eval.plan import EvaluationPlan
from ragmesh.request import AskOptions

MOST_PASSAGES: Final = 100
"""What a ranking may hold to be told whole."""

_LONGEST_QUESTION: Final = 8192


def problems(plan: EvaluationPlan) -> list[str]:
    """All that is wrong with a plan by itself, a line each; no mesh is asked."""
    return [*_questions(plan), *_numbers(plan)]


def check(
    plan: EvaluationPlan, client: Client, others: Sequence[str] = (), *, ingests: bool = False
) -> Findings:
    """Looks for everything that is wrong with a plan and its mesh.

    Args:
        plan: what is to be run; its files have been read.
        client: of the mesh.
        others: problems that were found before, to be told with the rest.
        ingests: whether collections are loaded when nothing is wrong: what they hold now is not looked at.

    Raises:
        MeshError: the mesh does not answer.
    """
    there = models(client.addresses)
    found = [*others, *problems(plan), *preflight.models(plan.models, there)]
    collections = {} if ingests else {one.name: one for one in client.collections()}
    if not ingests:
        found.extend(_collections(plan, collections))
    found.extend(_probes(plan, client, collections))
    if not found:
        found = asyncio.run(
            preflight.unwritten(plan.models, client.addresses, template=plan.template, decoding=plan.decoding)
        )
    return Findings(tuple(found), (*preflight.rounding(plan.models, there), *_left_out(plan)))


def _questions(plan: EvaluationPlan) -> Iterator[str]:
    names = [asked.questions.name for asked in plan.asked]
    yield from listed("these data sets are there twice", twice(names))
    for asked in plan.asked:
        questions = asked.questions
        yield from map(str, questions.problems)
        if not questions.questions and not questions.problems:
            yield f"{questions.path}: has no questions"
        yield from listed(
            f"{questions.path}: nobody knows what is right of these questions: they have no references, no "
            "options, and are not said to be unanswerable",
            [one.query_id for one in questions.questions if not one.judged],
        )
        yield from listed(
            f"{questions.path}: with their options these are longer than {_LONGEST_QUESTION:,} bytes",
            [one.query_id for one in questions.questions if len(one.asked.encode()) > _LONGEST_QUESTION],
        )


def _numbers(plan: EvaluationPlan) -> Iterator[str]:
    for option, numbers in (("--n", plan.depths), ("--k", plan.contexts)):
        for number in numbers:
            if not 1 <= number <= MOST_PASSAGES:
                yield f"{option} {number}: allowed: 1 to {MOST_PASSAGES}"
        yield from listed(f"{option}: these are there twice", twice([str(one) for one in numbers]))
    for k in plan.contexts:
        if k > min(plan.depths):
            yield f"--k {k}: more passages than --n {min(plan.depths)} retrieves"
    for option, names in (("--retriever", plan.retrievers), ("--reranker", plan.rerankers)):
        yield from listed(f"{option}: these are there twice", twice(names))


def _collections(plan: EvaluationPlan, there: Mapping[str, Collection]) -> Iterator[str]:
    for asked in plan.asked:
        if asked.collection not in there:
            makes = "--ingest makes it" if asked.questions.passages else "--ingest --passages FILE makes it"
            yield (
                f"{asked.questions.name}: the mesh has no collection {asked.collection!r}; {makes}, or "
                "--collection names another"
            )
        elif there[asked.collection].num_passages == 0:
            yield f"{asked.questions.name}: the collection {asked.collection!r} is empty"
    asked_of = dict.fromkeys(asked.collection for asked in plan.asked)
    yield from preflight.embedding(there[name] for name in asked_of if name in there)


def _probes(plan: EvaluationPlan, client: Client, there: Mapping[str, Collection]) -> Iterator[str]:
    """Asks every retriever of every collection that holds something, and every reranker, for one passage."""
    told: set[str] = set()
    tried: list[tuple[str, AskOptions]] = [
        (retriever, {"collection": asked.collection, "retriever": retriever, "reranker": "none"})
        for asked in plan.asked
        for retriever in dict.fromkeys(plan.retrievers)
        if asked.collection in there and there[asked.collection].num_passages
    ]
    if not tried:
        tried = [
            (retriever, {"passages": [Passage("p", "I.")], "retriever": retriever, "reranker": "none"})
            for retriever in dict.fromkeys(plan.retrievers)
        ]
    # Whatever else is wrong, one passage can be reranked.
    tried += [
        (reranker, {"passages": [Passage("p", "I.")], "reranker": reranker})
        for reranker in dict.fromkeys(plan.rerankers)
        if reranker != "none"
    ]
    for name, where in tried:
        one: AskOptions = {"depth": 1, "rerank_depth": 1, "k": 1, "num_answers": 0, "observe": False}
        try:
            client.answer("Who?", timeout=120, **(where | one))
        except MeshError as error:
            if error.code.name not in preflight.REFUSALS:
                raise
            if str(error) not in told:
                told.add(str(error))
                yield f"{name}: {error}"


def _left_out(plan: EvaluationPlan) -> Iterator[str]:
    for asked in plan.asked:
        for why, count in asked.questions.left_out.items():
            yield f"{asked.questions.name}: {count:,} questions are left out: {why}"
