"""Groups: memberships, and what is fair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from meshkit.errors import InvalidField
from ragcore.group_fairness import Attribute, DivergenceName
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from services.evaluator.codec import fields

_SUM_SLACK: Final = 1e-6
_DIVERGENCES: Final[dict[int, DivergenceName]] = {
    pb.AttributeTarget.DIVERGENCE_UNSPECIFIED: "rnod",
    pb.AttributeTarget.DIVERGENCE_RNOD: "rnod",
    pb.AttributeTarget.DIVERGENCE_NMD: "nmd",
    pb.AttributeTarget.DIVERGENCE_JSD: "jsd",
}


def attributes(targets: Mapping[str, pb.AttributeTarget]) -> dict[str, Attribute]:
    """Reads the field ``attributes``: targets by attribute.

    Raises:
        InvalidField: a divergence there is none of, or a target that is no distribution.
    """
    return {name: _attribute(f"attributes[{name!r}]", targets[name]) for name in sorted(targets)}


def memberships(field: str, message: Mapping[str, pb.Distribution]) -> dict[str, list[float]]:
    """Reads shares per attribute.

    Raises:
        InvalidField: shares that are no distribution.
    """
    return {name: shares(f"{field}[{name!r}]", one) for name, one in message.items()}


def shares(field: str, message: pb.Distribution) -> list[float]:
    """Reads a distribution.

    Raises:
        InvalidField: a share outside [0, 1], or shares that do not sum to 1.
    """
    fields.numbers(field, message.shares, 0, 1)
    if abs(sum(message.shares) - 1) > _SUM_SLACK:
        raise InvalidField(field, f"must sum to 1, sums to {sum(message.shares):g}")
    return list(message.shares)


def _attribute(field: str, message: pb.AttributeTarget) -> Attribute:
    if message.divergence not in _DIVERGENCES:
        names = fields.names(pb.AttributeTarget.Divergence.keys())
        raise InvalidField(f"{field}.divergence", f"must be one of {names}, got {message.divergence}")
    gold = shares(f"{field}.gold", message.gold)
    if len(gold) < 2:
        raise InvalidField(f"{field}.gold", "must be at least 2 groups")
    return Attribute(gold, _DIVERGENCES[message.divergence])
