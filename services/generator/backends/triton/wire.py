"""Tensors as ``tritonclient`` sends and receives them, and what a model's replies mean.

What the tensors are called and hold is :mod:`services.generator.triton.tensors`, for both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from tritonclient.grpc import InferInput, InferResult
from tritonclient.utils import np_to_triton_dtype

from meshkit.errors import InvalidField
from services.generator.domain import (
    Answer,
    GenerationRequest,
    ModelDescription,
    Normalization,
    Passage,
    RelevanceRequest,
)
from services.generator.runtime.statistics import EngineStatistics
from services.generator.triton.tensors import (
    Tensor,
    read_answer,
    read_description,
    read_texts,
    request_tensors,
    texts,
)

ENGINE: Final = "triton"
"""What answers and descriptions name as their engine."""


class MalformedReplyError(ValueError):
    """A reply that is not what the contract says."""


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
    """Inputs by which an answer is asked for; decoding is spelled out, as models may have other defaults."""
    decoding = request.decoding
    return request_tensors(request) | {
        "num_beams": np.array([decoding.num_beams], dtype=np.int32),
        "max_new_tokens": np.array([decoding.max_new_tokens], dtype=np.int32),
        "temperature": np.array([decoding.temperature], dtype=np.float64),
        "top_p": np.array([decoding.top_p], dtype=np.float64),
        "seed": np.array([decoding.seed], dtype=np.int64),
    }


def judgement_tensors(request: RelevanceRequest, passages: Sequence[Passage]) -> dict[str, Tensor]:
    """Inputs by which some of a request's passages are judged, [rows, 1] each."""
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
    return {name: tensor.reshape(rows, 1) for name, tensor in tensors.items()}


def judgement_with_turns(request: RelevanceRequest) -> dict[str, Tensor]:
    """Inputs by which a generating model judges all of a request's passages itself."""
    asked = GenerationRequest(
        request.question, request.passages, template=request.template, turns=request.turns
    )
    over_vocabulary = request.normalization is Normalization.VOCABULARY
    return request_tensors(asked) | {
        "judge": np.array([True]),
        "over_vocabulary": np.array([over_vocabulary]),
    }


def encode(tensors: Mapping[str, Tensor]) -> list[InferInput]:
    """Inputs of a request."""
    inputs = []
    for name, tensor in tensors.items():
        one = InferInput(name, list(tensor.shape), np_to_triton_dtype(tensor.dtype))
        one.set_data_from_numpy(tensor)
        inputs.append(one)
    return inputs


def decode(result: InferResult) -> dict[str, Tensor]:
    """Outputs of a response.

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
    """One response of a stream: text, "" for a response that carries nothing, or the answer.

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
    """A model's description of itself.

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
    """P(True) per row, each in [0, 1].

    Raises:
        MalformedReplyError: they are none, or not one per row.
    """
    values = tensors.get("probability", np.empty(0)).reshape(-1)
    if values.shape != (rows,) or values.dtype != np.float64 or not ((values >= 0) & (values <= 1)).all():
        raise MalformedReplyError(f"probability is no {rows} FP64 of [0, 1]: {values}")
    return [float(value) for value in values]
