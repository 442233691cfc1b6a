"""Every field that can grow has a bound, and every method a largest request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from evenmesh.wire.bounds import bounds_of
from evenmesh.wire.methods import facts_of
from evenmesh_kit.rpc.wire_scan import scanner_of
from evenmesh_kit.settings import ServiceSettings
from tests.contract.test_method_facts import METHODS
from tests.support.heavy_requests import SHAPES
from tests.support.largest import largest, largest_size

TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


def fields_of(message: Descriptor, seen: set[str]) -> Iterator[FieldDescriptor]:
    if message.full_name in seen:
        return
    seen.add(message.full_name)
    for field in message.fields:
        yield field
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            yield from fields_of(field.message_type, seen)
        elif (
            field.message_type is not None
            and (value := field.message_type.fields_by_name["value"]).message_type
        ):
            yield from fields_of(value.message_type, seen)


def needed(field: FieldDescriptor) -> set[str]:
    """Return the names of the bounds that a field must state."""
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        key, value = inner.fields
        wanted = {"max_pairs": True, "max_key_bytes": key.type in TEXTS, "max_bytes": value.type in TEXTS}
    else:
        wanted = {"max_items": field.is_repeated, "max_bytes": field.type in TEXTS}
    return {name for name, applies in wanted.items() if applies}


def test_every_field_of_a_request_that_can_grow_states_its_bounds() -> None:
    seen: set[str] = set()
    wrong = [
        field.full_name
        for method in METHODS.values()
        for field in fields_of(method.input_type, seen)
        if {one.name for one, _ in bounds_of(field).ListFields()} != needed(field)
    ]
    assert not wrong
    assert len(seen) > 50


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_largest_request_by_its_fields_is_within_that_of_its_method_or_is_cut_to_it(method: str) -> None:
    kind, most = METHODS[method].input_type, facts_of(method).max_request_bytes
    small = min(most, 2**18)  # as large as a test needs
    built = largest(message_factory.GetMessageClass(kind), small)
    data = built.SerializeToString()
    assert len(data) <= min(small, largest_size(kind))
    scanner_of(kind).scan(data)
    if largest_size(kind) > most:
        assert most >= 2**20  # small requests are bounded by their fields alone


def test_every_method_of_large_requests_is_among_the_heavy_ones() -> None:
    assert set(SHAPES) == {method for method in METHODS if facts_of(method).max_request_bytes > 4096}


def test_the_largest_honest_request_fits_a_tenants_memory() -> None:
    settings = ServiceSettings()
    densest = SHAPES["/evenmesh.evaluator.v1.EvaluatorService/EvaluateRankings"]["full"](1.0)
    assert isinstance(densest, Message)
    takes = scanner_of(densest.DESCRIPTOR).scan(densest.SerializeToString())
    assert takes < settings.max_decoded_bytes * settings.tenant_share
