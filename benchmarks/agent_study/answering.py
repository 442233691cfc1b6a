"""Agents that read in different ways, and the search engine that they share, in this process.

A mesh as :class:`evenmesh_training.ium.answer_collector.AnswerCollector` asks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Final

import torch

from benchmarks.agent_study.sets import LEXICAL, NEAREST, PEOPLE, READER, World, sentences
from benchmarks.rerank_table.judged_sets import JudgedSet
from benchmarks.rerank_table.scoring import FirstStages, standardized
from evenmesh_core.arrays import FloatArray
from evenmesh_generator.domain import Passage as Shown
from evenmesh_generator.pointer.reader import PointerReader
from evenmesh_kit.compute.placement import multiplies_bfloat16
from evenmesh_reranker.domain import Passage
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.bm25.csr import CsrIndex
from evenmesh_retriever.backends.bm25.postings import build
from evenmesh_retriever.backends.bm25.weighting import Lucene
from evenmesh_retriever.backends.dense.sentence_encoder import SentenceEncoder
from evenmesh_training.ium.plan import AgentTable
from evenmesh_training.ium.result_cache import Candidates

BM25: Final = "bm25"
HYBRID: Final = "hybrid"
_TOGETHER: Final = 16


class _Itself(dict[str, str]):
    """Texts of questions that are their own ids."""

    def __missing__(self, question: str) -> str:
        return question


class Agents:
    """The agents of a world.

    Args:
        world: what is searched, and what people say.
        home: folder for vectors of passages.
    """

    def __init__(self, world: World, home: Path = Path("build/agent-study")) -> None:
        self._home = home
        self._passages = world.passages
        self._by_id = {one.id: one for one in self._passages}
        self._labels = world.labels
        self._words = analyzer("english")
        contents = (self._words.tokens(f"{one.title} {one.text}") for one in self._passages)
        self._index = CsrIndex(build(contents), Lucene())
        self._vectors: dict[str, FloatArray] = {}
        self._standardized: dict[str, dict[str, float]] = {}

    async def candidates(self, question: str, *, retriever: str, depth: int) -> Candidates:
        """Return a retriever's best passages for a question."""
        return self.search(question, depth, retriever)

    def search(self, question: str, depth: int, retriever: str = BM25) -> Candidates:
        """Return the best passages of BM25 (Lucene's idf, English analyzer) or the standardized hybrid."""
        if retriever == HYBRID:
            if question not in self._standardized:
                row = self._stages.found(question)
                self._standardized[question] = standardized(row.bm25, row.dense)
            scores = self._standardized[question]
            best = sorted(scores, key=lambda one: (-scores[one], one))[:depth]
            return Candidates(tuple(self._by_id[one] for one in best), tuple(scores[one] for one in best))
        if retriever != BM25:
            raise ValueError(retriever)
        found = self._index.search(self._words.tokens(question), depth)
        passages = tuple(self._passages[row] for row in found.rows.tolist())
        return Candidates(passages, tuple(found.scores.tolist()))

    @cached_property
    def _stages(self) -> FirstStages:
        """The first stages of an ask without options; encodes all passages, once for all runs in the home."""
        passages = [Shown(one.id, one.title, one.text) for one in self._passages]
        return FirstStages(JudgedSet("agents", passages, _Itself(), {}), self._home)

    async def answers(
        self, agent: AgentTable, question: str, contexts: Sequence[Sequence[Passage]], *, beams: int = 1
    ) -> list[str | None]:
        """Return an agent's answer from each context, which is one passage."""
        return list(self.alone(agent, question, [passage for (passage,) in contexts]))

    def alone(self, agent: AgentTable, question: str, passages: Sequence[Passage]) -> list[str]:
        """Return an agent's answer from each passage alone."""
        if agent.model == READER:
            return self._read(question, passages)
        if agent.model == PEOPLE:
            said = self._labels.get(question, {})
            return [said.get(one.id, "") for one in passages]
        choose_one = {NEAREST: self._nearest, LEXICAL: self._lexical}[agent.model]
        return choose_one(question, [sentences(one.text) or [one.text] for one in passages])

    def _read(self, question: str, passages: Sequence[Passage]) -> list[str]:
        """Return the spans that the bundled model copies."""
        found: list[str] = []
        for begin in range(0, len(passages), _TOGETHER):
            some = passages[begin : begin + _TOGETHER]
            encodings = _reader().encode_many([(question, [(one.title, one.text)]) for one in some])
            found += [one.text for one in _reader().answer_many(encodings)]
        return found

    def _nearest(self, question: str, passages: Sequence[Sequence[str]]) -> list[str]:
        """Return from each passage the sentence whose vector is nearest to the question's."""
        missing = list(dict.fromkeys(one for given in passages for one in given if one not in self._vectors))
        if missing:
            made = _encoder().encode_passages(missing, lambda _: None)
            self._vectors.update(zip(missing, made, strict=True))
        asked = _encoder().encode_query(question)
        return [max(given, key=lambda one: float(self._vectors[one] @ asked)) for given in passages]

    def _lexical(self, question: str, passages: Sequence[Sequence[str]]) -> list[str]:
        """Return from each passage the first sentence that has most of the question's words."""
        asked = set(self._words.tokens(question))
        return [max(given, key=lambda one: len(asked & set(self._words.tokens(one)))) for given in passages]


@cache
def _reader() -> PointerReader:
    return PointerReader.from_folder(bfloat16=multiplies_bfloat16(torch.device("cpu")))


@cache
def _encoder() -> SentenceEncoder:
    return SentenceEncoder(device="cpu")
