"""Disagreement of retrievers, and comparison of two systems."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_core import ensemble
from evenmesh_core.arrays import FloatArray
from evenmesh_core.proportions import paired_difference_interval
from evenmesh_core.significance import mcnemar, paired_bootstrap
from evenmesh_core.text_metrics import normalize_answer
from evenmesh_evaluator import fields
from evenmesh_evaluator.measures import bootstraps
from evenmesh_kit.compute.steps import Check, unchecked

MAX_RETRIEVERS: Final = 20
"""Most retrievers of a comparison: every pool of them is evaluated."""
MAX_QUESTIONS: Final = 10_000
"""Most questions of a comparison."""


def compare_retrievers(
    request: pb.CompareRetrieversRequest, check: Check = unchecked
) -> pb.CompareRetrieversResponse:
    """Compare retrievers by the answers they lead to (Li et al. 2024, equations 1 to 4, appendix B).

    An answer is right if it equals a reference after SQuAD normalisation. A context holds a text if it holds
    the text's normalised words in a row; no context holds a text without words. Kinds of errors are measured
    where every question has contexts. Undefined ratios are ``nan``.

    Args:
        request: the answers of every retriever to every question.
        check: called before each step; an exception of it ends the computation.
    """
    check()
    _check_retrievers(request)
    right = []
    for question in request.questions:
        wanted = set(_normalized(question.references, check))
        right.append([answer in wanted for answer in _normalized(question.answers, check)])
    check()
    correct = np.array(right, np.bool_).T
    wins, accuracy = ensemble.relative_win_ratio(correct), correct.mean(axis=1)
    response = pb.CompareRetrieversResponse(
        relative_win_ratio=[pb.Row(values=row) for row in wins.matrix],
        mean_win_ratio=wins.mrwr,
        mean_lose_ratio=wins.mrlr,
        upper_bound=ensemble.upper_bound(correct).mean,
        accuracy=accuracy,
    )
    if request.questions[0].contexts:
        answer_held, response_held = [], []
        for question in request.questions:
            contexts = [f" {text} " for text in _normalized(question.contexts, check)]
            held = [f" {text} " for text in _normalized(question.references, check) if text]
            given = _normalized(question.answers, check)
            answer_held.append([_holds(context, held, check) for context in contexts])
            response_held.append(
                [bool(one) and f" {one} " in context for one, context in zip(given, contexts, strict=True)]
            )
        errors = ensemble.error_indicators(correct, np.array(answer_held).T, np.array(response_held).T)
        for at, share in enumerate(accuracy.tolist()):
            response.errors.add(
                correct=share,
                retriever_error=errors.retriever_error[at].mean(),
                hallucination_error=errors.hallucination_error[at].mean(),
                extraction_error=errors.extraction_error[at].mean(),
                lucky_guess=errors.lucky_guess[at].mean(),
            )
    return response


def compare_systems(request: pb.CompareSystemsRequest, check: Check = unchecked) -> pb.CompareSystemsResponse:
    """Compare two systems by a paired bootstrap, and by McNemar's test where every value is 0 or 1.

    The interval of the difference is Tango's score interval there, unless all values are the same.

    Args:
        request: the values of both systems on the same queries.
        check: called repeatedly; an exception of it ends the computation.
    """
    check()
    if not request.first:
        raise InvalidField("first", "must be at least one value")
    if len(request.second) != len(request.first):
        raise InvalidField(
            "second", f"must be as many as first, {len(request.first)}; {len(request.second)} are given"
        )
    first, second = _finite("first", request.first), _finite("second", request.second)
    options = bootstraps.read_options("bootstrap", request.bootstrap)
    paired = paired_bootstrap(
        first,
        second,
        level=options.level,
        method=options.method,
        num_resamples=options.num_resamples,
        rng=options.seed,
        check=check,
    )
    response = pb.CompareSystemsResponse(
        difference=bootstraps.interval(paired.difference), bootstrap_p=paired.p_value
    )
    if np.isin(first, (0, 1)).all() and np.isin(second, (0, 1)).all():
        test = mcnemar(first, second)
        response.mcnemar_p = test.p_value
        response.only_first, response.only_second = test.only_first, test.only_second
        if len(first) not in (test.both, test.neither):
            low, high = paired_difference_interval(
                test.only_first, test.only_second, len(first), level=options.level
            )
            response.difference.low, response.difference.high = low, high
    return response


def _check_retrievers(request: pb.CompareRetrieversRequest) -> None:
    size = fields.sized("retrievers", len(request.retrievers), 2, MAX_RETRIEVERS)
    for index, name in enumerate(request.retrievers):
        fields.limited(f"retrievers[{index}]", name, fields.MAX_NAME_BYTES, min_bytes=1)
        if name in request.retrievers[:index]:
            raise InvalidField(f"retrievers[{index}]", f"{name!r} comes twice")
    fields.sized("questions", len(request.questions), 1, MAX_QUESTIONS)
    with_contexts = bool(request.questions[0].contexts)
    for index, question in enumerate(request.questions):
        field = f"questions[{index}]"
        if len(question.answers) != size:
            raise InvalidField(
                f"{field}.answers", f"must be one per retriever, {size}; {len(question.answers)} are given"
            )
        if not question.references:
            raise InvalidField(f"{field}.references", "must be at least one")
        if len(question.contexts) != (size if with_contexts else 0):
            wanted = f"{size}, one per retriever" if with_contexts else "none"
            raise InvalidField(
                f"{field}.contexts",
                f"must be {wanted}, as in questions[0]; {len(question.contexts)} are given",
            )


def _finite(field: str, values: Sequence[float]) -> FloatArray:
    read = np.fromiter(values, np.float64, count=len(values))
    good = np.isfinite(read)
    if not good.all():
        at = int(np.argmin(good))
        raise InvalidField(f"{field}[{at}]", f"must be a finite number, got {values[at]}")
    return read


def _normalized(texts: Iterable[str], check: Check) -> list[str]:
    read = []
    for text in texts:
        check()
        read.append(normalize_answer(text))
    return read


def _holds(context: str, texts: Iterable[str], check: Check) -> bool:
    for text in texts:
        check()
        if text in context:
            return True
    return False
