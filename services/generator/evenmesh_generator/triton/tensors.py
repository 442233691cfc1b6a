"""Convert requests, answers and errors to tensors and text, and back, on both sides of a Triton server.

Arrays are one-dimensional; text is UTF-8 in arrays of
``object``, as Triton's BYTES are; what has its default is left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from typing import Any, Final

import grpc
import numpy as np
from numpy.typing import NDArray

from evenmesh.common.v1 import common_pb2
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField, MeshError, Overloaded, from_item_error
from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    Cost,
    Decoding,
    FinishReason,
    GenerationRequest,
    ModelDescription,
    Passage,
    Span,
    Turn,
)
from evenmesh_generator.runtime.statistics import EngineStatistics

Tensor = NDArray[Any]

RELEVANCE_SUFFIX: Final = ".score_relevance"
"""What the Triton model that judges for a model is called, behind the model's name."""

_NO_DECODING: Final = Decoding()
_DECODING: Final = {
    "num_beams": np.int32,
    "max_new_tokens": np.int32,
    "temperature": np.float64,
    "top_p": np.float64,
    "seed": np.int64,
}
_COUNTS: Final = (
    "prompt_tokens",
    "completion_tokens",
    "dropped_passages",
    "cut_passages",
    "dropped_turns",
)


def texts(values: Sequence[str]) -> Tensor:
    """Return the text as a tensor [n]."""
    tensor = np.empty(len(values), dtype=object)
    tensor[:] = [value.encode() for value in values]
    return tensor


def read_texts(tensor: Tensor, field: str) -> list[str]:
    """Return the text of a tensor of any shape, in order.

    Raises:
        InvalidField: it is not UTF-8.
    """
    values = tensor.reshape(-1).tolist()
    try:
        return [value if isinstance(value, str) else bytes(value).decode() for value in values]
    except UnicodeDecodeError:
        raise InvalidField(field, "is not UTF-8") from None


def opaque(tenant: str) -> str:
    """Return what tells a tenant apart at a Triton server, without its name."""
    return hashlib.blake2b(tenant.encode(), digest_size=16).hexdigest()


def request_tensors(request: GenerationRequest) -> dict[str, Tensor]:
    """Return the inputs of a generating model; its name is not among them."""
    tensors = {"question": texts([request.question])}
    if request.passages:
        tensors["passage_titles"] = texts([passage.title for passage in request.passages])
        tensors["passage_texts"] = texts([passage.text for passage in request.passages])
    if request.turns:
        tensors["turn_questions"] = texts([turn.question for turn in request.turns])
        tensors["turn_answers"] = texts([turn.answer for turn in request.turns])
    if request.augmentation is not None:
        tensors["augmentation"] = texts([request.augmentation.value])
    if request.template:
        tensors["template"] = texts([request.template])
    if request.contextual_question:
        tensors["contextual_question"] = texts([request.contextual_question])
    if request.tenant:
        tensors["tenant"] = texts([opaque(request.tenant)])
    if request.decoding.stop:
        tensors["stop"] = texts(request.decoding.stop)
    chosen = decoding_tensors(request.decoding)
    usual = decoding_tensors(_NO_DECODING)
    return tensors | {name: tensor for name, tensor in chosen.items() if tensor != usual[name]}


def decoding_tensors(decoding: Decoding) -> dict[str, Tensor]:
    """Return the inputs that spell decoding out."""
    return {name: np.array([getattr(decoding, name)], dtype=kind) for name, kind in _DECODING.items()}


def read_request(tensors: Mapping[str, Tensor], defaults: Decoding = _NO_DECODING) -> GenerationRequest:
    """Return the request of a generating model's inputs. Passages are called by their positions.

    Args:
        tensors: the inputs that were sent.
        defaults: decoding where the inputs say nothing.

    Raises:
        InvalidField: an input is missing or has a value or shape that is not allowed.
    """
    passages = _pairs(tensors, "passage_titles", "passage_texts")
    turns = _pairs(tensors, "turn_questions", "turn_answers")
    augmentation = _text(tensors, "augmentation")
    return GenerationRequest(
        _text(tensors, "question"),
        tuple(Passage(str(at), title, text) for at, (title, text) in enumerate(passages)),
        augmentation=_augmentation(augmentation) if augmentation else None,
        template=_text(tensors, "template"),
        decoding=_read_decoding(tensors, defaults),
        turns=tuple(Turn(question, answer) for question, answer in turns),
        tenant=_text(tensors, "tenant"),
        contextual_question=_text(tensors, "contextual_question"),
    )


def answer_tensors(answer: Answer) -> dict[str, Tensor]:
    """Return the outputs of the last response."""
    span = None if answer.span is None else astuple(answer.span)
    grounds = {"confidence": answer.confidence, "span": span, "cut_question": answer.cut_question}
    return {
        "text": texts([answer.text]),
        "finish_reason": texts([answer.finish_reason.value]),
        **{name: np.array([getattr(answer, name)], dtype=np.int32) for name in _COUNTS},
        "log_probability": np.array([answer.log_probability], dtype=np.float64),
        "model_version": texts([answer.model_version]),
        "cost": texts([json.dumps(asdict(answer.cost))]),
        "grounds": texts([json.dumps(grounds)]),
    }


def read_answer(tensors: Mapping[str, Tensor]) -> Answer:
    """Return the answer of the last response's outputs.

    Raises:
        InvalidField: an output is missing or has a value that is not allowed.
    """
    try:
        # a server of an older version has no such output
        grounds = json.loads(_text(tensors, "grounds") or "{}")
        confidence, span = grounds.get("confidence"), grounds.get("span")
        return Answer(
            _text(tensors, "text"),
            FinishReason(_text(tensors, "finish_reason")),
            log_probability=float(tensors["log_probability"][0]),
            model_version=_text(tensors, "model_version"),
            cost=Cost(**json.loads(_text(tensors, "cost"))),
            confidence=None if confidence is None else float(confidence),
            span=None if span is None else Span(*map(int, span)),
            cut_question=bool(grounds.get("cut_question")),
            **{name: int(tensors[name][0]) for name in _COUNTS},
        )
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise InvalidField("answer", f"is not one: {error!r}") from None


def description_tensors(description: ModelDescription, statistics: EngineStatistics) -> dict[str, Tensor]:
    """Return the outputs of a request with ``describe``."""
    content = asdict(description)
    content["augmentations"] = [augmentation.value for augmentation in description.augmentations]
    content["statistics"] = asdict(statistics)
    return {"description": texts([json.dumps(content)])}


def read_description(tensors: Mapping[str, Tensor]) -> tuple[ModelDescription, EngineStatistics]:
    """Return what :func:`description_tensors` wrote, without fields that only a newer model knows.

    Raises:
        InvalidField: it is no description.
    """
    try:
        content = json.loads(_text(tensors, "description"))
        statistics = EngineStatistics(**_known(content.pop("statistics"), EngineStatistics))
        content["augmentations"] = tuple(map(Augmentation, content["augmentations"]))
        return ModelDescription(**_known(content, ModelDescription)), statistics
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise InvalidField("description", f"is not one: {error!r}") from None


def error_text(error: MeshError) -> str:
    """Return an error as the message of a Triton error."""
    return json.dumps(
        {
            "code": error.code.name,
            "reason": error.reason,
            "message": error.message,
            "field": error.field,
            "retry_after_s": error.retry_after_s,
        }
    )


def read_error(text: str) -> MeshError | None:
    """Return the mesh error in the message of a Triton error; None if the message is Triton's own."""
    begin, end = text.find("{"), text.rfind("}")
    try:
        content = json.loads(text[begin : end + 1])
        code, message, field = content["code"], content["message"], content["field"]
        retry_after_s = content["retry_after_s"]
        reason = content["reason"]
    except (ValueError, KeyError, TypeError):
        return None
    if retry_after_s is not None and code == grpc.StatusCode.RESOURCE_EXHAUSTED.name:
        return Overloaded(message, retry_after_s)
    return from_item_error(common_pb2.ItemError(code=code, reason=reason, message=message, field=field or ""))


def flag(tensors: Mapping[str, Tensor], name: str) -> bool:
    """Return whether the input ``name`` is there and true."""
    tensor = tensors.get(name)
    return tensor is not None and bool(tensor.reshape(-1)[:1].any())


def _read_decoding(tensors: Mapping[str, Tensor], defaults: Decoding) -> Decoding:
    values: dict[str, Any] = {
        name: _number(tensors[name], name) if name in tensors else getattr(defaults, name)
        for name in _DECODING
    }
    if "stop" in tensors:
        values["stop"] = checks.stop("stop", read_texts(tensors["stop"], "stop"))
    decoding = Decoding(**values)
    for name, allowed, fine in (
        ("num_beams", "1 to 16", 1 <= decoding.num_beams <= 16),
        ("max_new_tokens", "1 to 4096", 1 <= decoding.max_new_tokens <= 4096),
        ("temperature", "0 to 10", 0 <= decoding.temperature <= 10),
        ("top_p", "over 0, to 1", 0 < decoding.top_p <= 1),
        ("seed", "0 or more", decoding.seed >= 0),
    ):
        if not fine:
            raise InvalidField(name, f"is {values[name]}; allowed: {allowed}")
    if decoding.num_beams > 1 and decoding.temperature > 0:
        raise InvalidField("num_beams", "must be 1 when the temperature is above 0")
    return decoding


def _number(tensor: Tensor, field: str) -> int | float:
    if tensor.size != 1:
        raise InvalidField(field, f"has {tensor.size} values; one is wanted")
    value: int | float = tensor.reshape(-1)[0].item()
    return value


def _text(tensors: Mapping[str, Tensor], name: str) -> str:
    if name not in tensors:
        return ""
    values = read_texts(tensors[name], name)
    if len(values) != 1:
        raise InvalidField(name, f"has {len(values)} values; one is wanted")
    return values[0]


def _pairs(tensors: Mapping[str, Tensor], first: str, second: str) -> list[tuple[str, str]]:
    left, right = (read_texts(tensors[name], name) if name in tensors else [] for name in (first, second))
    if len(left) != len(right):
        raise InvalidField(second, f"has {len(right)} values and {first} {len(left)}; as many are wanted")
    return list(zip(left, right, strict=True))


def _augmentation(value: str) -> Augmentation:
    try:
        return Augmentation(value)
    except ValueError:
        known = ", ".join(one.value for one in Augmentation)
        raise InvalidField("augmentation", f"is {value!r}; allowed: {known}") from None


def _known(content: Mapping[str, Any], cls: type) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name in cls.__dataclass_fields__}  # type: ignore[attr-defined]
