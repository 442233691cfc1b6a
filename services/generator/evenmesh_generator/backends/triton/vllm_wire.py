"""Requests to Triton's vLLM backend as tensors, and its responses.

Names and contents are those of https://github.com/triton-inference-server/vllm_backend, whose outputs beside
the text exist since release 24.12. A response carries what is new since the last one; the log-probability is
that of the whole answer so far.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from evenmesh.wire.errors import InvalidField
from evenmesh_generator.backends.stops import stops
from evenmesh_generator.backends.triton.wire import MalformedReplyError
from evenmesh_generator.domain import Decoding
from evenmesh_generator.triton.tensors import Tensor, read_texts, texts

_MARKS: Final = frozenset({"text_input", "sampling_parameters"})
"""Inputs of every release of the backend, and of no model of ours."""

_ASKED: Final = ("return_finish_reason", "return_cumulative_logprob", "return_num_output_tokens")
"""Inputs that ask for what an answer needs beside its text."""

_LOG_PROBABILITIES: Final = "return_logprobs"
_READ: Final = "return_num_input_tokens"
_OPTIONAL: Final = frozenset({_LOG_PROBABILITIES, _READ})
"""Inputs that later releases have."""

_UNFINISHED: Final = "None"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer.

    ``finish``: why the model stopped, None before the end; ``log_probability``: of the answer so far, in
    nats; ``written``: tokens of the piece, [0, inf); ``read``: tokens of the prompt, None where the server
    does not count them.
    """

    text: str
    finish: str | None
    log_probability: float
    written: int
    read: int | None


def speaks(inputs: Iterable[str]) -> bool:
    """Return whether a model with these inputs is one of the backend's."""
    return set(inputs) >= _MARKS


def missing(inputs: Iterable[str]) -> list[str]:
    """Return the inputs that a model of the backend lacks: its release is too old."""
    return sorted({"stream", "exclude_input_in_output", *_ASKED} - set(inputs))


def optional(inputs: Iterable[str]) -> frozenset[str]:
    """Return the inputs of later releases that a model has."""
    return _OPTIONAL & frozenset(inputs)


def judges(inputs: Iterable[str]) -> bool:
    """Return whether a model tells the log-probabilities of single tokens."""
    return _LOG_PROBABILITIES in set(inputs)


def generation(
    prompt: str, decoding: Decoding, further: Mapping[str, Any], known: frozenset[str]
) -> dict[str, Tensor]:
    """Return the inputs of a request for a stream.

    Args:
        prompt: what the model reads.
        decoding: how it chooses tokens; with one beam.
        further: sampling parameters of vLLM's besides.
        known: what :func:`optional` found.
    """
    asked = [*_ASKED, *(known & {_READ})]
    return _inputs(prompt, decoding, {**further, "logprobs": 0}, asked)


def judgement(prompt: str, top: int, further: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the inputs of a request for the ``top`` most probable first tokens of an answer."""
    return _inputs(prompt, Decoding(max_new_tokens=1), {**further, "logprobs": top}, [_LOG_PROBABILITIES])


def piece(tensors: Mapping[str, Tensor]) -> Piece:
    """Return one response of a stream.

    Raises:
        MalformedReplyError: it is none of the backend's.
    """
    finish = _text(tensors, "finish_reason")
    log_probability = _number(tensors, "cumulative_logprob", np.float32)
    if not log_probability <= 0.0:
        raise MalformedReplyError(f"cumulative_logprob is no log-probability: {log_probability}")
    return Piece(
        _text(tensors, "text_output"),
        None if finish == _UNFINISHED else finish,
        log_probability,
        int(_number(tensors, "num_output_tokens", np.uint32)),
        int(_number(tensors, "num_input_tokens", np.uint32)) if "num_input_tokens" in tensors else None,
    )


def top(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the most probable first tokens of an answer with their log-probabilities in nats.

    Raises:
        MalformedReplyError: there are none.
    """
    try:
        first = json.loads(_text(tensors, "logprobs"))[0]
        found = {str(one["decoded_token"]): float(one["logprob"]) for one in first.values()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise MalformedReplyError("logprobs holds no log-probabilities of a token") from None
    if not found or any(math.isnan(value) or value > 1e-3 for value in found.values()):
        raise MalformedReplyError("logprobs holds no log-probabilities of a token")
    return found


def _inputs(
    prompt: str, decoding: Decoding, further: Mapping[str, Any], asked: Iterable[str]
) -> dict[str, Tensor]:
    lengths = {"max_tokens": decoding.max_new_tokens, "temperature": decoding.temperature}
    sampling = {**further, **stops(further, decoding), **lengths}
    if decoding.temperature > 0:
        sampling |= {"top_p": decoding.top_p, "seed": decoding.seed}
    return {
        "text_input": texts([prompt]),
        "stream": np.array([True]),
        "exclude_input_in_output": np.array([True]),
        "sampling_parameters": texts([json.dumps(sampling)]),
        **{name: np.array([True]) for name in asked},
    }


def _text(tensors: Mapping[str, Tensor], name: str) -> str:
    if name not in tensors:
        raise MalformedReplyError(f"{name} is missing")
    try:
        found = read_texts(tensors[name], name)
    except InvalidField as error:
        raise MalformedReplyError(str(error)) from None
    if len(found) != 1:
        raise MalformedReplyError(f"{name} has {len(found)} texts instead of one")
    return found[0]


def _number(tensors: Mapping[str, Tensor], name: str, dtype: type[np.generic]) -> float:
    found = tensors.get(name)
    if found is None or found.dtype != dtype or found.size != 1:
        raise MalformedReplyError(f"{name} is no single {np.dtype(dtype)}: {found}")
    return float(found.reshape(-1)[0])
