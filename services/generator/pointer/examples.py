"""Training examples from an open-domain question set: one answer each, half with a hard negative."""

import gzip
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.generator.pointer.tokenization import PAD, SEP, Pair, PairTokenizer, pair, room

MAX_ANSWER = 40
"""Longest answer learnt, in tokens; a longer one is cut and does not end."""


@dataclass(frozen=True)
class Passage:
    """A passage of the corpus."""

    id: str
    title: str
    text: str


@dataclass(frozen=True)
class Question:
    """A question with its accepted answers and the passage that holds them."""

    id: str
    question: str
    answers: tuple[str, ...]
    gold: str


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Objects of a gzipped JSON-lines file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def default_data() -> Path:
    """Folder of the shared data sets: ``RAGMESH_SHARED_DATA``, or ``../shared/data`` by the repository."""
    named = os.environ.get("RAGMESH_SHARED_DATA")
    return Path(named) if named else Path(__file__).resolve().parents[4] / "shared" / "data"


def read_passages(path: Path) -> list[Passage]:
    """Passages of ``passages.<split>.jsonl.gz``."""
    return [Passage(row["id"], row["title"], row["text"]) for row in read_jsonl(path)]


def read_questions(path: Path) -> list[Question]:
    """Questions of ``questions.<split>.jsonl.gz``."""
    return [
        Question(row["id"], row["question"], tuple(row["answers"]), row["gold_passage_ids"][0])
        for row in read_jsonl(path)
    ]


@dataclass(frozen=True)
class Size:
    """What an example may cost: tokens of a pair at most; share of questions with a negative, in [0, 1]."""

    limit: int = 160
    negative_rate: float = 0.4


@dataclass(frozen=True)
class Example:
    """One question: the gold pair, perhaps a negative pair, the answer's tokens.

    ``fused``: the answer is decoded from both pairs side by side; ``swapped``: the negative first.
    """

    gold: Pair
    negative: Pair | None
    answer: tuple[int, ...]
    fused: bool
    swapped: bool

    @property
    def length(self) -> int:
        """Tokens of the longer pair: what the example costs."""
        return max(len(self.gold.ids), len(self.negative.ids) if self.negative else 0)


@dataclass(frozen=True)
class Batch:
    """Tensors of one step: N pairs, of which the first Q are the questions' gold pairs.

    ``input_ids``, ``attention_mask``, ``token_type_ids`` [N, L]; ``single`` [A] rows answered alone,
    ``fused`` [F, 2] rows answered together; ``decoder_ids`` and ``targets`` [Q, T], singles first,
    padded with 0 and -1.
    """

    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor
    single: Tensor
    fused: Tensor
    decoder_ids: Tensor
    targets: Tensor
    questions: int


class ExampleSource:
    """Makes the examples of every epoch from tokenised passages and questions; all choices from one seed.

    Args:
        size: of the examples; decides the order of an epoch too.
        fused_rate: of the questions with a negative, the share whose answer is decoded from both
            passages, in [0, 1].
        candidates: passages of the same article among which the hardest negative is looked for.
    """

    def __init__(
        self,
        passages: Sequence[Passage],
        questions: Sequence[Question],
        tokenizer: PairTokenizer,
        *,
        seed: int,
        size: Size | None = None,
        fused_rate: float = 0.5,
        candidates: int = 16,
    ) -> None:
        self._passages = list(passages)
        self._questions = list(questions)
        self._seed = seed
        self._size = Size() if size is None else size
        self._fused_rate = fused_rate
        self._candidates = candidates
        self._lower = [p.text.lower() for p in self._passages]
        self._texts = tokenizer.many_ids([p.text for p in self._passages])
        titles = sorted({p.title for p in self._passages})
        by_title = {title: tokenizer.title_ids(title) for title in titles}
        self._titles = [by_title[p.title] for p in self._passages]
        self._bags = [frozenset(ids) for ids in self._texts]
        self._question_ids = tokenizer.many_ids([q.question for q in self._questions])
        self._answer_ids = tokenizer.many_ids([q.answers[0] for q in self._questions])
        frequency = Counter(token for bag in self._bags for token in bag)
        total = len(self._bags)
        self._idf = {token: math.log(1.0 + total / count) for token, count in frequency.items()}
        self._row = {p.id: index for index, p in enumerate(self._passages)}
        self._article: dict[str, list[int]] = defaultdict(list)
        for index, passage in enumerate(self._passages):
            self._article[passage.title].append(index)
        # Where the answer begins, in tokens: WordPiece splits at spaces, so a prefix keeps its tokens.
        starts = []
        prefixes = []
        for question in self._questions:
            text = self._passages[self._row[question.gold]].text
            at = text.find(question.answers[0])
            if at < 0:
                raise ValueError(f"question {question.id}: the answer is not in its passage")
            starts.append(at)
            prefixes.append(text[:at])
        self._answer_starts = [len(ids) for ids in tokenizer.many_ids(prefixes)]

    def __len__(self) -> int:
        return len(self._questions)

    def example(self, index: int, epoch: int, size: Size | None = None) -> Example:
        """The example of question ``index`` in ``epoch``: the same for a seed and a size, in any order."""
        size = self._size if size is None else size
        rng = np.random.default_rng([self._seed, epoch, index])
        question = self._questions[index]
        gold = self._row[question.gold]
        answer = self._answer_ids[index]
        first = max(0, self._answer_starts[index] - 1)
        last = self._answer_starts[index] + len(answer) + 1
        gold_pair = self._window(index, gold, size.limit, rng, first, last)
        negative = self._negative(index, gold, rng) if rng.random() < size.negative_rate else None
        negative_pair = None if negative is None else self._window(index, negative, size.limit, rng)
        target = answer if len(answer) > MAX_ANSWER else (*answer, SEP)
        return Example(
            gold_pair,
            negative_pair,
            target[:MAX_ANSWER],
            negative_pair is not None and bool(rng.random() < self._fused_rate),
            bool(rng.random() < 0.5),
        )

    def epoch(self, epoch: int, batch_size: int, *, bucket: int = 64) -> list[list[int]]:
        """Question indices of every batch of ``epoch``: each question once, lengths alike within a batch.

        Shuffled, sorted by length inside groups of ``bucket`` batches, then the batches shuffled.
        """
        rng = np.random.default_rng([self._seed, epoch])
        order = rng.permutation(len(self._questions))
        span = batch_size * bucket
        batches: list[list[int]] = []
        for begin in range(0, len(order), span):
            group = sorted(
                (int(i) for i in order[begin : begin + span]), key=lambda i: self.example(i, epoch).length
            )
            batches.extend(group[at : at + batch_size] for at in range(0, len(group), batch_size))
        return [batches[int(at)] for at in rng.permutation(len(batches))]

    def _window(
        self,
        index: int,
        passage: int,
        limit: int,
        rng: np.random.Generator,
        first: int = 0,
        last: int | None = None,
    ) -> Pair:
        """The pair with a random window of the text that holds tokens ``first`` to ``last``, as fits."""
        question, title, text = self._question_ids[index], self._titles[passage], self._texts[passage]
        space = room(question, title, limit)
        low, high = 0, max(0, len(text) - space)
        if last is not None:
            low = max(low, min(high, last - space))
            high = max(low, min(high, first))
        start = int(rng.integers(low, high + 1)) if high > low else low
        return pair(question, title, text, limit=limit, start=start)

    def _negative(self, index: int, gold: int, rng: np.random.Generator) -> int | None:
        """Of a sample of the article's other passages without the answer, the one most like the question."""
        question = self._questions[index]
        article = self._article[self._passages[gold].title]
        answers = [answer.lower() for answer in question.answers]
        sample = rng.permutation(len(article))[: self._candidates + 1]
        wanted = set(self._question_ids[index])
        best: tuple[float, int] | None = None
        for at in sample:
            candidate = article[int(at)]
            if candidate == gold or any(answer in self._lower[candidate] for answer in answers):
                continue
            score = sum(self._idf[token] for token in wanted & self._bags[candidate])
            if best is None or score > best[0]:
                best = (score, candidate)
        return None if best is None else best[1]


def collate(examples: Sequence[Example], *, answer_token: int) -> Batch:
    """Pad ``examples`` into one batch."""
    pairs = [e.gold for e in examples]
    single: list[int] = []
    fused: list[tuple[int, int]] = []
    single_answers: list[tuple[int, ...]] = []
    fused_answers: list[tuple[int, ...]] = []
    for row, example in enumerate(examples):
        if example.negative is None:
            single.append(row)
            single_answers.append(example.answer)
            continue
        other = len(pairs)
        pairs.append(example.negative)
        if example.fused:
            fused.append((other, row) if example.swapped else (row, other))
            fused_answers.append(example.answer)
        else:
            single.append(row)
            single_answers.append(example.answer)
    input_ids, mask, types = pad_pairs(pairs)
    answers = single_answers + fused_answers
    steps = max(len(answer) for answer in answers)
    decoder_ids = torch.full((len(answers), steps), PAD)
    targets = torch.full((len(answers), steps), -1)
    for row, answer in enumerate(answers):
        decoder_ids[row, : len(answer)] = torch.tensor((answer_token, *answer[:-1]))
        targets[row, : len(answer)] = torch.tensor(answer)
    return Batch(
        input_ids,
        mask,
        types,
        torch.tensor(single, dtype=torch.long),
        torch.tensor(fused, dtype=torch.long).reshape(-1, 2),
        decoder_ids,
        targets,
        len(examples),
    )


def pad_pairs(pairs: Sequence[Pair]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask (1 on tokens) and token types of ``pairs``, each [N, L] with L the longest."""
    length = max(len(p.ids) for p in pairs)
    input_ids = torch.full((len(pairs), length), PAD)
    mask = torch.zeros_like(input_ids)
    types = torch.zeros_like(input_ids)
    for row, p in enumerate(pairs):
        input_ids[row, : len(p.ids)] = torch.tensor(p.ids)
        mask[row, : len(p.ids)] = 1
        types[row, p.boundary : len(p.ids)] = 1
    return input_ids, mask, types
