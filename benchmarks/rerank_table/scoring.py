"""Score the candidates of questions with every first stage and every reranker, and keep the scores."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

import evenmesh_models
from benchmarks.generation import BUNDLED, in_process
from benchmarks.rerank_table import judged_sets
from benchmarks.rerank_table.judged_sets import JudgedSet
from evenmesh.wire.errors import InvalidField
from evenmesh_core.arrays import FloatArray
from evenmesh_core.fusion import reciprocal_rank_fusion, weighted_score_fusion
from evenmesh_generator.domain import Passage, RelevanceRequest
from evenmesh_generator.ports import Cancellation, LanguageModel
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.placement import Placement
from evenmesh_lab.files.records import replace_file
from evenmesh_reranker.backends.cross_encoder import CrossEncoderReranker
from evenmesh_reranker.backends.encoder import EncoderLoader
from evenmesh_reranker.bundled import assemble
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.domain import Passage as Candidate
from evenmesh_reranker.ports import Assigned
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.bm25.csr import CsrIndex
from evenmesh_retriever.backends.bm25.postings import build
from evenmesh_retriever.backends.bm25.weighting import Lucene
from evenmesh_retriever.backends.dense.sentence_encoder import SentenceEncoder

FOUND: Final = 100
"""Passages that each first stage finds."""
DEPTH: Final = 30
"""Passages that are reranked, the best of the hybrid; with pools all of them."""
RERANKERS: Final = ("cosine", "rankrag", "cross-encoder")


@dataclass(frozen=True)
class Scores:
    """What a question's passages were given.

    Attributes:
        query: id of the question.
        bm25: scores of what BM25 finds, by id, best first.
        dense: likewise cosines.
        candidates: ids of the passages that were reranked.
        reranked: by reranker the score of each candidate; a probability, but for the cosine.
        seconds: what each reranker took.
    """

    query: str
    bm25: dict[str, float]
    dense: dict[str, float]
    candidates: list[str]
    reranked: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class Journal:
    """The scores of a data set in a file, a line each; those of other questions or models are begun anew.

    Args:
        path: of the file.
        about: what the scores depend on.
    """

    def __init__(self, path: Path, about: str) -> None:
        self._path = path
        self._about = about

    def read(self) -> dict[str, Scores]:
        """Return what is there, by question."""
        if not self._path.is_file():
            return {}
        first, *lines = self._path.read_text(encoding="utf-8").splitlines() or [""]
        if first != self._about:
            return {}
        found = {}
        for line in lines:
            try:
                row = Scores(**json.loads(line))
            except (ValueError, TypeError):
                break  # the last line of a run that was stopped
            found[row.query] = row
        return found

    @contextmanager
    def continued(self) -> Iterator[Any]:
        """Yield a function that adds the scores of a question; what was there stays."""
        known = self.read()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".new")
        with beside.open("w", encoding="utf-8") as lines:
            lines.write(self._about + "\n")
            for row in known.values():
                lines.write(json.dumps(asdict(row)) + "\n")
        beside.rename(self._path)
        with self._path.open("a", encoding="utf-8") as lines:

            def add(row: Scores) -> None:
                lines.write(json.dumps(asdict(row)) + "\n")
                lines.flush()

            yield add


def score(judged: JudgedSet, home: Path, cross_encoder: Path | None = None) -> dict[str, Scores]:
    """Return the scores of every question of a data set; those in ``home`` are not computed again.

    Args:
        judged: the data set.
        home: folder of the scores.
        cross_encoder: folder of a cross-encoder to rank with instead of the bundled models.
    """
    content = [(one.id, one.title, one.text) for one in judged.passages]
    asked = json.dumps([FOUND, DEPTH, RERANKERS, sorted(judged.queries.items()), content])
    models = _bundled() if cross_encoder is None else digest(cross_encoder)
    about = f"{judged.name} {hashlib.sha256(asked.encode()).hexdigest()[:16]} {models}"
    suffix = "" if cross_encoder is None else f"-{cross_encoder.parent.name}"
    journal = Journal(home / f"{judged.name}{suffix}.jsonl", about)
    known = journal.read()
    missing = [one for one in judged.queries if one not in known]
    if not missing:
        return known
    torch.set_num_threads(1)
    with ExitStack() as stack:
        add = stack.enter_context(journal.continued())
        searched = FirstStages(judged, home)
        judges = stack.enter_context(_judges(home, cross_encoder))
        for query in missing:
            row = searched.found(query)
            texts = [searched.passages[one] for one in row.candidates]
            row.reranked["cosine"] = searched.cosines(query, row.candidates)
            for name, judge in judges.items():
                began = time.perf_counter()
                row.reranked[name] = judge(judged.queries[query], texts)
                row.seconds[name] = time.perf_counter() - began
            add(row)
            known[query] = row
    return known


def score_set(name: str, questions: int, home: Path) -> int:
    """Score a data set, and return its number of questions; for a process of its own."""
    return len(score(judged_sets.load(name, questions), home))


def encoded(encoder: SentenceEncoder, contents: Sequence[str], home: Path) -> FloatArray:
    """Return the vectors of texts [n, dimension]; ``home`` keeps them."""
    digest = hashlib.sha256("\0".join([encoder.fingerprint, *contents]).encode()).hexdigest()[:16]
    path = home / "vectors" / f"{digest}.npy"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        vectors = encoder.encode_passages(contents, lambda _: None)

        def save(beside: Path) -> None:
            with beside.open("wb") as file:
                np.save(file, vectors)

        replace_file(path, save)
    found: FloatArray = np.load(path)
    return found


class FirstStages:
    """The first stages over a data set, and its vectors."""

    def __init__(self, judged: JudgedSet, home: Path) -> None:
        self._judged = judged
        self._ids = [one.id for one in judged.passages]
        self.passages = dict(zip(self._ids, judged.passages, strict=True))
        self._words = analyzer("english")
        contents = [f"{one.title} {one.text}" if one.title else one.text for one in judged.passages]
        self._index = CsrIndex(build(self._words.tokens(one) for one in contents), Lucene())
        self._encoder = SentenceEncoder()
        self._vectors = encoded(self._encoder, contents, home)
        self._row = {id_: row for row, id_ in enumerate(self._ids)}

    def found(self, query: str) -> Scores:
        """Return what the first stages find, and the candidates to rerank."""
        text = self._judged.queries[query]
        pool = None if self._judged.pools is None else list(self._judged.pools[query])
        best = self._index.search(self._words.tokens(text), len(self._ids))
        lexical = {
            self._ids[row]: float(value)
            for row, value in zip(best.rows.tolist(), best.scores.tolist(), strict=True)
            if value > 0
        }
        values = self._vectors @ self._encoder.encode_query(text)
        if pool is None:
            lexical = dict(list(lexical.items())[:FOUND])
            order = np.argsort(-values, kind="stable")[:FOUND].tolist()
            dense = {self._ids[row]: float(values[row]) for row in order}
            fused = reciprocal_rank_fusion([list(lexical), list(dense)])
            both = standardized(lexical, dense)
            chosen = dict.fromkeys([one.item for one in fused[:DEPTH]])
            candidates = list(chosen | dict.fromkeys(sorted(both, key=lambda one: (-both[one], one))[:DEPTH]))
        else:
            within = set(pool)
            lexical = {one: value for one, value in lexical.items() if one in within}
            rows = sorted((self._row[one] for one in pool), key=lambda row: -values[row])
            dense = {self._ids[row]: float(values[row]) for row in rows}
            candidates = pool
        return Scores(query, lexical, dense, candidates)

    def cosines(self, query: str, candidates: Sequence[str]) -> list[float]:
        """Return the cosine of a question and each candidate."""
        vector = self._encoder.encode_query(self._judged.queries[query])
        rows = [self._row[one] for one in candidates]
        values: list[float] = (self._vectors[rows] @ vector).tolist()
        return values


def standardized(lexical: Mapping[str, float], dense: Mapping[str, float]) -> dict[str, float]:
    """Return the scores of the hybrid that standardizes, as the retriever fuses them."""
    missing = [
        0.0 if len(lexical) < FOUND else min(lexical.values()),
        min(dense.values()),
    ]
    return dict(weighted_score_fusion([lexical, dense], normalization="z-score", missing=missing))


class _Always:
    """One model, whoever asks."""

    def __init__(self, assigned: Assigned) -> None:
        self._assigned = assigned

    async def model_for(self, agent: Agent) -> Assigned:
        """Return it."""
        return self._assigned


def _bundled() -> str:
    """Return what tells these models from others: the beginnings of their weights' digests."""
    return f"{digest(evenmesh_models.reader())} {digest(evenmesh_models.cross_encoder())}"


def digest(folder: Path) -> str:
    """Return the beginning of the SHA-256 of a model's weights."""
    return evenmesh_models.fingerprint(folder / "model.safetensors")[:8]


@contextmanager
def _judges(home: Path, folder: Path | None) -> Iterator[dict[str, Any]]:
    """Yield functions of a question and its candidates: the bundled rerankers, or a cross-encoder alone."""
    with asyncio.Runner() as runner, ExitStack() as stack:
        found: dict[str, Any] = {}
        if folder is None:
            reader = stack.enter_context(in_process(BUNDLED, None, cache_bytes=0))
            found["rankrag"] = lambda question, passages: runner.run(_judged(reader, question, passages))
        pool = ComputePool(1, "rerank-table")
        stack.callback(pool.close)
        encoder = EncoderLoader(Placement.choose("cpu", "auto")).full(
            folder or assemble(home / "models"), "measured", provenance="", created_at=datetime.now(UTC)
        )
        cross_encoder = CrossEncoderReranker(
            _Always(Assigned(encoder)), pool=pool, batch_size=16, batch_tokens=4096, max_delay_s=0.0
        )
        stack.callback(lambda: runner.run(cross_encoder.close()))
        found["cross-encoder"] = lambda question, passages: runner.run(
            _scored(cross_encoder, question, passages)
        )
        yield found


async def _judged(reader: LanguageModel, question: str, passages: Sequence[Passage]) -> list[float]:
    words = question.split()
    while True:
        request = RelevanceRequest(" ".join(words), tuple(passages))
        try:
            return list(await reader.score_relevance(request, Cancellation()))
        except InvalidField:  # longer than it reads
            words = words[: len(words) // 2]
            if not words:
                raise


async def _scored(reranker: CrossEncoderReranker, question: str, passages: Sequence[Passage]) -> list[float]:
    asked = [Candidate(one.id, one.title, one.text) for one in passages]
    return list((await reranker.score(question, asked, Agent())).values)
