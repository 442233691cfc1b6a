"""What calls are made with: questions, and where no retriever is called, the passages they go with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ragmesh.aio import AsyncClient
from ragmesh.bench.settings import Settings
from ragmesh.passage import Passage


@dataclass(frozen=True, slots=True)
class Item:
    """One question.

    Attributes:
        query_id: its id.
        question: as it is asked.
        references: right answers; none if they are not known.
        useful: ids of the useful passages; None if they are not known.
        passages: for calls past the retriever, best first.
    """

    query_id: str
    question: str
    references: tuple[str, ...] = ()
    useful: tuple[str, ...] | None = None
    passages: tuple[Passage, ...] = ()


def demo_items() -> list[Item]:
    """The questions of the demo corpus."""
    from ragmesh.demo import questions

    return [Item(one.id, one.question, one.answers, one.useful_passage_ids) for one in questions()]


async def with_passages(client: AsyncClient, items: Sequence[Item], settings: Settings) -> list[Item]:
    """The same questions with the best ``n`` passages of the collection, unless they bring as many.

    Raises:
        MeshError: the retriever does not give them.
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
