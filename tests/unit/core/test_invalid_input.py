import pickle

import pytest

from evenmesh_core.errors import InvalidInput


def test_the_message_names_argument_value_and_allowed_range():
    error = InvalidInput("alpha", -1.0, "0 to 100")
    assert str(error) == "alpha is -1.0; allowed: 0 to 100"
    assert (error.argument, error.value, error.allowed) == ("alpha", -1.0, "0 to 100")


def test_it_is_a_value_error():
    with pytest.raises(ValueError, match="k is 0"):
        raise InvalidInput("k", 0, "whole numbers from 1")


def test_a_huge_value_does_not_make_a_huge_message():
    assert len(str(InvalidInput("text", "x" * 1_000_000, "less"))) < 200


def test_it_survives_pickling():
    error = pickle.loads(pickle.dumps(InvalidInput("k", 0, "whole numbers from 1")))  # noqa: S301 - our own bytes
    assert str(error) == "k is 0; allowed: whole numbers from 1"
