"""Whatever happens to a collection, it ranks as one made afresh of the same passages would."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from evenmesh.wire.errors import InvalidField
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_retriever.analyzer import analyzer as analyzer_of
from evenmesh_retriever.backends.bm25.weighting import LongWeighting, Lucene, Okapi, PlusWeighting, Weighting
from evenmesh_retriever.backends.segments.building.writer import SegmentIndexing
from evenmesh_retriever.backends.segments.files.records import record_of
from evenmesh_retriever.backends.segments.lexical import SegmentedIndex
from evenmesh_retriever.backends.segments.snapshot import SegmentSnapshot
from evenmesh_retriever.backends.segments.store import SegmentStore
from evenmesh_retriever.domain import (
    AnyOf,
    Condition,
    Filter,
    Lexical,
    NumberRange,
    Passage,
    TextRange,
)
from evenmesh_retriever.ports import TenantCollections

IDS = [f"p{number}" for number in range(30)] + ["é", "中", "z\U0001f600"]
# Few that most passages have, and many that one or none has.
WORDS = ["fox", "the", "common"] * 4 + ["dog", "cat", "a", "Straße", "ночь", *(f"w{n}" for n in range(20))]
texts = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
attributes = st.fixed_dictionaries(
    {},
    optional={
        "lang": st.sampled_from(["de", "en", "fr"]),
        "year": st.sampled_from(["1999", "2001", "2020", "?"]),
    },
)
passages = st.builds(Passage, st.sampled_from(IDS), st.sampled_from(["", "the fox"]), texts, attributes)
batches = st.lists(passages, min_size=1, max_size=15, unique_by=lambda passage: passage.id)
FILTERS = [
    None,
    Filter((Condition("lang", AnyOf(frozenset({"de", "en"}))),)),
    Filter((Condition("year", NumberRange(2000, None)), Condition("lang", TextRange(None, "en")))),
]
QUERIES = ["the fox", "common common dog", "nothing", "ночь STRASSE a"]
PREFIXES = ["", "p", "p1", "p29", "q", "é", "z", "\U0001f600"]
WEIGHTINGS: list[Weighting] = [Okapi(), Lucene(), PlusWeighting(), LongWeighting()]

analyzer = cache(analyzer_of)

Ranking = tuple[list[Passage], list[float]]


class PatientStore(SegmentStore):
    """Merges when it is reported to, so that segments and tombstones pile up in between."""

    may_merge = False

    def _tend(self, collection: Any) -> None:
        if self.may_merge:
            super()._tend(collection)

    async def merged(self) -> None:
        self.may_merge = True
        for collection in self._collections.values():
            self._tend(collection)
        await self.settled()
        self.may_merge = False


class Collection(RuleBasedStateMachine):
    """Ingests, deletions, restarts and merges in any order, beside a plain mapping."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Path(mkdtemp(prefix="evenmesh-"))
        self.model: dict[str, Passage] = {}
        self.fresh = 0

    def teardown(self) -> None:
        self.run(self.store.stop)
        self.loop.close()
        shutil.rmtree(self.root)

    def run(self, what: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return self.loop.run_until_complete(what())

    @property
    def collections(self) -> TenantCollections:
        return self.store.of(DEFAULT_TENANT)

    async def opened(self) -> None:
        self.store = PatientStore(self.root, SegmentIndexing(analyzer, None), lambda _: None)
        await self.store.start()

    @initialize()
    def begin(self) -> None:
        self.run(self.opened)
        self.run(lambda: self.collections.create("c", "", Lexical()))

    @rule(batch=batches)
    def ingest(self, batch: list[Passage]) -> None:
        report = self.run(lambda: self.collections.ingest("c", batch, create=False))
        known = {passage.id: self.model.get(passage.id) for passage in batch}
        assert report.added == sum(old is None for old in known.values())
        assert report.unchanged == sum(known[passage.id] == passage for passage in batch)
        assert report.replaced == len(batch) - report.added - report.unchanged
        self.model.update({passage.id: passage for passage in batch})

    @rule(ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=5, unique=True))
    def delete(self, ids: list[str]) -> None:
        report = self.run(lambda: self.collections.delete_passages("c", ids))
        assert report.deleted == sum(one in self.model for one in ids)
        assert report.missing == len(ids) - report.deleted
        for one in ids:
            self.model.pop(one, None)

    @rule()
    def merge(self) -> None:
        self.run(self.store.merged)

    @rule()
    def reopen(self) -> None:
        self.run(self.store.stop)
        self.run(self.opened)

    @invariant()
    def it_holds_what_it_should(self) -> None:
        with self.collections.lease("c") as snapshot:
            assert isinstance(snapshot, SegmentSnapshot)
            held = snapshot.passages(snapshot.rows().tolist())
            assert held == [self.model[one] for one in sorted(self.model)]
            for prefix in PREFIXES:
                begin = [one for page in snapshot.pages(3, prefix) for one in page]
                assert begin == [one for one in held if one.id.startswith(prefix)]
            assert len(snapshot) == len(self.model)
            assert snapshot.passage_bytes == sum(len(f) for p in held for f in record_of(p))
            tokens = analyzer("unicode").tokens
            assert snapshot.num_tokens == sum(len(tokens(p.content)) for p in held)

    @precondition(lambda self: self.model)
    @rule(weighting=st.sampled_from(WEIGHTINGS), where=st.sampled_from(FILTERS), n=st.integers(1, 20))
    def rank(self, weighting: Weighting, where: Filter | None, n: int) -> None:
        self.fresh += 1
        name = f"fresh{self.fresh}"
        self.run(lambda: self.collections.ingest(name, list(self.model.values()), create=True))
        for query in QUERIES:
            ours, theirs = (self.ranking(one, query, n, where, weighting) for one in ("c", name))
            if theirs is None:
                assert ours is None
                continue
            assert ours is not None
            assert ours[0] == theirs[0]
            allowed = [p for p in self.model.values() if where is None or where.allows(p.attributes)]
            assert len(ours[0]) == min(n, len(allowed))
            assert all(found in allowed for found in ours[0])
            np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-9, atol=0)
        self.run(lambda: self.collections.drop(name))

    def ranking(
        self, name: str, query: str, n: int, where: Filter | None, weighting: Weighting
    ) -> Ranking | None:
        with self.collections.lease(name) as snapshot:
            assert isinstance(snapshot, SegmentSnapshot)
            index = SegmentedIndex(snapshot, weighting)
            try:
                found = index.search(analyzer("unicode").tokens(query), n, where)
            except InvalidField:
                return None
            return snapshot.passages(found.rows.tolist()), found.scores.tolist()


Collection.TestCase.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
TestAnySequence = pytest.mark.timeout(600)(Collection.TestCase)
