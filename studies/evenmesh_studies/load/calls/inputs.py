"""Questions for calls, with passages where no retriever is called."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evenmesh import AsyncClient
from evenmesh.types.passage import Passage
from evenmesh_studies.load.settings import CallSettings


@dataclass(frozen=True, slots=True)
class Item:
    """One question.

    Attributes:
        query_id: id.
        question: as it is asked.
        references: right answers; empty if unknown.
        useful: ids of the useful passages; None if unknown.
        passages: for calls past the retriever, best first.
    """

    query_id: str
    question: str
    references: tuple[str, ...] = ()
    useful: tuple[str, ...] | None = None
    passages: tuple[Passage, ...] = ()


def demo_items() -> list[Item]:
    """Return the questions of the demo corpus."""
    from evenmesh_studies.demo import questions

    return [Item(one.id, one.question, one.answers, one.useful_passage_ids) for one in questions()]


async def with_passages(client: AsyncClient, items: Sequence[Item], settings: CallSettings) -> list[Item]:
    """Return the questions with the best ``n`` passages of the collection, unless they bring as many.

    Raises:
        MeshError: the retriever fails.
    """
    found = []
    for item in items:
        if len(item.passages) >= settings.n:
            found.append(item)
            continue
        pool = await client.retrieve(
            item.question,
            collection=settings.collection,
            retriever=settings.retriever,
            depth=settings.n,
            k=settings.n,
            timeout=settings.timeout_s,
        )
        found.append(replace(item, passages=tuple(pool.passages[place] for place in pool.rankings[0])))
    return found
