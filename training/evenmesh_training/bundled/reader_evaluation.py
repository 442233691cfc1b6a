"""Evaluate the pointer model on held-out questions: ``python -m
evenmesh_training.bundled.reader_evaluation``.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rank_bm25 import BM25Okapi
from tqdm import tqdm

import evenmesh_models
from evenmesh_core.text_metrics import exact_match, token_f1
from evenmesh_generator.domain import Passage
from evenmesh_generator.pointer import artifact
from evenmesh_generator.pointer.abstention import choose_bias, for_development, is_abstention
from evenmesh_generator.pointer.confidence import Confidence, evidence, expected_calibration_error, fit
from evenmesh_generator.pointer.reader import Encodings, PointerReader, ReaderAnswer
from evenmesh_generator.pointer.settings import ArtifactError
from evenmesh_models import BaseModelError
from evenmesh_training.bundled import reader_card as card
from evenmesh_training.bundled.reader_card import Evaluation, Measure
from evenmesh_training.rankrag import record
from evenmesh_training.rankrag.data.datasets import (
    Dataset,
    Item,
    MissingDataError,
    Request,
    Split,
    default_data,
)
from evenmesh_training.rankrag.data.datasets import reader as data_set
from evenmesh_training.rankrag.data.examples import Kind
from evenmesh_training.rankrag.data.negatives import words
from evenmesh_training.rankrag.recipe import Context

_PASSAGES = 32
"""Questions with one passage that are read together."""
_LISTS = 16
"""Questions with a list of passages that are read together."""


def interval(values: Sequence[float], *, seed: int = 0, resamples: int = 2000) -> tuple[float, float]:
    """Return the bootstrap 95 % interval of the mean: percentiles over resamples of the questions."""
    array = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    means = [array[rng.integers(0, len(array), len(array))].mean() for _ in range(resamples)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def measure(name: str, values: Sequence[float]) -> Measure:
    """Return the mean of per-question ``values`` with its interval; undefined (None) where there are none."""
    if not values:
        return Measure(name, None, None, None, 0)
    return Measure(name, float(np.mean(values)), *interval(values), len(values))


def parts(passage: Passage) -> tuple[str, str]:
    """Return title and text, as the reader takes them."""
    return passage.title, passage.text


def held_out(data: Path, name: str) -> Dataset:
    """Return the held-out questions of a data set with their passages.

    Raises:
        MissingDataError: a file is not there.
    """
    return data_set(name).read(Request(data, Split.HELD_OUT, Kind.CONTEXT_RICH_QA, Context()))


@dataclass(frozen=True)
class QuestionWithPassage:
    """A question with the one passage it is answered from."""

    item: Item
    passage: Passage


def _batches(asked: Sequence[QuestionWithPassage], name: str) -> Iterator[list[int]]:
    """Yield indices of questions whose passages are of similar length."""
    order = sorted(range(len(asked)), key=lambda at: len(asked[at].passage.text))
    for begin in tqdm(range(0, len(order), _PASSAGES), desc=name, leave=False, disable=None):
        yield order[begin : begin + _PASSAGES]


def _encoded(reader: PointerReader, asked: Sequence[QuestionWithPassage]) -> list[Encodings]:
    return reader.encode_many([(one.item.question, [parts(one.passage)]) for one in asked])


def evaluate_gold(reader: PointerReader, dataset: Dataset, items: Sequence[Item]) -> list[Measure]:
    """Measure answers from the gold passage."""
    asked = [QuestionWithPassage(item, dataset.passages[item.gold[0]]) for item in items]
    exact, overlap = [0.0] * len(asked), [0.0] * len(asked)
    abstained = [0.0] * len(asked)
    for rows in _batches(asked, "gold"):
        answers = reader.answer_many(_encoded(reader, [asked[row] for row in rows]))
        for row, found in zip(rows, answers, strict=True):
            accepted = asked[row].item.answers
            exact[row] = exact_match(found.text, accepted)
            overlap[row] = token_f1(found.text, accepted)
            abstained[row] = float(is_abstention(found.text))
    return [
        measure(card.GOLD_EXACT, exact),
        measure("F1, gold passage", overlap),
        measure("abstains wrongly, gold passage", abstained),
    ]


def evaluate_retrieved(
    reader: PointerReader, dataset: Dataset, items: Sequence[Item], *, depth: int = 20, keep: int = 5
) -> list[Measure]:
    """Rank BM25's best ``depth`` passages by the model, and measure answers from the best ``keep``."""
    index = BM25Okapi([words(f"{p.title} {p.text}") for p in dataset.passages])
    names = {"before": "BM25's order", "after": "the model's order"}
    recall: dict[str, list[float]] = {way: [] for way in names}
    exact: dict[str, list[float]] = {way: [] for way in names}
    overlap: dict[str, list[float]] = {way: [] for way in names}
    abstained: list[float] = []
    ceiling: list[float] = []
    for begin in tqdm(range(0, len(items), _LISTS), desc="retrieved", leave=False, disable=None):
        asked = items[begin : begin + _LISTS]
        found = [
            np.argsort(-index.get_scores(words(item.question)), kind="stable")[:depth].tolist()
            for item in asked
        ]
        encodings = reader.encode_many(
            [
                (item.question, [parts(dataset.passages[at]) for at in places])
                for item, places in zip(asked, found, strict=True)
            ]
        )
        contexts: dict[str, list[Encodings]] = {way: [] for way in names}
        verdicts = reader.verdicts(encodings)
        for item, places, encoding, values in zip(asked, found, encodings, verdicts, strict=True):
            best = {
                "before": list(range(keep)),
                "after": np.argsort(-np.asarray(values), kind="stable")[:keep].tolist(),
            }
            ceiling.append(float(item.gold[0] in places))
            for way, rows in best.items():
                recall[way].append(float(any(places[row] == item.gold[0] for row in rows)))
                contexts[way].append(encoding.pick(rows))
        for way, context in contexts.items():
            answers = reader.answer_many(context)
            for item, answer in zip(asked, answers, strict=True):
                exact[way].append(exact_match(answer.text, item.answers))
                overlap[way].append(token_f1(answer.text, item.answers))
                if way == "after":
                    abstained.append(float(is_abstention(answer.text)))
    shown = [value for value, gold in zip(abstained, recall["after"], strict=True) if gold]
    return [
        measure(f"recall@{depth} of BM25 (ceiling)", ceiling),
        measure(card.RECALL_BEFORE, recall["before"]),
        measure(card.RECALL_AFTER, recall["after"]),
        measure("exact match, best 5 in BM25's order", exact["before"]),
        measure("F1, best 5 in BM25's order", overlap["before"]),
        measure(card.FIVE_EXACT, exact["after"]),
        measure("F1, best 5 in the model's order", overlap["after"]),
        measure("abstains wrongly, best 5 in the model's order with the gold passage", shown),
    ]


def abstention_questions(dataset: Dataset, *, development: bool) -> list[QuestionWithPassage]:
    """Return the half of CLAP NQ on which the bias is chosen, or the one that is evaluated; the passage
    shown.
    """
    return [
        QuestionWithPassage(item, dataset.passages[(item.gold or item.irrelevant)[0]])
        for item in dataset.items
        if for_development(item.id) is development
    ]


def evaluate_abstention(reader: PointerReader, asked: Sequence[QuestionWithPassage]) -> list[Measure]:
    """Return whether the model says that a passage does not answer, where it does not."""
    abstained: list[bool] = [False] * len(asked)
    for rows in _batches(asked, "abstention"):
        answers = reader.answer_many(_encoded(reader, [asked[row] for row in rows]))
        for row, found in zip(rows, answers, strict=True):
            abstained[row] = is_abstention(found.text)
    said = list(zip((not one.item.gold for one in asked), abstained, strict=True))
    return [
        measure(card.UNANSWERABLE, [float(right) for right, _ in said]),
        measure(card.ABSTENTION_PRECISION, [float(right) for right, said in said if said]),
        measure("abstention recall", [float(said) for right, said in said if right]),
        measure("abstains wrongly, answerable questions", [float(said) for right, said in said if not right]),
    ]


def chosen_bias(reader: PointerReader, asked: Sequence[QuestionWithPassage]) -> float:
    """Return the bias towards abstaining that is precise enough on ``asked``; see :func:`choose_bias`."""
    reader.model.config.abstention_bias = 0.0
    margins = [0.0] * len(asked)
    for rows in _batches(asked, "abstention bias"):
        found = reader.margins(_encoded(reader, [asked[row] for row in rows]))
        for row, margin in zip(rows, found, strict=True):
            margins[row] = margin
    return choose_bias(margins, [not one.item.gold for one in asked])


@dataclass(frozen=True)
class JudgedAnswer:
    """An answer, and whether it is right.

    ``source``: data set and setting; ``development``: of the half of the questions that is calibrated on.
    """

    source: str
    development: bool
    abstains: bool
    log_probs: tuple[float, ...]
    right: bool


def judged(source: str, question_id: str, answer: ReaderAnswer, *, right: bool) -> JudgedAnswer:
    """Return an answer with what calibration needs to know of it."""
    abstains = is_abstention(answer.text)
    return JudgedAnswer(source, for_development(question_id), abstains, answer.log_probs, right)


def judged_answers(
    reader: PointerReader, squad: Dataset, items: Sequence[Item], clapnq: Dataset, *, keep: int = 5
) -> list[JudgedAnswer]:
    """Return answers to questions of SQuAD from BM25's best ``keep`` passages, and abstentions on CLAP NQ.

    On SQuAD a span is right that matches an answer exactly, and an abstention where no passage shown is the
    gold one. On CLAP NQ, whose answers are longer than spans, abstentions alone are judged.
    """
    index = BM25Okapi([words(f"{p.title} {p.text}") for p in squad.passages])
    found = []
    for begin in tqdm(range(0, len(items), _LISTS), desc="confidence", leave=False, disable=None):
        asked = items[begin : begin + _LISTS]
        places = [
            np.argsort(-index.get_scores(words(item.question)), kind="stable")[:keep].tolist()
            for item in asked
        ]
        encodings = reader.encode_many(
            [
                (item.question, [parts(squad.passages[at]) for at in mine])
                for item, mine in zip(asked, places, strict=True)
            ]
        )
        for item, mine, answer in zip(asked, places, reader.answer_many(encodings), strict=True):
            right = (
                item.gold[0] not in mine
                if is_abstention(answer.text)
                else exact_match(answer.text, item.answers) == 1.0
            )
            found.append(judged(card.CONFIDENCE_SQUAD, item.id, answer, right=right))
    both = [one for half in (True, False) for one in abstention_questions(clapnq, development=half)]
    for rows in _batches(both, "confidence of abstentions"):
        answers = reader.answer_many(_encoded(reader, [both[row] for row in rows]))
        for row, answer in zip(rows, answers, strict=True):
            if is_abstention(answer.text):
                item = both[row].item
                found.append(judged(card.CONFIDENCE_CLAPNQ, item.id, answer, right=not item.gold))
    return found


def calibrated(answers: Sequence[JudgedAnswer]) -> Confidence:
    """Return the calibration that fits the answers of the development half best."""
    own = [one for one in answers if one.development]
    curves = []
    for abstains in (False, True):
        some = [one for one in own if one.abstains is abstains]
        values = [evidence(one.log_probs, abstains=abstains) for one in some]
        curves.append(fit(values, [one.right for one in some]))
    return Confidence(*curves)


def evaluate_confidence(confidence: Confidence, answers: Sequence[JudgedAnswer]) -> list[Measure]:
    """Return the expected calibration errors on the half of the questions that was not calibrated on.

    Their intervals are of resampled answers.
    """
    rng = np.random.default_rng(0)
    measures = []
    for source in dict.fromkeys(one.source for one in answers):
        own = [one for one in answers if one.source == source and not one.development]
        given = [confidence(one.log_probs, abstains=one.abstains) for one in own]
        right = [one.right for one in own]

        def error(
            rows: Sequence[int], given: Sequence[float] = given, right: Sequence[bool] = right
        ) -> float:
            return expected_calibration_error([given[row] for row in rows], [right[row] for row in rows])

        drawn = [error(rng.integers(0, len(own), len(own)).tolist()) for _ in range(500)] if own else []
        if not own:
            measures.append(Measure(source, None, None, None, 0))
            continue
        low, high = np.percentile(drawn, [2.5, 97.5]).tolist()
        measures.append(Measure(source, error(range(len(own))), low, high, len(own)))
    return measures


def kept(folder: Path, weights_sha256: str, measures: Sequence[Measure]) -> list[Measure]:
    """Return ``measures``, and those in ``folder`` that they do not replace, if of the same weights."""
    path = folder / record.EVALUATION
    if not path.is_file():
        return list(measures)
    stored = json.loads(path.read_text(encoding="utf-8"))
    if stored["weights_sha256"] != weights_sha256:
        return list(measures)
    both = {one["name"]: Measure(**one) for one in stored["measures"]}
    return list((both | {one.name: one for one in measures}).values())


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    out = argparse.ArgumentParser(description=__doc__)
    out.add_argument(
        "--data", type=Path, default=default_data(), help="folder that holds squad-open/ and nq-passages/"
    )
    out.add_argument("--artifact", type=Path, default=evenmesh_models.reader(), help="folder of the model")
    out.add_argument(
        "--gold", type=int, default=2000, metavar="N", help="questions answered from the gold passage"
    )
    out.add_argument(
        "--retrieved", type=int, default=1000, metavar="N", help="questions answered from retrieval"
    )
    out.add_argument(
        "--choose-abstention",
        action="store_true",
        help="first choose the bias towards abstaining, on questions that are not evaluated on",
    )
    out.add_argument(
        "--confidence", type=int, default=2400, metavar="N", help="questions that confidence is measured on"
    )
    out.add_argument(
        "--calibrate", action="store_true", help="choose the calibration of confidence, on half of them"
    )
    out.add_argument(
        "--keep", action="store_true", help="keep the measures of the same model that are not taken again"
    )
    out.add_argument("--seed", type=int, default=7, help="of the sample of questions")
    out.add_argument("--bfloat16", action="store_true", help="compute in bfloat16")
    out.add_argument("--threads", type=int, default=0, help="torch threads; 0 leaves torch's choice")
    return out


def main(arguments: list[str] | None = None) -> None:
    """Measure the model, and write ``evaluation.json`` and the model card beside the weights."""
    line = parser()
    options = line.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        squad, clapnq = held_out(options.data, "squad-open"), held_out(options.data, "clapnq")
        reader = PointerReader.from_folder(options.artifact, bfloat16=options.bfloat16)
    except MissingDataError as error:
        line.error(f"no {error}; --data names the folder that holds squad-open/ and nq-passages/")
    except (ArtifactError, BaseModelError) as error:
        line.error(f"--artifact: {error}")
    order = np.random.default_rng(options.seed).permutation(len(squad.items))
    sample = [squad.items[int(at)] for at in order]
    began = time.monotonic()
    if options.choose_abstention:
        bias = chosen_bias(reader, abstention_questions(clapnq, development=True))
        artifact.set_abstention_bias(options.artifact, bias)
        reader = PointerReader.from_folder(options.artifact, bfloat16=options.bfloat16)
    measures = evaluate_abstention(reader, abstention_questions(clapnq, development=False))
    if options.gold:
        measures += evaluate_gold(reader, squad, sample[: options.gold])
    if options.retrieved:
        measures += evaluate_retrieved(reader, squad, sample[: options.retrieved])
    if options.confidence:
        answers = judged_answers(reader, squad, sample[: options.confidence], clapnq)
        if options.calibrate:
            artifact.set_confidence(options.artifact, calibrated(answers))
            reader = PointerReader.from_folder(options.artifact, bfloat16=options.bfloat16)
        if (confidence := reader.settings.confidence) is not None:
            measures += evaluate_confidence(confidence, answers)
    if options.keep:
        measures = kept(options.artifact, str(reader.model.config.weights_sha256), measures)
    evaluation = Evaluation(
        weights_sha256=str(reader.model.config.weights_sha256),
        abstention_bias=reader.model.config.abstention_bias,
        precision="bfloat16" if options.bfloat16 else "float32",
        seed=options.seed,
        passages=len(squad.passages),
        seconds=round(time.monotonic() - began, 1),
        measures=tuple(measures),
    )
    text = json.dumps(asdict(evaluation), indent=2) + "\n"
    (options.artifact / record.EVALUATION).write_text(text, encoding="utf-8")
    if (options.artifact / record.TRAINING).is_file():
        card.write(options.artifact)


if __name__ == "__main__":
    main()
