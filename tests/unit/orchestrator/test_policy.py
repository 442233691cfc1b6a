"""The policy table is complete, and errors fall into its columns."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from evenmesh.wire.errors import MeshError, NotFound, Overloaded, Unavailable
from evenmesh_orchestrator.asks.failure_policy import INSTEAD, POLICY, Failure, Step, failure_of, table
from evenmesh_orchestrator.domain import Action


def test_every_step_and_failure_has_an_action() -> None:
    assert set(POLICY) == {(step, failure) for step in Step for failure in Failure}
    assert {action for action in POLICY.values() if action is not Action.FAIL} <= set(INSTEAD)


def test_the_table_says_what_its_page_says() -> None:
    assert all(POLICY[Step.RETRIEVE, failure] is Action.FAIL for failure in Failure)
    assert all(POLICY[Step.SOURCE, failure] is Action.SOURCE_LEFT_OUT for failure in Failure)
    assert POLICY[Step.RERANK, Failure.REFUSED] is Action.FAIL
    assert POLICY[Step.RERANK, Failure.BUDGET] is Action.RETRIEVER_ORDER
    assert POLICY[Step.FIRST_WORD, Failure.UNAVAILABLE] is Action.FAIL
    assert POLICY[Step.FIRST_ANSWER, Failure.UNAVAILABLE] is Action.NO_ANSWER
    assert POLICY[Step.OTHER_ANSWERS, Failure.REFUSED] is Action.NO_ANSWER
    assert POLICY[Step.STORE_OBSERVATION, Failure.ERROR] is Action.OBSERVATION_DROPPED
    assert POLICY[Step.SEND_OBSERVATION, Failure.UNAVAILABLE] is Action.OBSERVATION_QUEUED


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (Unavailable("X", "x"), Failure.UNAVAILABLE),
        (Unavailable("CIRCUIT_OPEN", "x"), Failure.CIRCUIT_OPEN),
        (MeshError(grpc.StatusCode.DEADLINE_EXCEEDED, "X", "x"), Failure.BUDGET),
        (Overloaded("x", 1.0), Failure.OVERLOADED),
        (MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVER_CAPACITY", "x"), Failure.OVER_CAPACITY),
        (MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE", "x"), Failure.OVER_CAPACITY),
        (NotFound("x", "x"), Failure.REFUSED),
        (MeshError(grpc.StatusCode.INTERNAL, "X", "x"), Failure.ERROR),
        (MeshError(grpc.StatusCode.UNIMPLEMENTED, "X", "x"), Failure.ERROR),
    ],
)
def test_errors_are_failures(error: MeshError, failure: Failure) -> None:
    assert failure_of(error) is failure


def test_the_page_has_the_table() -> None:
    """To update it: python -c 'from evenmesh_orchestrator.asks.failure_policy import table; print(table())'."""
    page = Path(__file__).parents[3] / "docs" / "operate" / "limits.md"
    assert f"\n{table()}\n" in page.read_text()
    assert all(f"`{failure.reason}`" in page.read_text() for failure in Failure)
