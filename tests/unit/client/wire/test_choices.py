"""Numbers of protobuf enums are paired with Python's values by name."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from evenmesh.generator.v1 import generator_service_pb2 as pb
from evenmesh.wire.choices import Choices
from evenmesh.wire.errors import InvalidField

DESCRIPTOR = pb.ScoreRelevanceRequest.Normalization.DESCRIPTOR
TRUE_FALSE = pb.ScoreRelevanceRequest.NORMALIZATION_TRUE_FALSE


class Over(enum.Enum):
    VOCABULARY = "all tokens"
    TRUE_FALSE = "two tokens"


@pytest.mark.parametrize(
    ("values", "value"), [(Over, Over.TRUE_FALSE), (("trueFalse", "vocabulary"), "trueFalse")]
)
def test_a_number_and_its_value_find_each_other(values: Any, value: Any) -> None:
    choices = Choices[Any](DESCRIPTOR, values)
    assert choices.read("normalization", TRUE_FALSE) == value
    assert choices.number(value) == TRUE_FALSE


def test_unspecified_is_the_default_or_an_error() -> None:
    assert Choices(DESCRIPTOR, Over, Over.VOCABULARY).read("normalization", 0) is Over.VOCABULARY
    names = "NORMALIZATION_TRUE_FALSE, NORMALIZATION_VOCABULARY"
    with pytest.raises(InvalidField, match=f"normalization.*{names}, got 0"):
        Choices(DESCRIPTOR, Over).read("normalization", 0)


def test_a_default_keeps_its_own_number() -> None:
    assert Choices(DESCRIPTOR, Over, Over.TRUE_FALSE).number(Over.TRUE_FALSE) == TRUE_FALSE


def test_a_value_that_the_enum_lacks_is_our_error() -> None:
    with pytest.raises(KeyError):
        Choices(DESCRIPTOR, ["sentence"])
