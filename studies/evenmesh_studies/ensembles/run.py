"""Answer one question with every retriever of a pool."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from evenmesh import AsyncClient
from evenmesh.addresses import Addresses
from evenmesh.types.events import Answer, Failed, Ranked, Retrieved
from evenmesh.types.passage import Passage
from evenmesh.wire.errors import Unavailable
from evenmesh_lab.files import FileError
from evenmesh_studies.ensembles.plan import EnsemblePlan, EnsembleUnit, MemberAnswer, records
from evenmesh_studies.ensembles.pool import reports_context
from evenmesh_studies.runner import Perform, Result
from evenmesh_studies.runner.events import collect


@asynccontextmanager
async def connected(
    plan: EnsemblePlan, folder: Path, addresses: Addresses
) -> AsyncIterator[Perform[EnsembleUnit]]:
    """Give a function that does one unit of a plan, within a connection to the mesh."""
    async with AsyncClient(addresses) as client:
        yield partial(answer, client, plan, folder)


async def answer(client: AsyncClient, plan: EnsemblePlan, folder: Path, unit: EnsembleUnit) -> Result:
    """Answer one question with all members. A question that any member cannot answer has no records.

    Raises:
        MeshError: the mesh refuses the question, or fails in a way that may pass.
        FileError: an index changed since the run began.
    """
    members = plan.pool.members
    passages: list[Passage] = []
    ranked: dict[str, Ranked] = {}
    answers: dict[str, Answer] = {}
    refused: set[str] = set()
    events = client.ask(unit.query.question, timeout=plan.timeout, **plan.options(unit))
    for event in await collect(events, until_done="ask"):
        match event:
            case Retrieved():
                passages.extend(event.passages)
                _require_same_index(plan, event, folder)
            case Ranked():
                ranked[event.member] = event
            case Answer():
                answers[event.member] = event
            case Failed():
                refused.add(event.member)
            case _:
                pass
    if any(one not in answers and one not in refused for one in members):
        raise Unavailable("CUT_OFF", "the orchestrator ended the ask early")
    facts = _facts(members, ranked, answers)
    if refused:
        names = ", ".join(one for one in members if one in refused)
        question = f"{unit.query.query_id!r} of {unit.dataset}"
        return Result((), facts, [f"{question} is left out: {unit.model} cannot answer it with {names}"])
    found = {
        member: MemberAnswer(
            answers[member].text,
            _context(passages, ranked.get(member)) if reports_context(member) else None,
        )
        for member in members
    }
    return Result(records(unit, members, found), facts)


def _require_same_index(plan: EnsemblePlan, event: Retrieved, folder: Path) -> None:
    before = plan.versions.get(event.retriever, event.index_version)
    if event.index_version and before != event.index_version:
        raise FileError(
            folder,
            None,
            f"the index of {event.retriever} was {before!r} and is {event.index_version!r} now: results of "
            "both do not go together; begin again in another folder",
        )


def _facts(
    members: Sequence[str], ranked: Mapping[str, Ranked], answers: Mapping[str, Answer]
) -> dict[str, str]:
    """Return versions in the order of the members, whatever order answers came in."""
    facts: dict[str, str] = {}
    for member in members:
        if (settled := ranked.get(member)) is not None and settled.reranker not in ("", "none"):
            facts[f"reranker of {member}"] = f"{settled.reranker} {settled.model_version}".strip()
    for member in members:
        if (answer := answers.get(member)) is not None:
            facts[f"version of {answer.model}"] = answer.model_version
            facts[f"engine of {answer.model}"] = answer.engine
    return facts


def _context(passages: Sequence[Passage], ranked: Ranked | None) -> str:
    """Return the text the generator was given; empty where it was given no passage."""
    if ranked is None or not ranked.contexts:
        return ""
    shown = [passages[index] for index in ranked.contexts[0]]
    return "\n\n".join(f"{one.title}\n{one.text}" if one.title else one.text for one in shown)
