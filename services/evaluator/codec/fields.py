"""Fields that every message of the evaluator shares, each checked with its path."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from meshkit import checks
from meshkit.errors import InvalidField
from ragcore.arrays import FloatArray, IntArray
from ragmesh.common.v1 import common_pb2
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from services.evaluator.domain import UtilityMetric

MAX_ID_BYTES: Final = 128
"""Largest id of an observation, a run or a query. Bytes."""
MAX_NAME_BYTES: Final = 256
"""Largest name or version of a model, an index or a reason. Bytes."""
MAX_QUESTION_BYTES: Final = 8192
"""Largest question. Bytes."""
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_METRICS: Final[dict[int, UtilityMetric]] = {
    pb.UTILITY_METRIC_UNSPECIFIED: UtilityMetric.TOKEN_F1,
    pb.UTILITY_METRIC_EXACT_MATCH: UtilityMetric.EXACT_MATCH,
    pb.UTILITY_METRIC_TOKEN_F1: UtilityMetric.TOKEN_F1,
    pb.UTILITY_METRIC_ROUGE1: UtilityMetric.ROUGE1,
    pb.UTILITY_METRIC_ROUGE2: UtilityMetric.ROUGE2,
    pb.UTILITY_METRIC_ROUGE_L: UtilityMetric.ROUGE_L,
    pb.UTILITY_METRIC_ACCURACY: UtilityMetric.ACCURACY,
}


def identifier(field: str, value: str) -> str:
    """Checks for an id of 1 to 128 bytes without control characters, and returns it."""
    return limited(field, value, MAX_ID_BYTES, min_bytes=1)


def rankings(field: str, message: common_pb2.Rankings, n_items: int) -> IntArray:
    """Reads packed rankings of ``n_items`` items as [N, depth] indices; depth 0 is one ranking of nothing.

    Raises:
        InvalidField: ragged, an index that is no item, or an item twice in one ranking.
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


def metric(field: str, value: int) -> UtilityMetric:
    """Reads a metric; unset is token F1.

    Raises:
        InvalidField: a number that is no metric.
    """
    if value not in _METRICS:
        raise InvalidField(field, f"must be one of {names(pb.UtilityMetric.keys())}, got {value}")
    return _METRICS[value]


def weights(field: str, values: Sequence[float], expected: int, of: str) -> list[float] | None:
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
    read = np.fromiter(values, dtype=np.float64, count=len(values))
    good = (read >= low) & (read <= high)  # false for NaN
    if not good.all():
        at = int(np.argmin(good))
        raise InvalidField(f"{field}[{at}]", f"must be in [{low:g}, {high:g}], got {values[at]}")
    return read


def log_probability(field: str, value: float) -> float:
    return checks.between(field, checks.finite(field, value), float("-inf"), 0)


def limited(field: str, value: str, max_bytes: int, *, min_bytes: int = 0) -> str:
    size = len(value.encode())
    if not min_bytes <= size <= max_bytes:
        raise InvalidField(field, f"must be {min_bytes} to {max_bytes} bytes, has {size}")
    if CONTROL.search(value):
        raise InvalidField(field, "must not hold control characters")
    return value


def names(keys: Iterable[str]) -> str:
    return ", ".join(keys)
