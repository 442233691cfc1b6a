"""Everything that is wrong with an evaluation, found before anything is asked."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from meshkit.errors import MeshError
from ragmesh.addresses import Addresses
from ragmesh.audits.checks import Findings
from ragmesh.client import Client
from ragmesh.events import Failed
from ragmesh.generation import Generation
from ragmesh.inventory import GeneratorModel, models
from ragmesh.passage import Passage
from ragmesh.rag_eval.plan import EvaluationPlan
from ragmesh.request import AskOptions

MOST_PASSAGES: Final = 100
"""What a ranking may hold to be told whole."""

_MOST: Final = 10
_ROUNDS: Final = frozenset({"bfloat16", "float16"})
_REFUSALS: Final = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "OUT_OF_RANGE"})
_LONGEST_QUESTION: Final = 8192


def problems(plan: EvaluationPlan) -> list[str]:
    """All that is wrong with a plan by itself, a line each; no mesh is asked."""
    return [*_questions(plan), *_numbers(plan)]


def check(plan: EvaluationPlan, client: Client) -> Findings:
    """Looks for everything that is wrong with a plan and its mesh.

    Args:
        plan: what is to be run; its files have been read.
        client: of the mesh.

    Raises:
        MeshError: the mesh does not answer.
    """
    there = models(client.addresses)
    found = [*problems(plan), *_models(plan, there)]
    if any(asked.questions.questions for asked in plan.asked):
        collections = {one.name: one.num_passages for one in client.collections()}
        found.extend(_collections(plan, collections))
        found.extend(_probes(plan, client, collections))
        known = [model for model in plan.models if any(model == one.name for one in there)]
        found.extend(asyncio.run(_refused(plan, known, client.addresses)))
    return Findings(tuple(found), tuple(_notes(plan, there)))


def _questions(plan: EvaluationPlan) -> Iterator[str]:
    names = [asked.questions.name for asked in plan.asked]
    yield from _listed("these data sets are there twice", _twice(names))
    for asked in plan.asked:
        questions = asked.questions
        yield from map(str, questions.problems)
        if not questions.questions and not questions.problems:
            yield f"{questions.path}: has no questions"
        yield from _listed(
            f"{questions.path}: nobody knows what is right of these questions: they have no references, no "
            "options, and are not said to be unanswerable",
            [one.query_id for one in questions.questions if not one.judged],
        )
        yield from _listed(
            f"{questions.path}: with their options these are longer than {_LONGEST_QUESTION:,} bytes",
            [one.query_id for one in questions.questions if len(one.asked.encode()) > _LONGEST_QUESTION],
        )


def _numbers(plan: EvaluationPlan) -> Iterator[str]:
    for option, numbers in (("--n", plan.depths), ("--k", plan.contexts)):
        for number in numbers:
            if not 1 <= number <= MOST_PASSAGES:
                yield f"{option} {number}: allowed: 1 to {MOST_PASSAGES}"
        yield from _listed(f"{option}: these are there twice", _twice([str(one) for one in numbers]))
    for k in plan.contexts:
        if k > min(plan.depths):
            yield f"--k {k}: more passages than --n {min(plan.depths)} retrieves"
    for option, names in (
        ("--retriever", plan.retrievers),
        ("--reranker", plan.rerankers),
        ("--model", plan.models),
    ):
        yield from _listed(f"{option}: these are there twice", _twice(names))


def _models(plan: EvaluationPlan, there: Sequence[GeneratorModel]) -> Iterator[str]:
    names = [model.name for model in there]
    for model in plan.models:
        if model not in names:
            yield f"--model {model}: there is no such model; there are {', '.join(names)}"


def _collections(plan: EvaluationPlan, there: Mapping[str, int]) -> Iterator[str]:
    for asked in plan.asked:
        if asked.collection not in there:
            makes = "--ingest makes it" if asked.questions.passages else "--ingest --passages FILE makes it"
            yield (
                f"{asked.questions.name}: the mesh has no collection {asked.collection!r}; {makes}, or "
                "--collection names another"
            )
        elif there[asked.collection] == 0:
            yield f"{asked.questions.name}: the collection {asked.collection!r} is empty"


def _probes(plan: EvaluationPlan, client: Client, there: Mapping[str, int]) -> Iterator[str]:
    """Asks every retriever of every collection, and every reranker, for one passage."""
    told: set[str] = set()
    tried: list[tuple[str, AskOptions]] = [
        (retriever, {"collection": asked.collection, "retriever": retriever, "reranker": "none"})
        for asked in plan.asked
        for retriever in dict.fromkeys(plan.retrievers)
        if there.get(asked.collection)
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
            if error.code.name not in _REFUSALS:
                raise
            if str(error) not in told:
                told.add(str(error))
                yield f"{name}: {error}"


async def _refused(plan: EvaluationPlan, names: Sequence[str], addresses: Addresses) -> list[str]:
    """What the models say of the template and the decoding, by writing a token."""
    told: dict[str, None] = {}
    async with Generation(addresses) as generation:
        for name in names:
            try:
                (outcome,) = await generation.answers(
                    "Who?",
                    [[Passage("p", "I.")]],
                    model=name,
                    template=plan.template,
                    decoding=plan.decoding,
                    timeout=120,
                )
            except MeshError as error:
                if error.code.name not in _REFUSALS:
                    raise
                told[f"{name}: {error}"] = None
                continue
            if isinstance(outcome, Failed) and outcome.code in _REFUSALS:
                told[f"{name}: {outcome.message}"] = None
    return list(told)


def _notes(plan: EvaluationPlan, there: Sequence[GeneratorModel]) -> Iterator[str]:
    for model in there:
        if model.name in plan.models and model.dtype in _ROUNDS:
            yield (
                f"{model.name} computes in {model.dtype}: another batch may round to another token, so a run "
                "that is resumed or repeated may differ in an answer; with RAGMESH_GENERATOR_DTYPE=float32 "
                "it does not"
            )
    for asked in plan.asked:
        for why, count in asked.questions.left_out.items():
            yield f"{asked.questions.name}: {count:,} questions are left out: {why}"


def _twice(names: Sequence[str]) -> list[str]:
    return sorted({one for one in names if names.count(one) > 1})


def _listed(what: str, names: Sequence[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - _MOST:,} more" if len(names) > _MOST else ""
        yield f"{what}: {', '.join(names[:_MOST])}{more}"
