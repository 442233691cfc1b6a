"""Group memberships and target distributions of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, get_args

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.choices import Choices
from evenmesh.wire.errors import InvalidField
from evenmesh_core.group_fairness import Attribute, DivergenceName
from evenmesh_evaluator import fields

_SUM_SLACK: Final = 1e-6
_DIVERGENCES: Final = Choices[DivergenceName](
    pb.AttributeTarget.Divergence.DESCRIPTOR, get_args(DivergenceName), "rnod"
)


def attributes(targets: Mapping[str, pb.AttributeTarget]) -> dict[str, Attribute]:
    """Return the field ``attributes``: the target of each attribute, by name.

    Raises:
        InvalidField: an unknown divergence, or a target that is no distribution.
    """
    return {name: _attribute(f"attributes[{name!r}]", targets[name]) for name in sorted(targets)}


def memberships(field: str, message: Mapping[str, pb.Distribution]) -> dict[str, list[float]]:
    """Return the shares of each attribute.

    Raises:
        InvalidField: shares that are no distribution.
    """
    return {name: shares(f"{field}[{name!r}]", one) for name, one in message.items()}


def shares(field: str, message: pb.Distribution) -> list[float]:
    """Return the shares of a distribution.

    Raises:
        InvalidField: a share outside [0, 1], or shares that do not sum to 1.
    """
    fields.numbers(field, message.shares, 0, 1)
    if abs(sum(message.shares) - 1) > _SUM_SLACK:
        raise InvalidField(field, f"must sum to 1, sums to {sum(message.shares):g}")
    return list(message.shares)


def _attribute(field: str, message: pb.AttributeTarget) -> Attribute:
    divergence = _DIVERGENCES.read(f"{field}.divergence", message.divergence)
    gold = shares(f"{field}.gold", message.gold)
    if len(gold) < 2:
        raise InvalidField(f"{field}.gold", "must be at least 2 groups")
    return Attribute(gold, divergence)
