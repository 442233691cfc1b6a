"""How intervals are bootstrapped, and what comes of it."""

from __future__ import annotations

import math
from typing import Final

from meshkit import checks
from meshkit.errors import InvalidField
from ragcore.intervals import BootstrapInterval, BootstrapMethod
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from services.evaluator.codec import fields
from services.evaluator.evaluation.resampling import Resampling

_METHODS: Final[dict[int, BootstrapMethod]] = {
    pb.INTERVAL_METHOD_UNSPECIFIED: "bca",
    pb.INTERVAL_METHOD_BCA: "bca",
    pb.INTERVAL_METHOD_PERCENTILE: "percentile",
}
_LARGEST_SEED: Final = 2**63 - 1


def resampling(field: str, message: pb.Bootstrap) -> Resampling:
    """Reads how to bootstrap; what is unset has its default.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    if message.method not in _METHODS:
        names = fields.names(pb.IntervalMethod.keys())
        raise InvalidField(f"{field}.method", f"must be one of {names}, got {message.method}")
    default = Resampling()
    num_resamples = message.num_resamples if message.HasField("num_resamples") else default.num_resamples
    level = message.level if message.HasField("level") else default.level
    if not 0 < level < 1:
        raise InvalidField(f"{field}.level", f"must be in (0, 1), got {level}")
    seed = message.seed if message.HasField("seed") else default.seed
    if seed > _LARGEST_SEED:
        raise InvalidField(f"{field}.seed", f"must be in [0, 2^63 - 1], got {seed}")
    return Resampling(
        method=_METHODS[message.method],
        num_resamples=checks.between(f"{field}.num_resamples", num_resamples, 100, 100_000),
        level=level,
        seed=seed,
    )


def interval(value: BootstrapInterval) -> pb.IntervalEstimate:
    """Writes a statistic with its interval; what is undefined stays unset."""
    return pb.IntervalEstimate(
        value=defined(value.value), low=defined(value.low), high=defined(value.high), level=value.level
    )


def defined(value: float) -> float | None:
    """The value, or None for "not a number"."""
    return None if math.isnan(value) else float(value)
