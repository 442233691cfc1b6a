"""Bootstrap settings of a request, and intervals of a response."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, get_args

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire import checks
from evenmesh.wire.choices import Choices
from evenmesh.wire.errors import InvalidField
from evenmesh_core.intervals import BootstrapInterval, BootstrapMethod
from evenmesh_evaluator import cost, fields

_METHODS: Final = Choices[BootstrapMethod](pb.IntervalMethod.DESCRIPTOR, get_args(BootstrapMethod), "bca")


@dataclass(frozen=True, slots=True)
class BootstrapOptions:
    """Options of a bootstrap over queries; the same seed gives the same interval."""

    method: BootstrapMethod = "bca"
    num_resamples: int = cost.DEFAULT_RESAMPLES
    level: float = 0.95
    seed: int = 0


def read_options(field: str, message: pb.Bootstrap) -> BootstrapOptions:
    """Return the options of a bootstrap, with the default for each unset field."""
    default = BootstrapOptions()
    num_resamples = message.num_resamples if message.HasField("num_resamples") else default.num_resamples
    level = message.level if message.HasField("level") else default.level
    method = _METHODS.read(f"{field}.method", message.method)
    if not 0 < level < 1:
        raise InvalidField(f"{field}.level", f"must be in (0, 1), got {level}")
    return BootstrapOptions(
        method=method,
        num_resamples=checks.between(f"{field}.num_resamples", num_resamples, 100, 100_000),
        level=level,
        seed=fields.seed(f"{field}.seed", message.seed),
    )


def interval(value: BootstrapInterval) -> pb.IntervalEstimate:
    """Return a statistic with its interval; undefined values stay unset."""
    return pb.IntervalEstimate(
        value=defined(value.value), low=defined(value.low), high=defined(value.high), level=value.level
    )


def defined(value: float) -> float | None:
    """Return the value, or None for ``nan``."""
    return None if math.isnan(value) else float(value)
