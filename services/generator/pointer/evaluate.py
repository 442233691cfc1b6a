"""Evaluates the pointer model on squad-open dev: ``python -m services.generator.pointer.evaluate``."""

import argparse
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from rank_bm25 import BM25Okapi
from tqdm import tqdm

from ragcore.text_metrics import exact_match, normalize_answer, token_f1
from services.generator.pointer import artifact, card
from services.generator.pointer.card import Evaluation, Measure
from services.generator.pointer.examples import Passage, Question, default_data, read_passages, read_questions
from services.generator.pointer.modeling import PointerForConditionalGeneration
from services.generator.pointer.reader import Encodings, PointerReader
from services.generator.pointer.tokenization import PairTokenizer

_WORDS = re.compile(r"[a-z0-9]+")


def interval(values: Sequence[float], *, seed: int = 0, resamples: int = 2000) -> tuple[float, float]:
    """Bootstrap 95 % interval of the mean of ``values``: percentiles over resamples of the questions."""
    array = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    means = [array[rng.integers(0, len(array), len(array))].mean() for _ in range(resamples)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def measure(name: str, values: Sequence[float]) -> Measure:
    """The mean of per-question ``values`` with its interval."""
    return Measure(name, float(np.mean(values)), *interval(values), len(values))


Corpus = Mapping[str, Passage]
"""Passages by id, in the corpus's order."""


def read_corpus(path: Path) -> Corpus:
    """The corpus in ``path``."""
    return {passage.id: passage for passage in read_passages(path)}


def parts(passage: Passage) -> tuple[str, str]:
    """Title and text, as the reader takes them."""
    return passage.title, passage.text


def answer_gold(
    reader: PointerReader,
    corpus: Corpus,
    questions: Sequence[Question],
    *,
    num_beams: int = 1,
    batch_size: int = 32,
) -> tuple[list[float], list[float]]:
    """Exact match and F1 of every question, answered from its gold passage."""
    order = sorted(range(len(questions)), key=lambda i: len(corpus[questions[i].gold].text))
    exact, overlap = [0.0] * len(questions), [0.0] * len(questions)
    for begin in tqdm(
        range(0, len(order), batch_size), desc=f"gold, {num_beams} beam", leave=False, disable=None
    ):
        rows = order[begin : begin + batch_size]
        encodings = reader.encode_many(
            [(questions[i].question, [parts(corpus[questions[i].gold])]) for i in rows]
        )
        for row, found in zip(rows, reader.answer_many(encodings, num_beams=num_beams), strict=True):
            exact[row] = exact_match(found.text, questions[row].answers)
            overlap[row] = token_f1(found.text, questions[row].answers)
    return exact, overlap


def words(text: str) -> list[str]:
    """Lower-case runs of letters and digits: the tokens BM25 sees here."""
    return _WORDS.findall(text.lower())


def evaluate_retrieved(
    reader: PointerReader,
    corpus: Corpus,
    questions: Sequence[Question],
    *,
    depth: int = 20,
    keep: int = 5,
    batch_size: int = 16,
) -> list[Measure]:
    """BM25's best ``depth`` passages, ranked by the model; answers from the best ``keep`` of either order."""
    everything = list(corpus.values())
    index = BM25Okapi([words(f"{p.title} {p.text}") for p in everything])
    names = {"before": "BM25's order", "after": "the model's order"}
    recall: dict[str, list[float]] = {way: [] for way in names}
    exact: dict[str, list[float]] = {way: [] for way in names}
    overlap: dict[str, list[float]] = {way: [] for way in names}
    ceiling: list[float] = []
    for begin in tqdm(range(0, len(questions), batch_size), desc="retrieved", leave=False, disable=None):
        asked = questions[begin : begin + batch_size]
        found = []
        for question in asked:
            scores = index.get_scores(words(question.question))
            found.append([everything[int(i)] for i in np.argsort(-scores, kind="stable")[:depth]])
        encodings = reader.encode_many(
            [(q.question, [parts(p) for p in passages]) for q, passages in zip(asked, found, strict=True)]
        )
        contexts: dict[str, list[Encodings]] = {way: [] for way in names}
        verdicts = reader.verdicts(encodings)
        for question, passages, encoding, values in zip(asked, found, encodings, verdicts, strict=True):
            best = {
                "before": list(range(keep)),
                "after": [int(i) for i in np.argsort(-np.asarray(values), kind="stable")[:keep]],
            }
            ceiling.append(float(any(p.id == question.gold for p in passages)))
            for way, rows in best.items():
                recall[way].append(float(any(passages[i].id == question.gold for i in rows)))
                contexts[way].append(encoding.pick(rows))
        for way, context in contexts.items():
            for question, answer in zip(asked, reader.answer_many(context), strict=True):
                exact[way].append(exact_match(answer.text, question.answers))
                overlap[way].append(token_f1(answer.text, question.answers))
    measures = [measure(f"recall@{depth} of BM25 (ceiling)", ceiling)]
    for way, name in names.items():
        measures.append(measure(f"recall@{keep}, {name}", recall[way]))
    for way, name in names.items():
        measures.append(measure(f"exact match, best {keep} in {name}", exact[way]))
        measures.append(measure(f"F1, best {keep} in {name}", overlap[way]))
    return measures


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
    ) -> None:
        rng = np.random.default_rng(seed)
        self._tokenizer = tokenizer
        self._corpus: Corpus = {p.id: p for p in passages}
        self._questions = [questions[int(i)] for i in rng.permutation(len(questions))[:answers]]
        article: dict[str, list[Passage]] = {}
        for passage in passages:
            article.setdefault(passage.title, []).append(passage)
        self._judged: list[tuple[str, Passage, Passage]] = []
        for question in self._questions[: pairs // 2]:
            gold = self._corpus[question.gold]
            wanted = set(normalize_answer(question.question).split())
            others = [
                p
                for p in article[gold.title]
                if p.id != gold.id and not any(a.lower() in p.text.lower() for a in question.answers)
            ]
            if others:
                sample = [others[int(i)] for i in rng.permutation(len(others))[:10]]
                hardest = max(sample, key=lambda p: len(wanted & set(normalize_answer(p.text).split())))
                self._judged.append((question.question, gold, hardest))

    def run(self, model: PointerForConditionalGeneration) -> dict[str, float]:
        """Exact match and F1 of greedy answers, accuracy of verdicts, all in [0, 1]; sets eval mode."""
        reader = PointerReader(model, self._tokenizer)
        exact, overlap = answer_gold(reader, self._corpus, self._questions)
        right: list[bool] = []
        for question, gold, other in self._judged:
            true, false = reader.relevance(question, [parts(gold), parts(other)])
            right += [true > 0.5, false <= 0.5]
        return {
            "exact_match": float(np.mean(exact)),
            "f1": float(np.mean(overlap)),
            "relevance": float(np.mean(right)),
        }


def parser() -> argparse.ArgumentParser:
    """The command line."""
    out = argparse.ArgumentParser(description=__doc__)
    out.add_argument("--data", type=Path, default=default_data(), help="folder that holds squad-open/")
    out.add_argument("--artifact", type=Path, default=artifact.bundled(), help="folder of the model")
    out.add_argument(
        "--gold", type=int, default=10570, metavar="N", help="questions answered from the gold passage"
    )
    out.add_argument(
        "--beams", type=int, default=1000, metavar="N", help="of those, answered with 4 beams too"
    )
    out.add_argument(
        "--retrieved", type=int, default=1000, metavar="N", help="questions answered from retrieval"
    )
    out.add_argument("--seed", type=int, default=7, help="of the sample of questions")
    out.add_argument("--bfloat16", action="store_true", help="compute in bfloat16")
    out.add_argument("--threads", type=int, default=0, help="torch threads; 0 leaves torch's choice")
    return out


def main(arguments: list[str] | None = None) -> None:
    """Measure, write ``evaluation.json`` and the model card beside the weights."""
    options = parser().parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    data = options.data / "squad-open"
    corpus = read_corpus(data / "passages.dev.jsonl.gz")
    questions = read_questions(data / "questions.dev.jsonl.gz")
    order = np.random.default_rng(options.seed).permutation(len(questions))
    sample = [questions[int(i)] for i in order]
    reader = PointerReader.from_folder(options.artifact, bfloat16=options.bfloat16)
    began = time.monotonic()
    measures = []
    if options.gold:
        exact, overlap = answer_gold(reader, corpus, sample[: options.gold])
        measures += [measure("exact match, gold passage", exact), measure("F1, gold passage", overlap)]
    if options.beams:
        exact, overlap = answer_gold(reader, corpus, sample[: options.beams], num_beams=4)
        measures += [
            measure("exact match, gold passage, 4 beams", exact),
            measure("F1, gold passage, 4 beams", overlap),
        ]
    if options.retrieved:
        measures += evaluate_retrieved(reader, corpus, sample[: options.retrieved])
    evaluation = Evaluation(
        weights_sha256=str(reader.model.config.weights_sha256),
        precision="bfloat16" if options.bfloat16 else "float32",
        seed=options.seed,
        passages=len(corpus),
        seconds=round(time.monotonic() - began, 1),
        measures=tuple(measures),
    )
    text = json.dumps(asdict(evaluation), indent=2) + "\n"
    (options.artifact / card.EVALUATION).write_text(text, encoding="utf-8")
    card.write(options.artifact)


if __name__ == "__main__":
    main()
