"""Checks of fields that several messages of the evaluator share; each error carries the field's path."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from google.protobuf.message import Message

from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire import checks
from evenmesh.wire.choices import Choices
from evenmesh.wire.errors import InvalidField
from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_evaluator.domain import UtilityMetric

MAX_ID_BYTES: Final = 128
"""Largest id of an observation, a run or a query. Bytes."""
MAX_NAME_BYTES: Final = 256
"""Largest name or version of a model, an index or a reason. Bytes."""
MAX_QUESTION_BYTES: Final = 8192
"""Largest question. Bytes."""
LARGEST_SEED: Final = 2**63 - 1
"""Largest seed of a random generator."""
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")

METRICS: Final = Choices(pb.UtilityMetric.DESCRIPTOR, UtilityMetric, UtilityMetric.TOKEN_F1)
"""Metrics of answers; unspecified is token F1."""


def kib(message: Message) -> int:
    """Return the admission weight of a message: its size, rounded up. KiB, [1, inf)."""
    return 1 + message.ByteSize() // 1024


def identifier(field: str, value: str) -> str:
    """Return an id, checked for 1 to 128 bytes without control characters."""
    return limited(field, value, MAX_ID_BYTES, min_bytes=1)


def sized(field: str, given: int, low: int, high: int) -> int:
    """Return the number of entries of a field, checked to be in [low, high]."""
    if not low <= given <= high:
        raise InvalidField(field, f"must be {low} to {high}, {given} are given")
    return given


def question(field: str, value: str) -> str:
    """Return a question, checked for at most 8,192 bytes; it may be empty."""
    if len(value.encode()) > MAX_QUESTION_BYTES:
        raise InvalidField(field, f"must be at most {MAX_QUESTION_BYTES} bytes")
    return value


def seed(field: str, value: int) -> int:
    """Return a seed, checked to be in [0, 2^63 - 1]."""
    if value > LARGEST_SEED:
        raise InvalidField(field, f"must be in [0, 2^63 - 1], got {value}")
    return value


def rankings(field: str, message: common_pb2.Rankings, n_items: int) -> IntArray:
    """Return packed rankings of ``n_items`` items as indices [N, depth]; depth 0 is one ranking of nothing.

    Raises:
        InvalidField: rankings of unequal length, an index that is no item, or an item twice in one ranking.
    """
    depth = checks.between(f"{field}.depth", message.depth, 0, 1000)
    size = len(message.indices)
    log_probabilities = message.log_probabilities
    if not depth:
        if size:
            raise InvalidField(
                f"{field}.depth", f"must be at least 1 where there are indices, {size} are given"
            )
        shown = np.empty((1, 0), dtype=np.int64)
    else:
        if size % depth or not size:
            raise InvalidField(
                f"{field}.indices", f"must be whole rankings of {depth}, {size} indices are given"
            )
        shown = np.fromiter(message.indices, dtype=np.int64, count=size).reshape(-1, depth)
        if (largest := int(shown.max())) >= n_items:
            at = int(np.argmax(shown.ravel() == largest))
            raise InvalidField(f"{field}.indices[{at}]", f"must be below {n_items}, got {largest}")
        ordered = np.sort(shown, axis=1)
        twice = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
        if twice.any():
            raise InvalidField(f"{field}.indices", f"ranking {int(np.argmax(twice))} has an item twice")
    if log_probabilities:
        if depth and len(log_probabilities) != len(shown):
            raise InvalidField(
                f"{field}.log_probabilities", f"must be one per ranking, {len(log_probabilities)} are given"
            )
        for index, value in enumerate(log_probabilities):
            log_probability(f"{field}.log_probabilities[{index}]", value)
    return shown


def weights(field: str, values: Sequence[float], expected: int, of: str) -> list[float] | None:
    """Return weights in [0, 1], one per entry of ``of``, or None where none are given."""
    if not values:
        return None
    if len(values) != expected:
        raise InvalidField(
            field, f"must be empty or one per entry of {of}, {expected}; {len(values)} are given"
        )
    numbers(field, values, 0, 1)
    if not sum(values):
        raise InvalidField(field, "must not all be 0")
    return list(values)


def numbers(field: str, values: Sequence[float], low: float, high: float) -> FloatArray:
    """Return numbers as a vector, each checked to be in [low, high]."""
    read = np.fromiter(values, dtype=np.float64, count=len(values))
    good = (read >= low) & (read <= high)  # false for NaN
    if not good.all():
        at = int(np.argmin(good))
        raise InvalidField(f"{field}[{at}]", f"must be in [{low:g}, {high:g}], got {values[at]}")
    return read


def log_probability(field: str, value: float) -> float:
    """Return a natural logarithm of a probability, checked to be finite and at most 0."""
    return checks.between(field, checks.finite(field, value), float("-inf"), 0)


def limited(field: str, value: str, max_bytes: int, *, min_bytes: int = 0) -> str:
    """Return a text, checked for its size in bytes and for control characters."""
    size = len(value.encode())
    if not min_bytes <= size <= max_bytes:
        raise InvalidField(field, f"must be {min_bytes} to {max_bytes} bytes, has {size}")
    if CONTROL.search(value):
        raise InvalidField(field, "must not hold control characters")
    return value
