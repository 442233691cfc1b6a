"""Targets and policies as messages."""

from __future__ import annotations

import math

import pytest

from evenmesh.common.v1 import common_pb2
from evenmesh.wire.errors import InvalidField
from evenmesh_core.plackett_luce import Disparity, RelevanceLoss, Target, policy_for
from evenmesh_kit.rpc.policies import in_words, policy_message, set_target, target_of

PROBABILITY = common_pb2.Policy.RELEVANCE_PROBABILITY
SCORES = [4.0, 3.0, 2.0, 1.0]


@pytest.mark.parametrize("target", [Disparity(0.3), RelevanceLoss(0.02), Disparity(0.0), RelevanceLoss(1.0)])
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
