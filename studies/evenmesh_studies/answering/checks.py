"""Check an evaluation before anything is asked."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from evenmesh import Client
from evenmesh.inventory import models
from evenmesh.types.collection import Collection
from evenmesh.types.passage import Passage
from evenmesh.types.request import AskOptions
from evenmesh_studies.answering.plan import AnsweringPlan
from evenmesh_studies.runner import preflight
from evenmesh_studies.runner.preflight import Preflight, listed, repeated

MOST_PASSAGES: Final = 100
"""Longest ranking that a mesh returns whole."""

_LONGEST_QUESTION: Final = 8192


def problems(plan: AnsweringPlan) -> list[str]:
    """Return the problems of a plan that need no mesh to see, a line each."""
    return [*_questions(plan), *_numbers(plan)]


def check(
    plan: AnsweringPlan, client: Client, others: Sequence[str] = (), *, ingests: bool = False
) -> Preflight:
    """Return all problems of a plan on its mesh.

    Args:
        plan: to be run; its files have been read.
        client: of the mesh.
        others: problems found before, reported with the rest.
        ingests: whether collections are loaded afterwards, so that their present content does not matter.

    Raises:
        MeshError: the mesh does not answer.
    """
    there = models(client.addresses)
    found = Preflight(
        [*others, *problems(plan), *preflight.models(plan.models, there)],
        [*preflight.rounding(plan.models, there), *_left_out(plan)],
    )
    collections = {} if ingests else {one.name: one for one in client.collections()}
    if not ingests:
        found.problems.extend(_collections(plan, collections))
    _probe(plan, client, collections, found)
    if not found.problems:
        questions = (one for asked in plan.asked for one in asked.questions.questions)
        for template in dict.fromkeys(plan.template or one.template for one in questions):
            found.problems.extend(
                asyncio.run(
                    preflight.generation_problems(
                        plan.models, client.addresses, template=template, decoding=plan.decoding
                    )
                )
            )
    return found


def _questions(plan: AnsweringPlan) -> Iterator[str]:
    yield from repeated("data sets given", [asked.questions.name for asked in plan.asked])
    for asked in plan.asked:
        questions = asked.questions
        yield from map(str, questions.problems)
        if not questions.questions and not questions.problems:
            yield f"{questions.path}: has no questions"
        yield from listed(
            f"{questions.path}: these questions cannot be judged: they have no references and no options, "
            "and are not marked unanswerable",
            [one.query_id for one in questions.questions if not one.judged],
        )
        yield from listed(
            f"{questions.path}: these questions with their options exceed {_LONGEST_QUESTION:,} bytes",
            [one.query_id for one in questions.questions if len(one.asked.encode()) > _LONGEST_QUESTION],
        )
        yield from listed(
            f"{questions.path}: these questions are only white space",
            [one.query_id for one in questions.questions if not one.asked.strip()],
        )


def _numbers(plan: AnsweringPlan) -> Iterator[str]:
    for option, numbers in (("--n", plan.depths), ("--k", plan.contexts)):
        for number in numbers:
            if not 1 <= number <= MOST_PASSAGES:
                yield f"{option} {number}: allowed: 1 to {MOST_PASSAGES}"
        yield from repeated(f"{option}: given", [str(one) for one in numbers])
    for k in plan.contexts:
        if k > min(plan.depths):
            yield f"--k {k}: more passages than --n {min(plan.depths)} retrieves"
    for option, names in (("--retriever", plan.retrievers), ("--reranker", plan.rerankers)):
        yield from repeated(f"{option}: given", names)


def _collections(plan: AnsweringPlan, there: Mapping[str, Collection]) -> Iterator[str]:
    for asked in plan.asked:
        if asked.collection not in there:
            makes = "--ingest makes it" if asked.questions.passages else "--ingest --passages FILE makes it"
            yield (
                f"{asked.questions.name}: the mesh has no collection {asked.collection!r}; {makes}, or "
                "--collection names another"
            )
        elif there[asked.collection].num_passages == 0:
            yield f"{asked.questions.name}: the collection {asked.collection!r} is empty"
    names = dict.fromkeys(asked.collection for asked in plan.asked)
    yield from preflight.embedding(there[name] for name in names if name in there)


def _probe(plan: AnsweringPlan, client: Client, there: Mapping[str, Collection], found: Preflight) -> None:
    """Ask every retriever of every collection that holds passages, and every reranker, for one passage."""
    own: AskOptions = {"passages": [Passage("p", "I.")]}
    filled = [
        asked.collection
        for asked in plan.asked
        if asked.collection in there and there[asked.collection].num_passages
    ]
    sources: list[AskOptions] = [{"collection": name} for name in filled] or [own]
    calls: list[tuple[str, AskOptions]] = [
        (retriever, {**source, "retriever": retriever, "reranker": "none"})
        for source in sources
        for retriever in dict.fromkeys(plan.retrievers)
    ]
    calls += [
        (reranker, {**own, "reranker": reranker})
        for reranker in dict.fromkeys(plan.rerankers)
        if reranker != "none"
    ]
    for name, options in calls:
        options |= {"depth": 1, "rerank_depth": 1, "k": 1, "num_answers": 0, "observe": False}
        with found.noting_refusals(name):
            client.answer("Who?", timeout=120, **options)


def _left_out(plan: AnsweringPlan) -> Iterator[str]:
    for asked in plan.asked:
        for why, count in asked.questions.left_out.items():
            yield f"{asked.questions.name}: {count:,} questions are left out: {why}"
