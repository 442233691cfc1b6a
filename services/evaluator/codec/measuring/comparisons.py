"""Comparisons of retrievers and of systems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from meshkit.errors import InvalidField
from ragcore.arrays import FloatArray
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from services.evaluator.codec import fields
from services.evaluator.codec.measuring import intervals
from services.evaluator.evaluation.comparisons import (
    RetrieversMeasured,
    RetrieversQuestion,
    SystemsMeasured,
    SystemsQuestion,
)

MAX_RETRIEVERS: Final = 20
"""Most retrievers that are compared: their pools are all looked at."""
MAX_QUESTIONS: Final = 10_000
"""Most questions that they are compared on."""


def retrievers_question(request: pb.CompareRetrieversRequest) -> RetrieversQuestion:
    """Reads the answers of retrievers; kinds of errors are told where every question has contexts.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    size = len(request.retrievers)
    if not 2 <= size <= MAX_RETRIEVERS:
        raise InvalidField("retrievers", f"must be 2 to {MAX_RETRIEVERS}, {size} are given")
    for index, name in enumerate(request.retrievers):
        fields.limited(f"retrievers[{index}]", name, fields.MAX_NAME_BYTES, min_bytes=1)
        if name in request.retrievers[:index]:
            raise InvalidField(f"retrievers[{index}]", f"{name!r} comes twice")
    count = len(request.questions)
    if not 1 <= count <= MAX_QUESTIONS:
        raise InvalidField("questions", f"must be 1 to {MAX_QUESTIONS}, {count} are given")
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
    contexts = [list(question.contexts) for question in request.questions]
    return RetrieversQuestion(
        answers=[list(question.answers) for question in request.questions],
        references=[list(question.references) for question in request.questions],
        contexts=contexts if with_contexts else None,
    )


def retrievers_response(measured: RetrieversMeasured) -> pb.CompareRetrieversResponse:
    """Writes how retrievers disagree; what is undefined is not a number."""
    response = pb.CompareRetrieversResponse(
        relative_win_ratio=[pb.Row(values=row) for row in measured.wins.matrix],
        mean_win_ratio=measured.wins.mrwr,
        mean_lose_ratio=measured.wins.mrlr,
        upper_bound=measured.bounds.mean,
        accuracy=measured.accuracy,
    )
    if (errors := measured.errors) is not None:
        for at, accuracy in enumerate(measured.accuracy.tolist()):
            response.errors.add(
                correct=accuracy,
                retriever_error=errors.retriever_error[at].mean(),
                hallucination_error=errors.hallucination_error[at].mean(),
                extraction_error=errors.extraction_error[at].mean(),
                lucky_guess=errors.lucky_guess[at].mean(),
            )
    return response


def systems_question(request: pb.CompareSystemsRequest) -> SystemsQuestion:
    """Reads the values of two systems.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    if not request.first:
        raise InvalidField("first", "must be at least one value")
    if len(request.second) != len(request.first):
        raise InvalidField(
            "second", f"must be as many as first, {len(request.first)}; {len(request.second)} are given"
        )
    return SystemsQuestion(
        first=_finite("first", request.first),
        second=_finite("second", request.second),
        resampling=intervals.resampling("bootstrap", request.bootstrap),
    )


def systems_response(measured: SystemsMeasured) -> pb.CompareSystemsResponse:
    """Writes the difference of two systems; McNemar's test stays unset where there is none."""
    test = measured.mcnemar
    return pb.CompareSystemsResponse(
        difference=intervals.interval(measured.bootstrap.difference),
        bootstrap_p=measured.bootstrap.p_value,
        mcnemar_p=None if test is None else test.p_value,
        only_first=None if test is None else test.only_first,
        only_second=None if test is None else test.only_second,
    )


def _finite(field: str, values: Sequence[float]) -> FloatArray:
    read = np.fromiter(values, np.float64, count=len(values))
    good = np.isfinite(read)
    if not good.all():
        at = int(np.argmin(good))
        raise InvalidField(f"{field}[{at}]", f"must be a finite number, got {values[at]}")
    return read
