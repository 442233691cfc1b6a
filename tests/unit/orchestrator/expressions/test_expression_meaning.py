"""What any expression shows is what it says, worked out list by list."""

from __future__ import annotations

import asyncio
import zlib

from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_orchestrator.domain import Ranked, Retrieved
from evenmesh_orchestrator.expressions.notation import (
    Expression,
    Group,
    ParametricKnowledge,
    Selection,
    Source,
)
from tests.unit.orchestrator.fakes import (
    SOURCES,
    FakeGenerator,
    FakeObserver,
    FakeReranker,
    FakeRetriever,
    Mesh,
    ask_expression,
    passage,
)

HAS = {"wiki": [f"w{i}" for i in range(5)], "news": ["n0", "n1"], "searx": [f"s{i}" for i in range(4)]}
LISTS = {
    "Wiki": [f"wiki/{name}" for name in HAS["wiki"]],
    "WikiDense": [f"wiki/{name}" for name in HAS["wiki"]],
    "News": [f"news/{name}" for name in HAS["news"]],
    "SE": [f"web:searx/{name}" for name in HAS["searx"]],
}
KNOWLEDGE = ["PK/1"]


def _score(name: str) -> float:
    """A score of a passage that has nothing to do with where it stands; some are equal."""
    return zlib.crc32(name.encode()) % 5 / 5


SCORES = {name: _score(name) for names in (*LISTS.values(), KNOWLEDGE) for name in names}


def _shown(parts: tuple[Selection, ...]) -> list[str]:
    """The passages of a concatenation, straight from what the notation means."""
    shown: list[str] = []
    for part in parts:
        match part.base:
            case Source(name):
                names = LISTS[name]
            case ParametricKnowledge():
                names = KNOWLEDGE
            case Group(inner):
                names = _shown(inner)
        if part.reranked:
            names = sorted(names, key=lambda one: (-SCORES[one], one))
        shown += [one for one in names[: part.keep] if one not in shown]
    return shown


def _selections(bases: st.SearchStrategy[object]) -> st.SearchStrategy[Selection]:
    return st.builds(Selection, bases, st.booleans(), st.none() | st.integers(1, 6))  # type: ignore[arg-type]


LEAVES = st.sampled_from([*map(Source, LISTS), ParametricKnowledge()])
BASES = st.recursive(
    LEAVES,
    lambda inner: st.builds(Group, st.lists(_selections(inner), min_size=1, max_size=3).map(tuple)),
    max_leaves=3,
)
# Without a bound two searches could give more than a hundred; one of twenty-five each cannot.
BOUNDED = _selections(BASES).map(lambda one: Selection(one.base, one.reranked, one.keep or 25))
PARTS = st.lists(BOUNDED, min_size=1, max_size=3).map(tuple)


@settings(deadline=None)
@given(PARTS, st.booleans())
def test_what_is_shown_is_what_the_notation_means(parts: tuple[Selection, ...], compressed: bool) -> None:
    expression = Expression(parts, compressed)

    async def run() -> tuple[list[str], list[str]]:
        pool = TenantPool(1, "test")
        try:
            mesh = Mesh(FakeRetriever(), FakeReranker(SCORES), FakeGenerator(), FakeObserver(), pool)
            mesh.retriever.places = {place: [passage(name) for name in names] for place, names in HAS.items()}
            events = await mesh.run(ask_expression(str(expression)))
        finally:
            pool.close()
        (found,) = (event.pool for event in events if isinstance(event, Retrieved))
        (ranked,) = (event for event in events if isinstance(event, Ranked))
        (row,) = ranked.contexts.rows
        given_to = [one.id for one in mesh.generator.streamed[0].passages]
        return [found.passages[i].id for i in row], given_to

    context, given_to = asyncio.run(run())
    assert context == given_to == _shown(SOURCES.read(str(expression)).parsed.parts)
    assert len(set(context)) == len(context)
