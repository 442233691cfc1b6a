"""Values of a wrong type are refused before anything is sent: a text is not the list of its characters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evenmesh import Addresses, Client
from evenmesh.types.conversation import group_target
from evenmesh.types.request import ask_request
from evenmesh.wire.errors import InvalidField, MeshError


@pytest.fixture
def client() -> Client:
    """A client of a mesh where nobody answers."""
    nowhere = "127.0.0.1:1"
    return Client(Addresses(nowhere, nowhere, nowhere, nowhere, nowhere))


@pytest.mark.parametrize("value", ["p1", b"p1", 5])
@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("references", lambda client, value: client.answer("q", references=value)),
        ("useful", lambda client, value: client.answer("q", useful=value)),
        ("texts", lambda client, value: client.embed(value)),
        ("passage_ids", lambda client, value: client.delete_passages("c", value)),
    ],
)
def test_one_value_is_not_several(
    client: Client, field: str, call: Callable[[Client, Any], object], value: Any
) -> None:
    with pytest.raises(InvalidField, match="must be several values, not") as caught:
        call(client, value)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("agent", lambda client: client.answer("q", agent="qa")),
        ("agent", lambda client: client.answer("q", agent=("qa", "t5"))),
        ("agent", lambda client: client.register_agent("qa")),
        ("agent", lambda client: client.models(agent="qa")),
        ("decoding", lambda client: client.answer("q", decoding=0.5)),
        ("turns[1]", lambda client: client.answer("q", turns=[("q", "a"), "q"])),
        ("turns", lambda client: client.answer("q", turns="q")),
        ("timeout", lambda client: client.answer("q", timeout="5")),
    ],
)
def test_the_field_of_another_type_is_named(
    client: Client, field: str, call: Callable[[Client], object]
) -> None:
    with pytest.raises(InvalidField) as caught:
        call(client)
    assert caught.value.field == field


@pytest.mark.parametrize("value", ["no", "", 0, 1, [], "False"])
@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("observe", lambda client, value: client.answer("q", observe=value)),
        ("run_report", lambda client, value: client.answer("q", run_report=value)),
        ("whole_collection", lambda client, value: client.retrieve("q", whole_collection=value)),
        ("inclusion", lambda client, value: client.retrieve("q", inclusion=value)),
        ("queries", lambda client, value: client.embed(["t"], queries=value)),
        ("create", lambda client, value: client.ingest([], "c", create=value)),
        ("include_flagged", lambda client, value: list(client.export_feedback(include_flagged=value))),
        ("merge_agent_tokens", lambda client, value: client.promote_model("v", merge_agent_tokens=value)),
        ("cumulative", lambda client, value: client.converse(conversation={"cumulative": value})),
        ("uniform_turns", lambda client, value: client.converse(conversation={"uniform_turns": value})),
        ("cumulative", lambda client, value: client.evaluate_conversation("t", {}, cumulative=value)),
        ("uniform_turns", lambda client, value: client.evaluate_conversation("t", {}, uniform_turns=value)),
        ("position_turns", lambda client, value: client.evaluate_conversation("t", {}, position_turns=value)),
        ("own", lambda _, value: group_target(["a", "b"], "provider", own=value)),
    ],
)
def test_what_is_true_or_false_is_no_other_value(
    client: Client, field: str, call: Callable[[Client, Any], object], value: Any
) -> None:
    with pytest.raises(InvalidField, match="must be True or False, not") as caught:
        call(client, value)
    assert caught.value.field == field


def test_none_is_the_default_of_what_is_true_or_false() -> None:
    assert not ask_request("q", {"observe": None}).skip_observation  # type: ignore[typeddict-item]
    assert not ask_request("q", {}).skip_observation
    assert ask_request("q", {"observe": False}).skip_observation
    assert not ask_request("q", {"run_report": None}).want_report  # type: ignore[typeddict-item]


def test_numbers_of_numpy_are_numbers() -> None:
    options = {"k": np.int64(2), "alpha": np.float32(0.5), "samples": np.int32(3), "seed": np.uint64(2**63)}
    request = ask_request("q", options)
    assert (request.k, request.sampling.alpha, request.sampling.num_rankings) == (2, 0.5, 3)
    assert request.sampling.seed == 2**63
    for wrong in ({"k": np.float64(2)}, {"k": np.bool_(True)}, {"alpha": np.bool_(True)}):
        with pytest.raises(InvalidField, match=r"must be a (whole )?number, not"):
            ask_request("q", wrong)


def test_arrays_of_numpy_are_lists(client: Client) -> None:
    rankings = np.array([[0, 1], [2, 1]])
    with pytest.raises(MeshError, match="evaluator") as away:  # what is sent is right, and nobody answers
        client.evaluate_exposure(np.array([1, 0, 0]), k=1, rankings=rankings)
    assert away.value.reason == "UNREACHABLE"
