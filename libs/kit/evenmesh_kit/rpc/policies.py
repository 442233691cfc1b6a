"""Targets of sampling, the policies that reach them for some passages, and both as messages."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from evenmesh.common.v1 import common_pb2
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField
from evenmesh_core.arrays import FloatArray
from evenmesh_core.group_shares import ShareBound, SharesPolicy, shares_policy
from evenmesh_core.plackett_luce import Disparity, RelevanceLoss, TargetedPolicy, policy_for

MAX_SHARES: Final = 16
"""Most bounds of a target."""
MAX_GROUPS: Final = 256
"""Most groups that bounds for each value may have among the passages of a query."""

_MAX_ATTRIBUTE_BYTES: Final = 128
_MAX_VALUE_BYTES: Final = 1024
_MAX_WORDS_BYTES: Final = 256
_MAX_NOTE_CHARACTERS: Final = 1000
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class GroupShare:
    """A bound on the share of a group; an empty value is a bound for each value of the attribute."""

    attribute: str
    value: str
    at_least: float = 0.0
    at_most: float = 1.0


@dataclass(frozen=True, slots=True)
class GroupShares:
    """A target: the most relevant policy that keeps shares of groups."""

    bounds: tuple[GroupShare, ...]


Target = Disparity | RelevanceLoss | GroupShares
"""What a policy should reach."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupSharesPolicy:
    """The policy of shares, and the groups that its bounds are about, one by one."""

    target: GroupShares
    groups: tuple[GroupShare, ...]
    policy: SharesPolicy

    @property
    def inclusion(self) -> FloatArray:
        """Vector [n]: probability of each passage to be among the first k."""
        return self.policy.inclusion


Policy = TargetedPolicy | GroupSharesPolicy
"""A policy that reaches a target, or comes nearest to it."""


def target_of(field: str, message: common_pb2.Sampling) -> Target | None:
    """Return the target of a sampling; None without one.

    Args:
        field: path of the message, for errors.
        message: the sampling.

    Raises:
        InvalidField: several of a dial and targets are given, or one is out of range.
    """
    given = [name for name in ("alpha", "disparity", "relevance_loss") if message.HasField(name)]
    if message.shares:
        given.append("shares")
    if len(given) > 1:
        raise InvalidField(
            f"{field}.{given[1]}", f"cannot be given with {given[0]}: give one of them, which decides alone"
        )
    if message.HasField("disparity"):
        return Disparity(checks.between(f"{field}.disparity", message.disparity, 0, 1))
    if message.HasField("relevance_loss"):
        return RelevanceLoss(checks.between(f"{field}.relevance_loss", message.relevance_loss, 0, 1))
    return _shares(f"{field}.shares", message.shares) if message.shares else None


def target_of_policy(field: str, message: common_pb2.Policy) -> Target:
    """Return the target of a policy.

    Raises:
        InvalidField: there is none, there are several, or one is out of range.
    """
    sampling = common_pb2.Sampling(shares=message.target_shares)
    if message.HasField("target_disparity"):
        sampling.disparity = message.target_disparity
    if message.HasField("target_relevance_loss"):
        sampling.relevance_loss = message.target_relevance_loss
    try:
        target = target_of(field, sampling)
    except InvalidField as error:
        name = (error.field or "").removeprefix(f"{field}.")
        words = error.message.removeprefix(f"{error.field}: ")
        raise InvalidField(f"{field}.target_{name}", words) from None
    if target is None:
        raise InvalidField(field, "must have a target")
    return target


def policy_in_words(field: str, message: common_pb2.Policy) -> str:
    """Return what a policy is drawn for in a few words; asks with the same ones belong together.

    Raises:
        InvalidField: it has neither a target nor a balance, or one is out of range.
    """
    if not message.HasField("balance"):
        return in_words(target_of_policy(field, message))
    balance = message.balance
    checks.between(f"{field}.balance.strength", balance.strength, 0, 10)
    checks.between(f"{field}.balance.limit", balance.limit, 0, 1)
    checks.between(f"{field}.balance.half_life_days", balance.half_life_days, 0.01, 3650)
    return (
        f"alpha {message.alpha:g}, balance {balance.strength:g} up to {balance.limit:g} "
        f"over {balance.half_life_days:g} days"
    )


def set_target(message: common_pb2.Sampling, target: Target) -> None:
    """Write a target into a sampling."""
    match target:
        case Disparity(value):
            message.disparity = value
        case RelevanceLoss(value):
            message.relevance_loss = value
        case GroupShares(bounds):
            message.shares.extend(map(_bound, bounds))


def in_words(target: Target) -> str:
    """Return a target in a few words, such as ``disparity 0.3``; the hash of long ones."""
    match target:
        case Disparity(value):
            return f"disparity {value:g}"
        case RelevanceLoss(value):
            return f"relevance loss {value:g}"
        case GroupShares(bounds):
            words = ", ".join(map(_in_words, bounds))
            if len(words.encode()) > _MAX_WORDS_BYTES:
                return f"shares sha256:{hashlib.sha256(words.encode()).hexdigest()[:16]}"
            return words


def find_policy(
    target: Target,
    scores: FloatArray,
    relevance: FloatArray,
    attributes: Callable[[], Sequence[Mapping[str, str]]],
    *,
    k: int,
) -> Policy:
    """Return the policy that reaches a target for some passages.

    Args:
        target: what to reach.
        scores: of the passages, [n].
        relevance: of the passages, [n], from 0.
        attributes: gives the attributes of the passages, n of them.
        k: positions per ranking.

    Raises:
        InvalidField: bounds for each value have too many groups among these passages.
    """
    if not isinstance(target, GroupShares):
        return policy_for(target, scores, relevance, k=k)
    groups = _groups(target, attributes(), min(k, len(scores)))
    found = shares_policy(relevance, [bound for _, bound in groups], k=k)
    return GroupSharesPolicy(target, tuple(group for group, _ in groups), found)


def policy_message(found: Policy, relevance: common_pb2.Policy.Relevance.ValueType) -> common_pb2.Policy:
    """Return the message of a policy; ``relevance`` is what its relevance is a sum of."""
    if isinstance(found, GroupSharesPolicy):
        return _shares_message(found, relevance)
    target = found.target
    return common_pb2.Policy(
        kind=common_pb2.Policy.KIND_PLACKETT_LUCE,
        target_disparity=target.value if isinstance(target, Disparity) else None,
        target_relevance_loss=target.value if isinstance(target, RelevanceLoss) else None,
        alpha=found.alpha,
        disparity=found.disparity,
        relevance=found.relevance,
        best_relevance=found.best_relevance,
        relevance_kind=relevance,
        reached=found.reached,
        note="" if found.reached else _note(found),
    )


def _shares(field: str, messages: Sequence[common_pb2.GroupShare]) -> GroupShares:
    if len(messages) > MAX_SHARES:
        raise InvalidField(field, f"must be at most {MAX_SHARES}, has {len(messages)}")
    bounds: dict[tuple[str, str], GroupShare] = {}
    for place, message in enumerate(messages):
        name = f"{field}[{place}]"
        _check_text(f"{name}.attribute", message.attribute, _MAX_ATTRIBUTE_BYTES)
        if not message.attribute:
            raise InvalidField(f"{name}.attribute", "must be given")
        _check_text(f"{name}.value", message.value, _MAX_VALUE_BYTES)
        if not message.HasField("at_least") and not message.HasField("at_most"):
            raise InvalidField(f"{name}.at_most", "must be given, or at_least")
        low = checks.between(f"{name}.at_least", message.at_least, 0, 1)
        high = message.at_most if message.HasField("at_most") else 1.0
        checks.between(f"{name}.at_most", high, low, 1)
        key = (message.attribute, message.value)
        if key in bounds:
            raise InvalidField(name, f"is the second bound of {message.attribute} {message.value}".rstrip())
        bounds[key] = GroupShare(*key, low, high)
    return GroupShares(tuple(bounds.values()))


def _check_text(field: str, value: str, most: int) -> None:
    if _CONTROL.search(checks.at_most(field, value, most)):
        raise InvalidField(field, "must not hold control characters")


def _groups(
    target: GroupShares, attributes: Sequence[Mapping[str, str]], k: int
) -> list[tuple[GroupShare, ShareBound]]:
    """Return the groups of bounds; of a bound for each value those that could break it."""
    n = len(attributes)
    groups = []
    for bound in target.bounds:
        values = [one.get(bound.attribute, "") for one in attributes]
        for value in [bound.value] if bound.value else sorted(set(values) - {""}):
            members = [one == value for one in values]
            size = sum(members)
            kept = min(size, k) <= bound.at_most * k and max(0, k - (n - size)) >= bound.at_least * k
            if bound.value or not kept:
                group = GroupShare(bound.attribute, value, bound.at_least, bound.at_most)
                groups.append((group, ShareBound(members, bound.at_least, bound.at_most)))
    if len(groups) > MAX_GROUPS:
        raise InvalidField(
            "sampling.shares",
            f"bound {len(groups)} groups of these passages, at most {MAX_GROUPS} are allowed: name values, "
            "or give a smaller depth",
        )
    return groups


def _shares_message(
    found: GroupSharesPolicy, relevance: common_pb2.Policy.Relevance.ValueType
) -> common_pb2.Policy:
    policy = found.policy
    message = common_pb2.Policy(
        kind=common_pb2.Policy.KIND_DECOMPOSED,
        target_shares=map(_bound, found.target.bounds),
        disparity=policy.disparity,
        relevance=max(policy.relevance, 0.0),
        best_relevance=policy.best_relevance,
        relevance_kind=relevance,
        reached=bool(policy.kept.all()),
    )
    missed = []
    rows = zip(found.groups, policy.shares.tolist(), policy.feasible, policy.kept.tolist(), strict=True)
    for group, share, feasible, kept in rows:
        share = min(max(share, 0.0), 1.0)
        message.shares.add(
            bound=_bound(group),
            share=share,
            feasible_low=feasible.low,
            feasible_high=feasible.high,
            kept=kept,
        )
        if not kept:
            missed.append(
                f"{_in_words(group)} cannot be kept: it has {share:.3g}, and these {len(policy.inclusion)} "
                f"passages allow {feasible.low:.3g} to {feasible.high:.3g}"
            )
    note = "; ".join(missed)
    if len(note) > _MAX_NOTE_CHARACTERS:
        note = f"{note[: _MAX_NOTE_CHARACTERS - 1]}…"
    message.note = note
    return message


def _bound(share: GroupShare) -> common_pb2.GroupShare:
    return common_pb2.GroupShare(
        attribute=share.attribute, value=share.value, at_least=share.at_least, at_most=share.at_most
    )


def _in_words(share: GroupShare) -> str:
    group = f"{share.attribute} {share.value}".rstrip()
    bounds = [f"at least {share.at_least:g}"] if share.at_least > 0 else []
    if share.at_most < 1 or not bounds:
        bounds.append(f"at most {share.at_most:g}")
    return f"{group} {' and '.join(bounds)}"


def _note(found: TargetedPolicy) -> str:
    number = len(found.inclusion)
    if found.alpha > 0:
        end = "the sharpest policy, in which passages of equal score stay equally likely,"
    else:
        end = "the most even policy, in which all passages are equally likely,"
    if isinstance(found.target, Disparity):
        has = f"disparity {found.disparity:.4g}"
    else:
        has = f"{found.relevance:.4g} of the relevance {found.best_relevance:.4g}"
    return f"{in_words(found.target)} cannot be reached with these {number} passages: {end} has {has}"
