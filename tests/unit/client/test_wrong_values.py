"""Values of a wrong type are refused before anything is sent: a text is not the list of its characters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evenmesh import Addresses, Client
from evenmesh.wire.errors import InvalidField


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
