"""What may be sent again after a server turned it away."""

from __future__ import annotations

import grpc
import pytest

from meshkit.errors import MeshError, Unavailable
from ragmesh.door import Door

AWAY = Unavailable("SHUTTING_DOWN", "the service is shutting down")


def test_what_was_turned_away_comes_again_after_pauses_that_double_and_not_for_ever() -> None:
    door = Door(60)
    pauses = []
    while door.opens_again(AWAY):
        pauses.append(door.pause_s)
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8])


def test_a_connection_that_broke_is_tried_again_for_less_long() -> None:
    door = Door(60)
    pauses = []
    while door.opens_again(Unavailable("UNREACHABLE", "no orchestrator answers")):
        pauses.append(door.pause_s)
    assert pauses == pytest.approx([0.05, 0.1, 0.2])


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("CUT_SHORT", "the service ended before it"),  # it had begun
        MeshError(grpc.StatusCode.INTERNAL, "INTERNAL", "internal error"),
    ],
)
def test_what_may_have_begun_does_not(error: MeshError) -> None:
    assert not Door(60).opens_again(error)


def test_what_has_begun_does_not() -> None:
    door = Door(60)
    door.passed()
    assert not door.opens_again(AWAY)


def test_what_has_no_time_left_does_not() -> None:
    assert not Door(0.01).opens_again(AWAY)
