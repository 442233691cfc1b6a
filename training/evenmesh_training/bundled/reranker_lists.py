"""Lists to learn ranking from: questions of several data sets with candidates of the hybrid first stage.

Only training splits are read. Lists of labelled questions know which candidates are relevant. For the others
the cosine of the dense encoder says it: a cross-encoder that distils it forgets less of what the encoder that
it was built from knows about other domains.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import bm25s
import numpy as np
import torch
from sentence_transformers import SentenceTransformer

import evenmesh_models
from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_core.fusion import standardized
from evenmesh_core.text_metrics import contains_answer
from evenmesh_generator.domain import Passage
from evenmesh_kit.compute.placement import multiplies_bfloat16
from evenmesh_lab.files.records import replace_file
from evenmesh_training.rankrag.data.datasets import Request, Split, reader, rows
from evenmesh_training.rankrag.data.examples import Kind
from evenmesh_training.rankrag.recipe import Context

LABELLED: Final = {
    "squad-open": 8000,
    "nq-passages": 1000,
    "multihop-small": 200,
    "fever-symmetric": 400,
    "pubmedqa-l": 500,
}
"""Most questions of each labelled data set, all of its training split."""

UNLABELLED: Final = {"open-qa": 2800, "mirage": 1500}
"""Most questions of each set without passages: of web users on Wikipedia, and medical ones on abstracts."""

MIRAGE: Final = ("medqa", "medmcqa", "mmlu")
"""Parts of mirage that are asked; the others are held out."""

SIZE: Final = 8
"""Candidates of a list."""

DEPTH: Final = 30
"""Ranks of the hybrid that they come from."""


@dataclass(frozen=True, slots=True)
class CandidateList:
    """A question and some of its candidates.

    Attributes:
        source: data set.
        query: the question.
        titles: of the candidates.
        texts: of the candidates.
        first: standardized scores of the first stage over its best :data:`DEPTH`.
        cosines: of question and candidates, [-1, 1].
        relevant: whether each is relevant; None: unknown.
    """

    source: str
    query: str
    titles: tuple[str, ...]
    texts: tuple[str, ...]
    first: tuple[float, ...]
    cosines: tuple[float, ...]
    relevant: tuple[bool, ...] | None


@dataclass(frozen=True, slots=True)
class _Question:
    text: str
    gold: tuple[int, ...] = ()
    answers: tuple[str, ...] = ()


def read(path: Path) -> list[CandidateList]:
    """Return the lists in a file that :func:`write` wrote."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        lists: dict[str, Any] = {
            name: tuple(one) if isinstance(one, list) else one for name, one in row.items()
        }
        found.append(CandidateList(**lists))
    return found


def write(lists: Sequence[CandidateList], path: Path) -> None:
    """Write lists to a file, a line each; the file appears complete."""
    lines = "".join(json.dumps(asdict(one)) + "\n" for one in lists)
    replace_file(path, lambda target: target.write_text(lines, encoding="utf-8"))


def build(data: Path, *, seed: int, log: Callable[[str], None]) -> Iterator[CandidateList]:
    """Yield the lists of every data set, in a fixed order."""
    encoder = SentenceTransformer(str(evenmesh_models.minilm()), device="cpu", trust_remote_code=False)
    rng = np.random.default_rng(seed)
    left_out = _articles(data)
    known: dict[str, FloatArray] = {}
    wikipedia: list[Passage] = []
    for name, most in LABELLED.items():
        passages, questions = _pubmed(data) if name == "pubmedqa-l" else _labelled(data, name, left_out)
        if name in ("squad-open", "multihop-small"):
            wikipedia += passages
        log(f"{name}: {len(passages)} passages, {len(questions)} questions")
        chosen = [questions[at] for at in rng.permutation(len(questions))[:most]]
        search = _Search(passages, encoder, known)
        for one in chosen:
            if made := _labelled_list(name, one, search, rng):
                yield made
    for name, most in UNLABELLED.items():
        passages = _pubmed(data)[0] if name == "mirage" else wikipedia
        asked = sorted(set(_asked(data, name)))
        log(f"{name}: {len(passages)} passages, {len(asked)} questions")
        search = _Search(passages, encoder, known)
        for at in rng.permutation(len(asked))[:most]:
            yield _unlabelled_list(name, asked[at], search, rng)


def texts(data: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the questions and the passages of each data set that lists may be made of.

    The questions of mirage are there twice: as their last words, which are asked, and whole.
    """
    left_out = _articles(data)
    for name in LABELLED:
        passages, questions = _pubmed(data) if name == "pubmedqa-l" else _labelled(data, name, left_out)
        yield [one.text for one in questions], [one.text for one in passages]
    for name in UNLABELLED:
        yield list(_asked(data, name)), []
    whole = rows(data / "mirage" / "benchmark.jsonl.gz")
    yield [row["question"] for row in whole if row["dataset"] in MIRAGE], []


def _articles(data: Path) -> frozenset[str]:
    """Return the titles of the SQuAD articles whose passages wiki-multitask holds: agents ask about these."""
    return frozenset(
        row["title"]
        for row in rows(data / "wiki-multitask" / "passages.jsonl.gz")
        if row["id"].startswith("squad11-train-")
    )


def _labelled(data: Path, name: str, without: frozenset[str]) -> tuple[list[Passage], list[_Question]]:
    found = reader(name).read(Request(data, Split.TRAIN, Kind.CONTEXT_RICH_QA, Context()))
    kept = [at for at, one in enumerate(found.passages) if one.title not in without]
    place = {at: new for new, at in enumerate(kept)}
    questions = [
        _Question(one.question, tuple(place[at] for at in one.gold), one.answers)
        for one in found.items
        if one.gold and all(at in place for at in one.gold)
    ]
    if name in (
        "fever-symmetric",
    ):  # every claim's evidence also refutes a sister: answers are no words of it
        questions = [_Question(one.text, one.gold) for one in questions]
    return [found.passages[at] for at in kept], questions


def _pubmed(data: Path) -> tuple[list[Passage], list[_Question]]:
    passages = [
        Passage(row["id"], "", row["text"]) for row in rows(data / "pubmedqa-l" / "passages.jsonl.gz")
    ]
    place = {one.id: at for at, one in enumerate(passages)}
    questions = [
        _Question(row["question"], tuple(place[one] for one in row["gold_passage_ids"]))
        for row in rows(data / "pubmedqa-l" / "questions.jsonl.gz")
        if row["split"] == "dev"
    ]
    return passages, questions


def _asked(data: Path, name: str) -> Iterator[str]:
    if name == "open-qa":
        for row in rows(data / name / "webquestions.trainmodel.jsonl.gz"):
            yield row["question"]
    else:
        for row in rows(data / name / "benchmark.jsonl.gz"):
            if row["dataset"] in MIRAGE:
                yield " ".join(row["question"].split()[-48:])


class _Search:
    """BM25 and cosine over some passages."""

    def __init__(
        self, passages: Sequence[Passage], encoder: SentenceTransformer, known: dict[str, FloatArray]
    ) -> None:
        self.passages = passages
        contents = [f"{one.title} {one.text}" if one.title else one.text for one in passages]
        self._index = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
        self._index.index(bm25s.tokenize(contents, show_progress=False), show_progress=False)
        self._encoder = encoder
        new = [one for one in dict.fromkeys(contents) if one not in known]
        if new:
            # cosines of it are within 0.001
            narrow = multiplies_bfloat16(torch.device("cpu"))
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow):
                known.update(zip(new, encoder.encode(new, normalize_embeddings=True), strict=True))
        self._vectors = np.stack([known[one] for one in contents])

    def scores(self, query: str) -> tuple[FloatArray, FloatArray]:
        """Return the sum of both standardized scores, and the cosines, of all passages."""
        words = bm25s.tokenize([query], show_progress=False, return_ids=False)[0]
        lexical = (
            np.asarray(self._index.get_scores(words), dtype=np.float64)
            if words
            else np.zeros(len(self.passages))
        )
        vector = self._encoder.encode(query, normalize_embeddings=True)
        cosines = np.asarray(self._vectors @ vector, dtype=np.float64)
        pool = np.union1d(np.argsort(-lexical)[:100], np.argsort(-cosines)[:100])
        return standardized(lexical, lexical[pool]) + standardized(cosines, cosines[pool]), cosines


def _labelled_list(
    name: str, one: _Question, search: _Search, rng: np.random.Generator
) -> CandidateList | None:
    both, cosines = search.scores(one.text)
    best = np.argsort(-both, kind="stable")[:DEPTH]
    gold = set(one.gold)
    wrong = [
        at
        for at in best.tolist()
        if at not in gold
        and not any(contains_answer(search.passages[at].text, answer) for answer in one.answers)
    ]
    if len(wrong) < SIZE - len(gold):
        return None
    # Half of the wrong ones are the hardest: those that the first stage has before the others.
    hard = wrong[: SIZE // 2]
    rest = rng.permutation(wrong[len(hard) :])[: max(0, SIZE - len(gold) - len(hard))].tolist()
    chosen = [*one.gold, *hard, *rest][:SIZE]
    return _list(name, one.text, chosen, both, cosines, best, search, tuple(at in gold for at in chosen))


def _unlabelled_list(name: str, query: str, search: _Search, rng: np.random.Generator) -> CandidateList:
    both, cosines = search.scores(query)
    best = np.argsort(-both, kind="stable")[:DEPTH]
    hard = best[: SIZE // 2].tolist()
    chosen = [*hard, *rng.permutation(best[len(hard) :])[: SIZE - len(hard)].tolist()]
    return _list(name, query, chosen, both, cosines, best, search, None)


def _list(
    name: str,
    query: str,
    chosen: Sequence[int],
    both: FloatArray,
    cosines: FloatArray,
    best: IntArray,
    search: _Search,
    relevant: tuple[bool, ...] | None,
) -> CandidateList:
    first = standardized(both[list(chosen)], both[best])
    return CandidateList(
        name,
        query,
        tuple(search.passages[at].title for at in chosen),
        tuple(search.passages[at].text[:2000] for at in chosen),
        tuple(first.tolist()),
        tuple(cosines[list(chosen)].tolist()),
        relevant,
    )
