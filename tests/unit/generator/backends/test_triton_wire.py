"""Tensors as they are sent and received, and replies that are none."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferResult, service_pb2
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from evenmesh_generator.backends.triton.wire import (
    DESCRIBE,
    MalformedReplyError,
    decode,
    delta_or_answer,
    described,
    encode,
    generation_tensors,
    judgement_tensors,
    probabilities,
)
from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    Cost,
    Decoding,
    FinishReason,
    GenerationRequest,
    ModelDescription,
    Normalization,
    Passage,
    RelevanceRequest,
    Turn,
)
from evenmesh_generator.runtime.statistics import EngineStatistics
from evenmesh_generator.triton.tensors import answer_tensors, description_tensors, read_request, texts

ANSWER = Answer(
    "Zürich 😀", FinishReason.LENGTH, 7, 3, -1.25, 1, 2, 3, model_version="v", cost=Cost(0.5, batch_rows=2)
)
DESCRIPTION = ModelDescription(
    "inner", "v", "pointer", "P", "cpu", "float32", True, 512, 511, (Augmentation.FUSION_IN_DECODER,)
)


def _result(tensors: dict[str, Any]) -> InferResult:
    """A response as the server sends it."""
    response = service_pb2.ModelInferResponse()
    for name, tensor in tensors.items():
        datatype = np_to_triton_dtype(tensor.dtype)
        response.outputs.add(name=name, datatype=datatype, shape=tensor.shape)
        raw = serialize_byte_tensor(tensor).item() if datatype == "BYTES" else tensor.tobytes()
        response.raw_output_contents.append(raw)
    return InferResult(response)


def _sent(tensors: dict[str, Any]) -> dict[str, Any]:
    """What arrives at the server of these inputs."""
    arrived = service_pb2.ModelInferResponse()
    for one in encode(tensors):
        arrived.outputs.add(name=one.name(), datatype=one.datatype(), shape=one.shape())
        arrived.raw_output_contents.append(one._get_content())
    return decode(InferResult(arrived))


def test_a_request_arrives_as_it_was_sent() -> None:
    request = GenerationRequest(
        "wer? 😀",
        (Passage("0", "t", "text"), Passage("1", "", "")),
        augmentation=Augmentation.IN_PROMPT,
        template="ra-x",
        decoding=Decoding(1, 4096, 0.5, 0.9, 2**63 - 1),
        turns=(Turn("q", "a"),),
    )
    assert read_request(_sent(generation_tensors(request))) == request


def test_decoding_is_sent_even_where_it_is_the_default() -> None:
    other_defaults = Decoding(num_beams=4, max_new_tokens=9, seed=5)
    assert (
        read_request(_sent(generation_tensors(GenerationRequest("q"))), other_defaults).decoding == Decoding()
    )


def test_empty_passages_are_left_out() -> None:
    assert set(generation_tensors(GenerationRequest("q"))) == {
        "question",
        "num_beams",
        "max_new_tokens",
        "temperature",
        "top_p",
        "seed",
    }


@pytest.mark.parametrize("normalization", list(Normalization))
def test_judgements_have_a_row_each(normalization: Normalization) -> None:
    request = RelevanceRequest("q", tuple(Passage(str(at), "t", str(at)) for at in range(5)), normalization)
    sent = _sent(judgement_tensors(request, request.passages[1:4]))
    assert {name: tensor.shape for name, tensor in sent.items()} == dict.fromkeys(
        ("question", "title", "text", "over_vocabulary"), (3, 1)
    )
    assert sent["text"].reshape(-1).tolist() == [b"1", b"2", b"3"]
    assert sent["over_vocabulary"].all() == (normalization is Normalization.VOCABULARY)


def test_answers_and_deltas_are_read() -> None:
    answer = delta_or_answer(decode(_result(answer_tensors(ANSWER))))
    assert isinstance(answer, Answer)
    assert (answer, answer.model_version, answer.cost) == (ANSWER, ANSWER.model_version, ANSWER.cost)
    assert delta_or_answer(decode(_result({"delta": texts(["ü"])}))) == "ü"
    assert delta_or_answer(decode(_result({}))) == ""


BROKEN: dict[str, dict[str, Any]] = {
    "other outputs": {"logits": np.zeros(3)},
    "no UTF-8": {"delta": np.array([b"\xff"], dtype=object)},
    "no counts": {"text": texts(["x"]), "finish_reason": texts(["stop"])},
    "unknown reason": answer_tensors(ANSWER) | {"finish_reason": texts(["tired"])},
    "two texts": answer_tensors(ANSWER) | {"text": texts(["x", "y"])},
    "a cost that is none": answer_tensors(ANSWER) | {"cost": texts(["[1]"])},
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_neither_is_malformed(name: str) -> None:
    with pytest.raises(MalformedReplyError):
        delta_or_answer(decode(_result(BROKEN[name])))


def test_bytes_that_do_not_fit_their_shape_are_malformed() -> None:
    result = _result({"probability": np.zeros(3)})
    result.get_response().raw_output_contents[0] = b"\0" * 5
    with pytest.raises(MalformedReplyError, match="probability cannot be read"):
        decode(result)


@pytest.mark.parametrize("judges", [True, False])
def test_a_description_names_triton_and_what_runs_there(judges: bool) -> None:
    statistics = EngineStatistics(steps=3)
    found = described(decode(_result(description_tensors(DESCRIPTION, statistics))), "outer", judges=judges)
    assert (found.model.name, found.model.engine, found.model.runtime) == ("outer", "triton", "pointer")
    assert found.model.scores_relevance is judges
    assert found.statistics == statistics


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"name": "m"})])
def test_what_describes_nothing_is_malformed(text: str) -> None:
    with pytest.raises(MalformedReplyError):
        described({"description": texts([text])}, "m", judges=False)


@pytest.mark.parametrize(
    "values",
    [
        np.array([0.5]),
        np.array([0.5, 1.5]),
        np.array([0.5, float("nan")]),
        np.array([0.5, 0.5], dtype=np.float32),
    ],
    ids=["too few", "too large", "nan", "of another type"],
)
def test_probabilities_are_one_per_row(values: Any) -> None:
    with pytest.raises(MalformedReplyError):
        probabilities({"probability": values}, 2)
    with pytest.raises(MalformedReplyError):
        probabilities({}, 2)
    assert probabilities({"probability": np.array([[0.0], [1.0]])}, 2) == [0.0, 1.0]


def test_describing_asks_nothing() -> None:
    assert set(DESCRIBE) == {"question", "describe"}
