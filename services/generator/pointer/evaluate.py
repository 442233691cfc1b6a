"""Evaluation of the pointer model on an open-domain question set."""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from services.generator.pointer.examples import Passage, Question, pad_pairs
from services.generator.pointer.grounding import find_letters, find_tokens
from services.generator.pointer.modeling import PointerForConditionalGeneration
from services.generator.pointer.tokenization import Pair, PairTokenizer, pair

_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(answer: str) -> str:
    """SQuAD's answer normalisation: lower case, no punctuation, no articles, single spaces."""
    text = "".join(c for c in answer.lower() if c not in string.punctuation)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1.0 when the normalised prediction is one of the normalised answers, else 0.0."""
    return float(normalise(prediction) in {normalise(answer) for answer in answers})


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Largest token F1, in [0, 1], of the prediction against any of the answers."""

    def one(answer: str) -> float:
        ours, theirs = normalise(prediction).split(), normalise(answer).split()
        shared = sum((Counter(ours) & Counter(theirs)).values())
        return 0.0 if shared == 0 else 2 * shared / (len(ours) + len(theirs))

    return max(one(answer) for answer in answers)


class QuickEvaluation:
    """A small fixed evaluation to follow training: gold-passage answers, balanced relevance pairs.

    Negatives are other passages of the same article without the answer, the one of ten that shares
    most words with the question.
    """

    def __init__(
        self,
        passages: Sequence[Passage],
        questions: Sequence[Question],
        tokenizer: PairTokenizer,
        *,
        answers: int = 300,
        pairs: int = 200,
        seed: int = 0,
        limit: int = 256,
    ) -> None:
        rng = np.random.default_rng(seed)
        by_id = {p.id: p for p in passages}
        article: dict[str, list[Passage]] = {}
        for passage in passages:
            article.setdefault(passage.title, []).append(passage)
        self._tokenizer = tokenizer
        self._questions = [questions[int(i)] for i in rng.permutation(len(questions))[:answers]]
        self._passages = [by_id[q.gold] for q in self._questions]
        self._pairs = [self._pair(q.question, p, limit) for q, p in zip(self._questions, self._passages, strict=True)]
        self._judged: list[tuple[Pair, bool]] = []
        for question, gold in list(zip(self._questions, self._passages, strict=True))[: pairs // 2]:
            words = set(normalise(question.question).split())
            others = [
                p
                for p in article[gold.title]
                if p.id != gold.id and not any(a.lower() in p.text.lower() for a in question.answers)
            ]
            if not others:
                continue
            sample = [others[int(i)] for i in rng.permutation(len(others))[:10]]
            hardest = max(sample, key=lambda p: len(words & set(normalise(p.text).split())))
            self._judged.append((self._pair(question.question, gold, limit), True))
            self._judged.append((self._pair(question.question, hardest, limit), False))

    def _pair(self, question: str, passage: Passage, limit: int) -> Pair:
        t = self._tokenizer
        return pair(t.ids(question), t.title_ids(passage.title), t.ids(passage.text), limit=limit)

    def run(self, model: PointerForConditionalGeneration, *, batch_size: int = 32) -> dict[str, float]:
        """Exact match and F1 of greedy answers, accuracy of verdicts, all in [0, 1]."""
        model.eval()
        exact, overlap = [], []
        order = sorted(range(len(self._pairs)), key=lambda i: len(self._pairs[i].ids))
        with torch.inference_mode():
            for begin in range(0, len(order), batch_size):
                rows = order[begin : begin + batch_size]
                input_ids, mask, types = pad_pairs([self._pairs[i] for i in rows])
                output = model.generate(
                    input_ids=input_ids,
                    attention_mask=mask,
                    token_type_ids=types,
                    max_new_tokens=32,
                    do_sample=False,
                    num_beams=1,
                )
                for row, tokens in zip(rows, output.tolist(), strict=True):
                    prediction = self._text(tokens[1:], self._passages[row].text)
                    exact.append(exact_match(prediction, self._questions[row].answers))
                    overlap.append(f1(prediction, self._questions[row].answers))
            right = []
            for begin in range(0, len(self._judged), batch_size):
                judged = self._judged[begin : begin + batch_size]
                input_ids, mask, types = pad_pairs([p for p, _ in judged])
                starts = torch.full((len(judged), 1), model.config.relevance_token_id)
                logits = model(
                    input_ids=input_ids, attention_mask=mask, token_type_ids=types, decoder_input_ids=starts
                ).logits[:, 0]
                says = logits[:, model.config.true_token_id] > logits[:, model.config.false_token_id]
                right.extend(bool(s) == truth for s, (_, truth) in zip(says, judged, strict=True))
        return {
            "exact_match": float(np.mean(exact)),
            "f1": float(np.mean(overlap)),
            "relevance": float(np.mean(right)),
        }

    def _text(self, tokens: Sequence[int], passage: str) -> str:
        eos = 102
        ids = list(tokens)[: tokens.index(eos)] if eos in tokens else list(tokens)
        decoded = self._tokenizer.decode(ids)
        found = find_tokens(ids, self._tokenizer.text(passage)) or find_letters(decoded, passage)
        return passage[found[0] : found[1]] if found else decoded
