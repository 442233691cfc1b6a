"""Targets and policies as messages."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from evenmesh.common.v1 import common_pb2
from evenmesh.wire.errors import InvalidField
from evenmesh_core.plackett_luce import Disparity, RelevanceLoss, policy_for
from evenmesh_kit.rpc.policies import (
    MAX_GROUPS,
    GroupShare,
    GroupShares,
    Target,
    find_policy,
    in_words,
    policy_in_words,
    policy_message,
    set_target,
    target_of,
    target_of_policy,
)

PROBABILITY = common_pb2.Policy.RELEVANCE_PROBABILITY
SCORES = [4.0, 3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    "target",
    [
        Disparity(0.3),
        RelevanceLoss(0.02),
        Disparity(0.0),
        RelevanceLoss(1.0),
        GroupShares((GroupShare("provider", "", 0.0, 0.4), GroupShare("group", "f", 0.3, 1.0))),
    ],
)
def test_a_target_is_read_as_it_was_written(target: Target) -> None:
    message = common_pb2.Sampling()
    set_target(message, target)
    assert target_of("sampling", message) == target


def test_a_dial_is_no_target() -> None:
    assert target_of("sampling", common_pb2.Sampling(alpha=3)) is None
    assert target_of("sampling", common_pb2.Sampling()) is None


@pytest.mark.parametrize(
    ("message", "field", "words"),
    [
        (common_pb2.Sampling(disparity=1.1), "sampling.disparity", "must be in [0, 1], got 1.1"),
        (common_pb2.Sampling(disparity=math.nan), "sampling.disparity", "must be in [0, 1], got nan"),
        (common_pb2.Sampling(relevance_loss=-0.1), "sampling.relevance_loss", "must be in [0, 1], got -0.1"),
        (common_pb2.Sampling(alpha=0, disparity=0.5), "sampling.disparity", "cannot be given with alpha"),
        (common_pb2.Sampling(alpha=1, relevance_loss=0.5), "sampling.relevance_loss", "with alpha"),
        (common_pb2.Sampling(disparity=0, relevance_loss=0), "sampling.relevance_loss", "with disparity"),
    ],
)
def test_a_target_is_one_number_in_its_range(message: common_pb2.Sampling, field: str, words: str) -> None:
    with pytest.raises(InvalidField) as caught:
        target_of("sampling", message)
    assert caught.value.field == field
    assert words in caught.value.message


def test_a_policy_says_what_was_wanted_and_what_is_expected() -> None:
    found = policy_for(Disparity(0.8), SCORES, SCORES, k=2)
    message = policy_message(found, PROBABILITY)
    assert message.target_disparity == 0.8
    assert not message.HasField("target_relevance_loss")
    assert (message.alpha, message.disparity) == (found.alpha, found.disparity)
    assert (message.relevance, message.best_relevance) == (found.relevance, 7.0)
    assert (message.relevance_kind, message.reached, message.note) == (PROBABILITY, True, "")


@pytest.mark.parametrize(
    ("target", "scores", "note"),
    [
        (
            Disparity(0.1),
            SCORES,
            "disparity 0.1 cannot be reached with these 4 passages: the most even policy, in which all passages "
            "are equally likely, has disparity 0.5",
        ),
        (
            Disparity(0.9),
            [1.0, 1.0],
            "disparity 0.9 cannot be reached with these 2 passages: the sharpest policy, in which passages of "
            "equal score stay equally likely, has disparity 0.5",
        ),
    ],
)
def test_a_note_says_what_the_nearest_policy_has(target: Target, scores: list[float], note: str) -> None:
    found = policy_for(target, scores, scores, k=len(scores) // 2)
    message = policy_message(found, PROBABILITY)
    assert (message.reached, message.note) == (False, note)


def test_targets_in_words() -> None:
    assert in_words(Disparity(0.3)) == "disparity 0.3"
    assert in_words(RelevanceLoss(0.02)) == "relevance loss 0.02"
    several = GroupShares((GroupShare("provider", "", at_most=0.4), GroupShare("group", "f", 0.3, 0.6)))
    assert in_words(several) == "provider at most 0.4, group f at least 0.3 and at most 0.6"
    long = GroupShares((GroupShare("a", "x" * 300, at_most=0.4),))
    assert in_words(long).startswith("shares sha256:")
    assert len(in_words(long)) < 40


def _share(**fields: Any) -> common_pb2.GroupShare:
    return common_pb2.GroupShare(**{"attribute": "provider", "at_most": 0.4, **fields})


@pytest.mark.parametrize(
    ("shares", "field"),
    [
        ([_share(attribute="")], "sampling.shares[0].attribute"),
        ([_share(attribute="x" * 129)], "sampling.shares[0].attribute"),
        ([_share(attribute="a\n")], "sampling.shares[0].attribute"),
        ([_share(value="x" * 1025)], "sampling.shares[0].value"),
        ([_share(), _share(value="a", at_most=1.1)], "sampling.shares[1].at_most"),
        ([_share(at_least=-0.1)], "sampling.shares[0].at_least"),
        ([_share(at_least=0.5)], "sampling.shares[0].at_most"),
        ([_share(at_most=math.nan)], "sampling.shares[0].at_most"),
        ([common_pb2.GroupShare(attribute="provider")], "sampling.shares[0].at_most"),
        ([_share(), _share(at_most=0.5)], "sampling.shares[1]"),
        ([_share(value=str(number)) for number in range(17)], "sampling.shares"),
    ],
)
def test_bounds_on_shares_are_checked(shares: list[common_pb2.GroupShare], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        target_of("sampling", common_pb2.Sampling(shares=shares))
    assert caught.value.field == field


def test_shares_are_given_alone() -> None:
    with pytest.raises(InvalidField, match="cannot be given with disparity"):
        target_of("sampling", common_pb2.Sampling(disparity=0.5, shares=[_share()]))


def _found(target: GroupShares, providers: list[str], k: int) -> common_pb2.Policy:
    gains = np.arange(len(providers), 0, -1) / len(providers)
    found = find_policy(
        target, gains, gains, lambda: [{"provider": one} if one else {} for one in providers], k=k
    )
    return policy_message(found, PROBABILITY)


def test_a_bound_for_each_value_is_one_for_each_that_could_break_it() -> None:
    target = GroupShares((GroupShare("provider", "", at_most=0.5),))
    message = _found(target, ["A", "A", "A", "B", "C", ""], 2)
    # B and C have one passage each, half of two places at most.
    assert [one.bound.value for one in message.shares] == ["A"]
    (outcome,) = message.shares
    assert (outcome.share, outcome.kept) == (pytest.approx(0.5), True)
    assert (outcome.feasible_low, outcome.feasible_high) == (0.0, 1.0)
    assert (message.kind, message.reached, message.note) == (message.KIND_DECOMPOSED, True, "")
    assert target_of_policy("policy", message) == target


def test_a_bound_that_cannot_be_kept_is_named_with_what_can() -> None:
    message = _found(GroupShares((GroupShare("provider", "B", at_least=0.75),)), ["A", "A", "A", "B"], 2)
    assert not message.reached
    assert message.note == (
        "provider B at least 0.75 cannot be kept: it has 0.5, and these 4 passages allow 0 to 0.5"
    )
    nobody = _found(GroupShares((GroupShare("provider", "Z", at_least=0.1),)), ["A", "A"], 1)
    assert nobody.note.endswith("it has 0, and these 2 passages allow 0 to 0")


def test_too_many_groups_are_refused_before_they_are_solved() -> None:
    target = GroupShares((GroupShare("provider", "", at_least=0.5),))
    with pytest.raises(InvalidField, match=f"at most {MAX_GROUPS}"):
        _found(target, [str(number) for number in range(MAX_GROUPS + 1)], 5)


def test_a_policy_over_time_in_words() -> None:
    policy = common_pb2.Policy(alpha=2.5, balance={"strength": 0.05, "limit": 0.25, "half_life_days": 30})
    assert policy_in_words("policy", policy) == "alpha 2.5, balance 0.05 up to 0.25 over 30 days"
    assert policy_in_words("policy", common_pb2.Policy(target_disparity=0.3)) == "disparity 0.3"


@pytest.mark.parametrize(("name", "value"), [("strength", math.nan), ("limit", 2.0), ("half_life_days", 0.0)])
def test_a_policy_over_time_out_of_range_is_refused_by_field(name: str, value: float) -> None:
    balance = {"strength": 0.05, "limit": 0.25, "half_life_days": 30.0} | {name: value}
    with pytest.raises(InvalidField) as caught:
        policy_in_words("policy", common_pb2.Policy(balance=balance))
    assert caught.value.field == f"policy.balance.{name}"
