"""Encode requests as tensors of ``tritonclient``, and decode a model's replies.

Both sides share the tensors' names and contents: :mod:`evenmesh_generator.triton.tensors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from tritonclient.grpc import InferInput, InferResult
from tritonclient.utils import np_to_triton_dtype

from evenmesh.wire.errors import InvalidField
from evenmesh_generator.domain import (
    Answer,
    GenerationRequest,
    ModelDescription,
    Normalization,
    Passage,
    RelevanceRequest,
)
from evenmesh_generator.runtime.statistics import EngineStatistics
from evenmesh_generator.triton.tensors import (
    Tensor,
    decoding_tensors,
    opaque,
    read_answer,
    read_description,
    read_texts,
    request_tensors,
    texts,
)

ENGINE: Final = "triton"
"""What answers and descriptions name as their engine."""


class MalformedReplyError(ValueError):
    """Raised when a reply breaks the contract."""


@dataclass(frozen=True, slots=True)
class Described:
    """A model of the server as it describes itself.

    Attributes:
        model: what it is; ``engine`` is ``triton``, ``runtime`` what runs the model there.
        statistics: what it has done so far.
    """

    model: ModelDescription
    statistics: EngineStatistics


DESCRIBE: Final[Mapping[str, Tensor]] = {"question": texts([""]), "describe": np.array([True])}
"""Asks a generating model to describe itself."""


def generation_tensors(request: GenerationRequest) -> dict[str, Tensor]:
    """Return the inputs of a request for an answer, with all of its decoding: models may have other
    defaults.
    """
    return request_tensors(request) | decoding_tensors(request.decoding)


def judgement_tensors(request: RelevanceRequest, passages: Sequence[Passage]) -> dict[str, Tensor]:
    """Return the inputs by which some of a request's passages are judged, [rows, 1] each."""
    rows = len(passages)
    over_vocabulary = request.normalization is Normalization.VOCABULARY
    tensors = {
        "question": texts([request.question] * rows),
        "title": texts([one.title for one in passages]),
        "text": texts([one.text for one in passages]),
        "over_vocabulary": np.full(rows, over_vocabulary),
    }
    if request.template:
        tensors["template"] = texts([request.template] * rows)
    if request.tenant:
        tensors["tenant"] = texts([opaque(request.tenant)] * rows)
    return {name: tensor.reshape(rows, 1) for name, tensor in tensors.items()}


def judgement_with_turns(request: RelevanceRequest) -> dict[str, Tensor]:
    """Return the inputs by which a generating model judges all of a request's passages itself."""
    asked = GenerationRequest(
        request.question,
        request.passages,
        template=request.template,
        turns=request.turns,
        tenant=request.tenant,
    )
    over_vocabulary = request.normalization is Normalization.VOCABULARY
    return request_tensors(asked) | {
        "judge": np.array([True]),
        "over_vocabulary": np.array([over_vocabulary]),
    }


def encode(tensors: Mapping[str, Tensor]) -> list[InferInput]:
    """Return the inputs of a request."""
    inputs = []
    for name, tensor in tensors.items():
        one = InferInput(name, list(tensor.shape), np_to_triton_dtype(tensor.dtype))
        one.set_data_from_numpy(tensor)
        inputs.append(one)
    return inputs


def decode(result: InferResult) -> dict[str, Tensor]:
    """Return the outputs of a response.

    Raises:
        MalformedReplyError: an output's bytes are not of its shape and type.
    """
    tensors = {}
    for output in result.get_response().outputs:
        try:
            tensors[output.name] = np.asarray(result.as_numpy(output.name))
        except Exception as error:  # noqa: BLE001 - whatever the library makes of such bytes
            raise MalformedReplyError(f"{output.name} cannot be read: {error}") from None
    return tensors


def delta_or_answer(tensors: Mapping[str, Tensor]) -> str | Answer:
    """Return one response of a stream: text, "" for a response that carries nothing, or the answer.

    Raises:
        MalformedReplyError: it is none of these.
    """
    try:
        if "text" in tensors:
            return read_answer(tensors)
        if "delta" in tensors:
            return "".join(read_texts(tensors["delta"], "delta"))
    except InvalidField as error:
        raise MalformedReplyError(str(error)) from None
    if tensors:
        raise MalformedReplyError(f"neither text nor delta among {sorted(tensors)}")
    return ""


def described(tensors: Mapping[str, Tensor], name: str, *, judges: bool) -> Described:
    """Return a model's description of itself.

    Args:
        name: what requests of this service call it.
        judges: whether the server has the model that judges with it.

    Raises:
        MalformedReplyError: it is none.
    """
    try:
        model, statistics = read_description(tensors)
    except InvalidField as error:
        raise MalformedReplyError(str(error)) from None
    model = replace(
        model,
        name=name,
        engine=ENGINE,
        runtime=model.runtime or model.engine,
        scores_relevance=model.scores_relevance and judges,
    )
    return Described(model, statistics)


def probabilities(tensors: Mapping[str, Tensor], rows: int) -> list[float]:
    """Return P(True) per row, each in [0, 1].

    Raises:
        MalformedReplyError: they are none, or not one per row.
    """
    values = tensors.get("probability", np.empty(0)).reshape(-1)
    if values.shape != (rows,) or values.dtype != np.float64 or not ((values >= 0) & (values <= 1)).all():
        raise MalformedReplyError(f"probability is no {rows} FP64 of [0, 1]: {values}")
    return [float(value) for value in values]
